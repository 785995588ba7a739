"""Replace files atomically and durably: write, fsync, rename. Driver."""

from __future__ import annotations

import os
from pathlib import Path

OWNER_ONLY = 0o600


def write(path: Path, data: bytes, mode: int = OWNER_ONLY) -> None:
    """Replace a file. At no time does it have more permissions than `mode`. Raises OSError."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)  # left by an interrupted write
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(folder: Path) -> None:
    """Flush the entries of a directory to disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

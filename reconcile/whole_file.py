"""Files that are there as a whole or not at all, and on disk."""

from __future__ import annotations

import os
from pathlib import Path

FOR_OWNER = 0o600


def write(path: Path, data: bytes, mode: int = FOR_OWNER) -> None:
    """Put a file there in place of an older one, never readable by more than `mode` allows. Raises OSError."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)  # Of a write that was cut off.
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have on disk which files are in it. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

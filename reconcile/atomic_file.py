"""Replace files atomically and durably: write, fsync, rename. Driver."""

from __future__ import annotations

import os
from pathlib import Path

from reconcile.errors import Refused

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


class AtomicFile:
    """`path` may be empty: then there is never a file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None

    def show(self, text: str | None) -> bool:
        """Put the file there with this text, or take it away; whether that changed anything. Raises Refused."""
        if self._path is None:
            return False
        try:
            return self._remove(self._path) if text is None else self._write(self._path, text)
        except OSError as error:
            raise Refused(f"{self._path}: {error.strerror}") from None

    def _remove(self, path: Path) -> bool:
        was_there = path.exists()
        path.unlink(missing_ok=True)
        return was_there

    def _write(self, path: Path, text: str) -> bool:
        if path.exists() and path.read_text() == text:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_text(text)
        fresh.replace(path)
        return True


def write_private(path: Path, text: str) -> None:
    """Put a file there at once and whole, for its owner alone (mode 0600), in place of an older one. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)

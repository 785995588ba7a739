"""Replace files atomically and durably: write, fsync, rename. Driver."""

from __future__ import annotations

import os
from pathlib import Path

from reconcile.errors import Refused

OWNER_ONLY, READABLE = 0o600, 0o644


def write(path: Path, data: bytes, mode: int = OWNER_ONLY, *, durable: bool = True) -> None:
    """Replace a file. At no time does it have more permissions than `mode`. Raises OSError.

    A durable file is on disk when the call returns.
    """
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)  # left by an interrupted write
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    fresh.replace(path)
    if durable:
        sync_directory(path.parent)


def sync_directory(folder: Path) -> None:
    """Flush the entries of a directory to disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class AtomicFile:
    """A file that exists with its whole content, or not at all. With an empty path, there is never a file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None

    def write(self, text: str) -> bool:
        """Write the file if it has another text. Return True if it was changed. Raises Refused."""
        if self._path is None:
            return False
        try:
            if self._path.exists() and self._path.read_text() == text:
                return False
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write(self._path, text.encode(), READABLE, durable=False)
        except OSError as error:
            raise Refused(f"{self._path}: {error.strerror}") from None
        return True

    def remove(self) -> bool:
        """Remove the file. Return True if there was one. Raises Refused."""
        if self._path is None:
            return False
        try:
            existed = self._path.exists()
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise Refused(f"{self._path}: {error.strerror}") from None
        return existed

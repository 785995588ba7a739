"""Driver: keys and certificates in files of their own, whole or not at all, for their owner alone."""

from __future__ import annotations

import os
from pathlib import Path

from reconcile.errors import NotReady


def write(path: Path, data: bytes) -> None:
    """Put a file there, mode 0600, in place of an older one, and on disk before returning. Raises NotReady."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


def read(path: Path) -> bytes:
    """What is in it; nothing if it is not there. Raises NotReady."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None


def remove(path: Path) -> None:
    """Raises NotReady."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise NotReady(f"{path}: {error.strerror}") from None

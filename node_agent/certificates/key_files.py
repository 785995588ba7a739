"""Driver: keys and certificates in files of their own, whole or not at all, for their owner alone."""

from __future__ import annotations

from pathlib import Path

from reconcile import whole_file
from reconcile.errors import NotReady


def write(path: Path, data: bytes) -> None:
    """Put a file there, mode 0600, in place of an older one, and on disk before returning. Raises NotReady."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole_file.write(path, data)
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

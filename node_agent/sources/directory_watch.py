"""Changes of files in a directory (inotify(7)). Driver."""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path
from types import TracebackType
from typing import Self

_LIBC = ctypes.CDLL(None, use_errno=True)

_CLOSE_WRITE, _MOVED, _CREATE, _DELETE, _ATTRIB = 0x8, 0xC0, 0x100, 0x200, 0x4
_ONLY_DIRECTORIES = 0x01000000
_CHANGES = _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _ATTRIB | _ONLY_DIRECTORIES

_BUFFER_BYTES = 64 << 10


class DirectoryWatch:
    """Watches the files of a directory, without its subdirectories. A context manager inside a running event loop.

    A directory that is removed and created again is not watched any more.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._changed = asyncio.Event()
        self._fd = -1

    def __enter__(self) -> Self:
        self._fd = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), self._directory)
        try:
            _checked(_LIBC.inotify_add_watch(self._fd, os.fsencode(self._directory), _CHANGES), self._directory)
        except OSError:
            os.close(self._fd)
            raise
        asyncio.get_running_loop().add_reader(self._fd, self._read)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    async def wait(self) -> None:
        """Wait until a file was changed since the last call."""
        await self._changed.wait()
        self._changed.clear()

    def _read(self) -> None:
        """Discard the events that wait: the files are read, whatever has happened to them."""
        os.read(self._fd, _BUFFER_BYTES)
        self._changed.set()


def _checked(result: int, path: Path) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(path))
    return result

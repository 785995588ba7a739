"""Walks directory trees that containers have written, and may change meanwhile. Driver.

The owner of such a tree chose its depth and its names. Therefore, as in removal.py, nothing here follows a symbolic
link, builds a path or recurses, and the number of open directories is bounded.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from node_agent.volumes.removal import DIRECTORY_FLAGS

MAX_OPEN = 64
"""Levels whose directories stay open. A deeper one is closed while directories in it are walked, and is then opened
again as the parent of the last of them.
"""


def walk(root: Path) -> Iterator[os.stat_result]:
    """Yield the status of a directory and of everything in it, hard links once, mounted filesystems not at all.

    Nothing is yielded if the directory does not exist. What a container removes or moves meanwhile may be missing, and
    nothing is yielded twice. Raises OSError.
    """
    try:
        levels = [_Level(os.open(root, DIRECTORY_FLAGS))]
    except (FileNotFoundError, NotADirectoryError):
        return
    visited: set[int] = set()
    try:
        yield from levels[0].read(visited)
        while levels:
            level = levels[-1]
            if not level.subdirectories:
                levels.pop()
                if len(levels) > MAX_OPEN and not levels[-1].reopen(level):
                    # The directory was moved. The rest of the levels that are closed cannot be found again.
                    del levels[MAX_OPEN:]
                level.close()
            elif (child := level.open(level.subdirectories.pop())) is not None:
                if len(levels) > MAX_OPEN:
                    level.close()
                levels.append(child)
                yield from child.read(visited)
    finally:
        for level in levels:
            level.close()


class _Level:
    """A directory, and the names of directories in it that were not walked yet."""

    __slots__ = ("descriptor", "device", "inode", "subdirectories")

    def __init__(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self.descriptor = descriptor
        self.device, self.inode = status.st_dev, status.st_ino
        self.subdirectories: list[str] = []

    def read(self, visited: set[int]) -> Iterator[os.stat_result]:
        """Yield the status of the directory and of its files, except of those that were visited.

        Directories are remembered because one may be moved to a place that was not walked yet, again and again.
        """
        if self.inode in visited:
            return
        visited.add(self.inode)
        yield os.fstat(self.descriptor)
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    if status.st_dev == self.device:
                        self.subdirectories.append(entry.name)
                elif status.st_ino not in visited:
                    if status.st_nlink > 1:
                        visited.add(status.st_ino)
                    yield status

    def open(self, name: str) -> _Level | None:
        """Open a directory in this one. Return None if it was removed or replaced, or if it is a mount point."""
        try:
            child = _Level(os.open(name, DIRECTORY_FLAGS, dir_fd=self.descriptor))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return None
        if child.device != self.device:
            child.close()
            return None
        return child

    def reopen(self, child: _Level) -> bool:
        """Open this directory again as the parent of another. Return False if that has another parent now."""
        parent = child.open("..")
        if parent is None:
            return False
        if parent.inode != self.inode:
            parent.close()
            return False
        self.descriptor = parent.descriptor
        return True

    def close(self) -> None:
        """Close the directory. It may be closed."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

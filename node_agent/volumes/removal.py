"""Removal of directory trees that containers have written. Driver.

The owner of such a tree chose its depth, its names and its size. Therefore nothing here follows a symbolic link or
builds a path, and no more than MAX_DEPTH directories are open at a time: one that is deeper is moved up to the top.
"""

from __future__ import annotations

import contextlib
import errno
import os
from itertools import islice
from pathlib import Path

BATCH = 1000
"""Entries of a directory that are read at a time."""

MAX_DEPTH = 64
"""Levels below the top at which directories are emptied in their place."""

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(directory: Path) -> None:
    """Remove a directory with everything in it. Raises OSError.

    No container may be able to write to the directory itself, because directories below it are moved into it.
    """
    while not remove_some(directory, BATCH):
        pass


def remove_some(directory: Path, max_entries: int) -> bool:
    """Remove about `max_entries` entries below a directory, as `remove_tree` does. Return whether it is gone.

    A call after an interruption continues.
    """
    try:
        top = os.open(directory, DIRECTORY_FLAGS)
    except FileNotFoundError:
        return True
    try:
        _remove_entries(top, top, 0, max_entries)
    finally:
        os.close(top)
    return _remove_if_empty(str(directory))


def _remove_entries(top: int, directory: int, depth: int, max_entries: int) -> int:
    """Remove entries of an open directory. Return how many more may be removed. If it is not 0, nothing is left."""
    remaining = max_entries
    while remaining > 0 and (entries := _read(directory)):
        for entry in entries:
            if remaining <= 0:
                break
            if not entry.is_dir(follow_symlinks=False):
                _remove_file(entry.name, directory)
            elif depth < MAX_DEPTH:
                remaining = _empty(top, directory, entry.name, depth, remaining)
                _remove_if_empty(entry.name, directory)
            elif not _remove_if_empty(entry.name, directory):
                # The number is unique among the directories at the top, because they are on one filesystem.
                os.rename(entry.name, f".{entry.inode()}", src_dir_fd=directory, dst_dir_fd=top)
            remaining -= 1
    return max(remaining, 0)


def _empty(top: int, parent: int, name: str, depth: int, max_entries: int) -> int:
    """Remove entries of a subdirectory. Return as `_remove_entries` does."""
    descriptor = os.open(name, DIRECTORY_FLAGS, dir_fd=parent)
    try:
        return _remove_entries(top, descriptor, depth + 1, max_entries)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> list[os.DirEntry[str]]:
    with os.scandir(descriptor) as entries:
        return list(islice(entries, BATCH))


def _remove_file(name: str, parent: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def _remove_if_empty(name: str, parent: int | None = None) -> bool:
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True

"""Ownership of a volume's files by the fsGroup of a pod (kubelet: SetVolumeOwnership). Driver.

Containers of other pods may change the volume meanwhile. Therefore directories are opened one by one from their parent
without following links, and no path is built.
"""

from __future__ import annotations

import errno
import os
import stat

from node_agent.volumes.mounts import OPEN_FLAGS
from node_agent.volumes.removal import DIRECTORY_FLAGS
from reconcile.errors import Refused

MAX_DEPTH = 128
"""Levels of directories. One descriptor is open for each level."""

FILE_MODE, DIRECTORY_MODE = 0o660, 0o2770
"""Permissions that the group gets, in addition to those that a file or directory has."""


def set_group(root: int, group: int, *, only_if_root_differs: bool) -> None:
    """Give everything below an open directory to a group. The directory itself is last.

    Therefore, an interrupted call is repeated even with `only_if_root_differs`. Raises Refused if the tree is deeper
    than MAX_DEPTH, and OSError.
    """
    if only_if_root_differs and _has_group(os.fstat(root), group):
        return
    levels = [_Level(".", root)]
    try:
        while levels:
            level = levels[-1]
            entry = next(level.entries, None)
            if entry is None:
                _set_group(".", level.descriptor, group)
                levels.pop().close()
            elif not entry.is_dir(follow_symlinks=False):
                _set_group(entry.name, level.descriptor, group)
            elif len(levels) == MAX_DEPTH:
                accepted = f"with fsGroup at most {MAX_DEPTH} levels are accepted; nothing deeper was changed"
                raise Refused(f"the volume has more than {MAX_DEPTH} levels of directories; {accepted}")
            else:
                _descend(levels, entry.name)
    finally:
        for level in levels:
            level.close()


class _Level:
    """An open directory and its entries that were not visited yet. Raises OSError."""

    def __init__(self, name: str, parent: int) -> None:
        self.descriptor = os.open(name, DIRECTORY_FLAGS, dir_fd=parent)
        self.entries = os.scandir(self.descriptor)

    def close(self) -> None:
        self.entries.close()
        os.close(self.descriptor)


def _descend(levels: list[_Level], name: str) -> None:
    """Open a subdirectory of the last level, unless a container has removed or replaced it meanwhile."""
    try:
        levels.append(_Level(name, levels[-1].descriptor))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise


def _set_group(name: str, parent: int, group: int) -> None:
    """Give one file or directory to a group. One that a container has removed meanwhile is skipped."""
    try:
        if _has_group(os.stat(name, dir_fd=parent, follow_symlinks=False), group):
            return
        descriptor = os.open(name, OPEN_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        return
    try:
        # The descriptor has no right to read or write, and fchown(2) does not accept it.
        path, status = f"/proc/self/fd/{descriptor}", os.fstat(descriptor)
        if stat.S_ISLNK(status.st_mode):
            return  # A link has no permissions, and its owner decides nothing.
        if status.st_gid != group:
            os.chown(path, -1, group)
            status = os.fstat(descriptor)
        os.chmod(path, stat.S_IMODE(status.st_mode) | _group_mode(status))
    finally:
        os.close(descriptor)


def _group_mode(status: os.stat_result) -> int:
    return DIRECTORY_MODE if stat.S_ISDIR(status.st_mode) else FILE_MODE


def _has_group(status: os.stat_result, group: int) -> bool:
    mode = _group_mode(status)
    return stat.S_ISLNK(status.st_mode) or (status.st_gid == group and status.st_mode & mode == mode)

"""Replaces all files of a volume atomically (kubelet: AtomicWriter). Driver.

The files are in a directory with the time in its name. The link `..data` points to that directory and is replaced by
one rename. The names that containers see are links `NAME -> ..data/NAME`.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from node_agent.volumes.payload import PayloadFile
from node_agent.volumes.removal import remove_tree

DATA_LINK, NEW_DATA_LINK = "..data", "..data_tmp"

DIRECTORY_MODE = 0o755

GROUP_DIRECTORY_MODE = 0o2755
"""Mode of directories that belong to the pod's group. Files created in them belong to the group, too."""

FileContent = tuple[bytes, int, int, int]
"""Content, mode, uid and gid of a file."""


def write_payload(root: Path, files: Mapping[str, PayloadFile], group: int | None = None) -> bool:
    """Replace the files of a volume, if they differ. `group` is the gid of their owner.

    Returns whether anything changed. Raises OSError.
    """
    data = root / DATA_LINK
    desired = {path: (file.content, file.mode, file.owner, group or 0) for path, file in files.items()}
    changed = not data.is_dir() or dict(_current_content(data)) != desired
    if changed:
        directory = _create_directory(root)
        _write_files(directory, files, group)
        (root / NEW_DATA_LINK).unlink(missing_ok=True)
        (root / NEW_DATA_LINK).symlink_to(directory.name)
        (root / NEW_DATA_LINK).rename(data)
    _update_links(root, {path.split("/")[0] for path in files})
    _remove_old_directories(root, data.readlink().name)
    return changed


def _current_content(directory: Path) -> Iterator[tuple[str, FileContent]]:
    for parent, _, names in os.walk(directory):
        for name in names:
            path = Path(parent, name)
            status = path.lstat()
            content = path.read_bytes()
            yield (
                str(path.relative_to(directory)),
                (content, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid),
            )


def _create_directory(root: Path) -> Path:
    directory = root / f"..{datetime.now(UTC):%Y_%m_%d_%H_%M_%S}.{random.randrange(10**9, 10**10)}"
    directory.mkdir()
    return directory


def _write_files(root: Path, files: Mapping[str, PayloadFile], group: int | None) -> None:
    for name, file in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)
        if file.owner:
            os.chown(path, file.owner, -1)
    for parent, _, names in os.walk(root):
        if group is not None:
            for name in names:
                os.lchown(Path(parent, name), -1, group)
            os.lchown(parent, -1, group)
        Path(parent).chmod(DIRECTORY_MODE if group is None else GROUP_DIRECTORY_MODE)


def _update_links(root: Path, names: set[str]) -> None:
    for name in names:
        link = root / name
        if not link.is_symlink():
            link.symlink_to(f"{DATA_LINK}/{name}")
    for entry in root.iterdir():
        if not entry.name.startswith("..") and entry.name not in names:
            entry.unlink()


def _remove_old_directories(root: Path, current: str) -> None:
    """Remove the directories of earlier writes, also of interrupted ones."""
    for entry in root.iterdir():
        if entry.name.startswith("..") and entry.name not in {DATA_LINK, current}:
            if entry.is_symlink():
                entry.unlink()
            else:
                remove_tree(entry)

"""Replaces all files of a volume atomically (kubelet: AtomicWriter). Driver.

The files are in a directory with the time in its name; `..data` links to it and is put in place with one rename; what
users see are links `NAME -> ..data/NAME`.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from node_agent.volumes.payload import File

CURRENT, NEXT = "..data", "..data_tmp"
DIRECTORY_MODE = 0o755
GROUP_DIRECTORY_MODE = 0o2755
"""Of directories that belong to a pod's group: what is made in them belongs to it too."""


def write_payload(root: Path, files: Mapping[str, File], group: int | None = None) -> bool:
    """Make these the files of the volume; `group` owns them. Returns whether anything changed. Raises OSError."""
    current = root / CURRENT
    changed = not current.is_dir() or dict(_held(current)) != _wanted(files, group)
    if changed:
        made = _new_directory(root)
        _fill(made, files, group)
        (root / NEXT).unlink(missing_ok=True)
        (root / NEXT).symlink_to(made.name)
        (root / NEXT).rename(current)
    _link(root, {path.split("/")[0] for path in files})
    _sweep(root, current.readlink().name)
    return changed


def _wanted(files: Mapping[str, File], group: int | None) -> dict[str, tuple[bytes, int, int, int]]:
    return {path: (file.content, file.mode, file.owner, group or 0) for path, file in files.items()}


def _held(directory: Path) -> Iterator[tuple[str, tuple[bytes, int, int, int]]]:
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            seen = path.lstat()
            content = path.read_bytes()
            yield str(path.relative_to(directory)), (content, stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid)


def _new_directory(root: Path) -> Path:
    made = root / f"..{datetime.now(UTC):%Y_%m_%d_%H_%M_%S}.{random.randrange(10**9, 10**10)}"
    made.mkdir()
    return made


def _fill(root: Path, files: Mapping[str, File], group: int | None) -> None:
    for name, file in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)
        if file.owner:
            os.chown(path, file.owner, -1)
    for folder, _, names in os.walk(root):
        if group is not None:
            for name in names:
                os.lchown(Path(folder, name), -1, group)
            os.lchown(folder, -1, group)
        Path(folder).chmod(DIRECTORY_MODE if group is None else GROUP_DIRECTORY_MODE)


def _link(root: Path, names: set[str]) -> None:
    for name in names:
        link = root / name
        if not link.is_symlink():
            link.symlink_to(f"{CURRENT}/{name}")
    for entry in root.iterdir():
        if not entry.name.startswith("..") and entry.name not in names:
            entry.unlink()


def _sweep(root: Path, current: str) -> None:
    """Directories of earlier writes, also of those that were never finished."""
    for entry in root.iterdir():
        if entry.name.startswith("..") and entry.name not in {CURRENT, current}:
            entry.unlink() if entry.is_symlink() else shutil.rmtree(entry)

"""Cgroups as directories (driver cgroupfs), v1 and v2. Driver."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from node_agent.cgroups import hierarchy
from node_agent.cgroups.hierarchy import CgroupLimits, CgroupPath
from reconcile.errors import NotReady

MOUNT = Path("/sys/fs/cgroup")

INHERITED_FILES = ("cpuset.cpus", "cpuset.mems")
"""Files that are empty in a new cgroup of version 1. Processes can join the cgroup only after both are written."""

UNIFIED_DIR = "unified"
"""Mount of version 2 next to version 1. It has no controllers; runc creates cgroups there, this agent does not."""

CONTROLLERS = "+cpu +memory +pids"


class CgroupfsDriver:
    """The cgroup hierarchies mounted below one directory. Cgroups are directories in them."""

    def __init__(self, mount: Path = MOUNT) -> None:
        self._mount = mount
        self.version = 2 if (mount / "cgroup.controllers").exists() else 1

    def cgroup_parent(self, cgroup: CgroupPath) -> str:
        """Return Docker's name for a cgroup, for its option cgroup-parent."""
        return hierarchy.cgroupfs_path(cgroup)

    def create(self, cgroup: CgroupPath, limits: CgroupLimits) -> str:
        """Create or update a cgroup with its ancestors, and set its limits. Returns Docker's name for the cgroup.

        Raises NotReady if the host does not allow it.
        """
        path = hierarchy.cgroupfs_path(cgroup)
        try:
            for root in self._hierarchies():
                if root.name != UNIFIED_DIR:
                    _create(root, root / path.strip("/"), self.version)
        except OSError as error:
            raise NotReady(f"control group {path}: {error.filename or 'cpuset'}: {error.strerror}") from None
        for limit in hierarchy.limit_files(limits, self.version):
            root = self._mount / limit.controller if self.version == 1 else self._mount
            file = root / path.lstrip("/") / limit.file
            try:
                file.write_text(limit.text)
            except OSError as error:
                raise NotReady(f"{file} does not accept {limit.text!r}: {error.strerror}") from None
        return path

    def remove(self, cgroup: CgroupPath) -> None:
        """Remove a cgroup with its descendants. Raises NotReady while a process is in one of them."""
        self.remove_directory(hierarchy.cgroupfs_path(cgroup))

    def children(self, cgroup: CgroupPath) -> set[str]:
        """Return the names of the cgroups directly within this one."""
        return self.directories(hierarchy.cgroupfs_path(cgroup))

    def directories(self, path: str) -> set[str]:
        """Return the names of the directories directly within a cgroup, of all hierarchies."""
        names = set[str]()
        for root in self._hierarchies():
            with contextlib.suppress(FileNotFoundError), os.scandir(root / path.lstrip("/")) as entries:
                names.update(entry.name for entry in entries if entry.is_dir())
        return names

    def has_directory(self, path: str) -> bool:
        """Return whether any hierarchy has this cgroup."""
        return any((root / path.lstrip("/")).is_dir() for root in self._hierarchies())

    def has_processes(self, path: str) -> bool:
        """Return whether a process is in this cgroup or in one of its descendants."""
        # os.walk ignores cgroups that are removed meanwhile.
        directories = (Path(name) for root in self._hierarchies() for name, _, _ in os.walk(root / path.lstrip("/")))
        return any(_read(directory / "cgroup.procs") for directory in directories)

    def remove_directory(self, path: str) -> None:
        """Remove the cgroup with this path, with its descendants. Raises NotReady while a process is in one of them."""
        for root in self._hierarchies():
            cgroup = root / path.lstrip("/")
            try:
                for descendant in sorted((entry for entry in cgroup.rglob("*") if entry.is_dir()), reverse=True):
                    descendant.rmdir()
                if cgroup.is_dir():
                    cgroup.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise NotReady(f"control group {cgroup}: {error.strerror}") from None

    def _hierarchies(self) -> Iterator[Path]:
        """Yield the root directory of each hierarchy."""
        if self.version == 2:
            yield self._mount
            return
        for entry in sorted(self._mount.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                yield entry


def _read(file: Path) -> str:
    """Return the content of a file, or an empty string if the cgroup was removed or is threaded (version 2)."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _create(root: Path, cgroup: Path, version: int) -> None:
    """Create a cgroup in one hierarchy, if needed with its ancestors."""
    if cgroup == root or _is_initialized(cgroup, version):
        return
    _create(root, cgroup.parent, version)
    if version == 2:
        (cgroup.parent / "cgroup.subtree_control").write_text(CONTROLLERS)
    cgroup.mkdir(exist_ok=True)
    for name in INHERITED_FILES if version == 1 else ():
        with contextlib.suppress(FileNotFoundError):
            if not (cgroup / name).read_text().strip():
                (cgroup / name).write_text((cgroup.parent / name).read_text())


def _is_initialized(cgroup: Path, version: int) -> bool:
    if version == 2:
        return cgroup.is_dir()
    try:
        return cgroup.is_dir() and bool((cgroup / INHERITED_FILES[-1]).read_text().strip())
    except FileNotFoundError:
        return True  # Hierarchies without the controller cpuset have no such file.

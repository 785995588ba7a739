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
INHERITED = ("cpuset.cpus", "cpuset.mems")
"""Empty in a new group of version 1, and nothing can run in it until they are written, in this order."""

UNIFIED = "unified"
"""Version 2 beside version 1, without controllers: runc makes groups there, we have no use for them."""

CONTROLLERS = "+cpu +memory +pids"


class CgroupfsDriver:
    """The hierarchies that are mounted under one directory; groups are directories in them."""

    def __init__(self, mount: Path = MOUNT) -> None:
        self._mount = mount
        self.version = 2 if (mount / "cgroup.controllers").exists() else 1

    def name(self, group: CgroupPath) -> str:
        """What Docker is told of a group."""
        return hierarchy.cgroupfs_path(group)

    def make(self, group: CgroupPath, limits: CgroupLimits) -> str:
        """The group with its limits, and those above it; returns what Docker is told of it.

        Raises NotReady where the machine does not allow it.
        """
        path = hierarchy.cgroupfs_path(group)
        try:
            for top in self._hierarchies():
                if top.name != UNIFIED:
                    _make(top, top / path.strip("/"), self.version)
        except OSError as error:
            raise NotReady(f"control group {path}: {error.filename or 'cpuset'}: {error.strerror}") from None
        for value in hierarchy.limit_files(limits, self.version):
            top = self._mount / value.controller if self.version == 1 else self._mount
            file = top / path.lstrip("/") / value.file
            try:
                file.write_text(value.text)
            except OSError as error:
                raise NotReady(f"{file} does not take {value.text!r}: {error.strerror}") from None
        return path

    def remove(self, group: CgroupPath) -> None:
        """The group with all below it, which must be empty of processes. Raises NotReady while it is not."""
        self.remove_directory(hierarchy.cgroupfs_path(group))

    def below(self, group: CgroupPath) -> set[str]:
        """The last names of the groups within this one."""
        return self.directories(hierarchy.cgroupfs_path(group))

    def directories(self, path: str) -> set[str]:
        """The names of the directories in a group, of all hierarchies."""
        found = set[str]()
        for top in self._hierarchies():
            with contextlib.suppress(FileNotFoundError), os.scandir(top / path.lstrip("/")) as entries:
                found.update(entry.name for entry in entries if entry.is_dir())
        return found

    def has_directory(self, path: str) -> bool:
        """Whether any hierarchy has this group."""
        return any((top / path.lstrip("/")).is_dir() for top in self._hierarchies())

    def has_processes(self, path: str) -> bool:
        """Whether anything runs in this group or below it."""
        # A walk does not mind groups that go meanwhile.
        places = (Path(place) for top in self._hierarchies() for place, _, _ in os.walk(top / path.lstrip("/")))
        return any(_text(place / "cgroup.procs") for place in places)

    def remove_directory(self, path: str) -> None:
        """As `remove`, by its path."""
        for top in self._hierarchies():
            group = top / path.lstrip("/")
            try:
                for below in sorted((one for one in group.rglob("*") if one.is_dir()), reverse=True):
                    below.rmdir()
                if group.is_dir():
                    group.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise NotReady(f"control group {group}: {error.strerror}") from None

    def _hierarchies(self) -> Iterator[Path]:
        if self.version == 2:
            yield self._mount
            return
        for entry in sorted(self._mount.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                yield entry


def _text(file: Path) -> str:
    """Empty when the group has gone, or is one of threads (version 2)."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _make(top: Path, group: Path, version: int) -> None:
    """The group in one hierarchy; those above it are looked at only where it is not as it should be."""
    if group == top or _is_made(group, version):
        return
    _make(top, group.parent, version)
    if version == 2:
        (group.parent / "cgroup.subtree_control").write_text(CONTROLLERS)
    group.mkdir(exist_ok=True)
    for name in INHERITED if version == 1 else ():
        with contextlib.suppress(FileNotFoundError):
            if not (group / name).read_text().strip():
                (group / name).write_text((group.parent / name).read_text())


def _is_made(group: Path, version: int) -> bool:
    if version == 2:
        return group.is_dir()
    try:
        return group.is_dir() and bool((group / INHERITED[-1]).read_text().strip())
    except FileNotFoundError:
        return True  # This hierarchy has nothing to inherit.

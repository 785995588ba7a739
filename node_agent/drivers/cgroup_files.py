"""Reads what control groups use, in both versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from node_agent.drivers.cgroups import MOUNT
from node_agent.stats.uses import Use, memberships, use

PROC = Path("/proc")


class CgroupFiles:
    """The hierarchies that are mounted under one directory."""

    def __init__(self, mount: Path = MOUNT, proc: Path = PROC) -> None:
        self._mount = str(mount)
        self._proc = str(proc)
        self.version = 2 if (mount / "cgroup.controllers").exists() else 1

    def groups_of(self, pid: int) -> dict[str, str]:
        """Controller → path of the group that a process is in (cgroups(7)); empty when it has ended."""
        return memberships(text(f"{self._proc}/{pid}/cgroup"))

    def use(self, groups: Mapping[str, str], files: Mapping[int, Sequence[tuple[str, str]]]) -> Use | None:
        """What the group uses, as far as these files tell; None when it has gone."""
        texts = {}
        for controller, name in files[self.version]:
            if controller in groups:
                found = text(f"{self._mount}/{controller}{groups[controller]}/{name}")
                if found:
                    texts[name] = found
        return use(texts, self.version)


def text(path: str) -> str:
    """Empty when it is gone: a container may end at any time."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""

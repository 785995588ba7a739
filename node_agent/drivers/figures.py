"""Looks at what the machine, its pods and their containers use now: files of /proc and of control groups, no Docker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from node_agent.cgroups import Group
from node_agent.cgroups import path as cgroupfs_path
from node_agent.drivers.cgroup_files import PROC, CgroupFiles, text
from node_agent.observed import Container
from node_agent.slices import path as slice_path
from node_agent.stats.figures import ContainerFigures, Figures, KnownPod, PodFigures
from node_agent.stats.machine import FILES, Link, Machine, links, machine
from node_agent.stats.uses import BRIEF, FULL, Use, above, total

CONTROLLERS = ("memory", "")
"""By the group of which we name a container's: that of memory in version 1."""


class Look:
    """Looks again and again; remembers only where the groups of containers are."""

    def __init__(self, top: Group, files: CgroupFiles, proc: Path = PROC) -> None:
        self._top = top
        self._files = files
        self._proc = str(proc)
        self._groups: dict[str, dict[str, str]] = {}

    def machine(self) -> Machine:
        """The machine alone."""
        return machine({name: text(f"{self._proc}/{name}") for name in FILES})

    def figures(self, pods: Iterable[KnownPod], *, full: bool) -> Figures:
        """All that runs. `full`: also what is beside CPU and memory."""
        known, self._groups = self._groups, {}
        found = [one for pod in pods if (one := self._pod(pod, known, full=full)) is not None]
        return Figures(time.time(), self.machine(), tuple(found), self._everyone())

    def _pod(self, known: KnownPod, groups: Mapping[str, dict[str, str]], *, full: bool) -> PodFigures | None:
        seen = [one for one in known.seen.everything if one.pid]
        found = {one.id: figures for one in seen if (figures := self._container(one, groups, full=full))}
        if not found:
            return None
        sandbox = next((one for one in found.values() if one.container.is_sandbox), None)
        own = tuple(one for one in found.values() if not one.container.is_sandbox)
        first = sandbox or own[0]
        group, use = self._above(known.pod.metadata.uid, first.container.id, full=full)
        return PodFigures(
            pod=known.pod,
            group=group,
            use=use or total([one.use for one in found.values()]),
            at=time.time(),
            containers=own,
            sandbox=sandbox,
            links=self._links(known, first) if full else None,
        )

    def _container(
        self, one: Container, groups: Mapping[str, dict[str, str]], *, full: bool
    ) -> ContainerFigures | None:
        """None for one that has ended, even if another process has its number by now."""
        group = groups.get(one.id) or self._files.groups_of(one.pid)
        path = next((group[controller] for controller in CONTROLLERS if controller in group), "")
        if one.id not in path:
            return None
        used = self._files.use(group, FULL if full else BRIEF)
        if used is None:
            return None
        self._groups[one.id] = group
        return ContainerFigures(one, path, used, time.time())

    def _above(self, uid: str, container: str, *, full: bool) -> tuple[str, Use | None]:
        """The pod's own group, if its containers are in one that bears its name."""
        group = above(self._groups[container])
        path = next((group[controller] for controller in CONTROLLERS if controller in group), "")
        if uid not in path.rpartition("/")[2].replace("_", "-"):
            return "", None
        return path, self._files.use(group, FULL if full else BRIEF)

    def _links(self, known: KnownPod, one: ContainerFigures) -> tuple[Link, ...] | None:
        if known.pod.spec.host_network:
            return None
        return links(text(f"{self._proc}/{one.container.pid}/net/dev"))

    def _everyone(self) -> tuple[str, Use] | None:
        """The group of all pods, made by whichever of Docker's drivers is in use."""
        for path in (cgroupfs_path(self._top), slice_path(self._top)):
            controllers = ("cpuacct", "cpu", "memory", "pids") if self._files.version == 1 else ("",)
            used = self._files.use(dict.fromkeys(controllers, path), FULL)
            if used is not None:
                return path, used
        return None

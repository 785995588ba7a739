"""Reads /proc and cgroup files. Driver."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from node_agent.cgroups.cgroupfs import MOUNT
from node_agent.cgroups.hierarchy import CgroupPath, cgroupfs_path, slice_path
from node_agent.runtime.container import RuntimeContainer
from node_agent.stats.cgroup_stats import (
    BRIEF,
    FULL,
    MEMORY,
    TASKS,
    CgroupUsage,
    parent_groups,
    parse_memberships,
    parse_usage,
    sum_usage,
)
from node_agent.stats.machine import FILES, MachineStats, NetworkInterface, parse_interfaces, parse_machine
from node_agent.stats.model import ContainerStats, NodeStats, PodStats, PodWithContainers
from reconcile.errors import NotReady

PROC = Path("/proc")


class CgroupReader:
    """The hierarchies that are mounted under one directory."""

    def __init__(self, mount: Path = MOUNT, proc: Path = PROC) -> None:
        self._mount = str(mount)
        self._proc = str(proc)
        self.version = 2 if (mount / "cgroup.controllers").exists() else 1

    def groups_of(self, pid: int) -> dict[str, str]:
        """Controller → path of the group that a process is in (cgroups(7)); empty when it has ended."""
        return parse_memberships(read_text(f"{self._proc}/{pid}/cgroup"))

    def use(self, groups: Mapping[str, str], files: Mapping[int, Sequence[tuple[str, str]]]) -> CgroupUsage | None:
        """What the group uses, as far as these files tell; None when it has gone."""
        texts = {}
        for controller, name in files[self.version]:
            if controller in groups:
                found = read_text(f"{self._mount}/{controller}{groups[controller]}/{name}")
                if found:
                    texts[name] = found
        return parse_usage(texts, self.version)


def read_text(path: str) -> str:
    """Empty when it is gone: a container may end at any time."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def working_set_bytes(pid: int) -> int:
    """The working set of the container that a process is in, in bytes; 0 when it has ended."""
    found = CgroupReader()
    used = found.use(found.groups_of(pid), MEMORY)
    return used.working_set if used is not None else 0


def task_count(pid: int) -> int:
    """How many processes and threads the container has; 0 when it has ended."""
    found = CgroupReader()
    used = found.use(found.groups_of(pid), TASKS)
    return used.tasks if used is not None else 0


@contextmanager
def _mapped(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotReady(f"{what}: {error.strerror or error}") from None


CONTROLLERS = ("memory", "")
"""By the group of which we name a container's: that of memory in version 1."""


class StatsCollector:
    """Looks again and again; remembers only where the groups of containers are."""

    def __init__(self, top: CgroupPath, files: CgroupReader, proc: Path = PROC) -> None:
        self._top = top
        self._files = files
        self._proc = str(proc)
        self._groups: dict[str, dict[str, str]] = {}

    def machine(self) -> MachineStats:
        """The machine alone."""
        return parse_machine({name: read_text(f"{self._proc}/{name}") for name in FILES})

    def figures(self, pods: Iterable[PodWithContainers], *, full: bool) -> NodeStats:
        """All that runs. `full`: also what is beside CPU and memory."""
        known, self._groups = self._groups, {}
        found = [one for pod in pods if (one := self._pod(pod, known, full=full)) is not None]
        return NodeStats(time.time(), self.machine(), tuple(found), self._everyone())

    def _pod(self, known: PodWithContainers, groups: Mapping[str, dict[str, str]], *, full: bool) -> PodStats | None:
        seen = [one for one in known.containers.all if one.pid]
        found = {one.id: figures for one in seen if (figures := self._container(one, groups, full=full))}
        if not found:
            return None
        sandbox = next((one for one in found.values() if one.container.is_sandbox), None)
        own = tuple(one for one in found.values() if not one.container.is_sandbox)
        first = sandbox or own[0]
        group, use = self._above(known.pod.metadata.uid, first.container.id, full=full)
        return PodStats(
            pod=known.pod,
            group=group,
            use=use or sum_usage([one.use for one in found.values()]),
            at=time.time(),
            containers=own,
            sandbox=sandbox,
            links=self._links(known, first) if full else None,
        )

    def _container(
        self, one: RuntimeContainer, groups: Mapping[str, dict[str, str]], *, full: bool
    ) -> ContainerStats | None:
        """None for one that has ended, even if another process has its number by now."""
        group = groups.get(one.id) or self._files.groups_of(one.pid)
        path = next((group[controller] for controller in CONTROLLERS if controller in group), "")
        if one.id not in path:
            return None
        used = self._files.use(group, FULL if full else BRIEF)
        if used is None:
            return None
        self._groups[one.id] = group
        return ContainerStats(one, path, used, time.time())

    def _above(self, uid: str, container: str, *, full: bool) -> tuple[str, CgroupUsage | None]:
        """The pod's own group, if its containers are in one that bears its name."""
        group = parent_groups(self._groups[container])
        path = next((group[controller] for controller in CONTROLLERS if controller in group), "")
        if uid not in path.rpartition("/")[2].replace("_", "-"):
            return "", None
        return path, self._files.use(group, FULL if full else BRIEF)

    def _links(self, known: PodWithContainers, one: ContainerStats) -> tuple[NetworkInterface, ...] | None:
        if known.pod.spec.host_network:
            return None
        return parse_interfaces(read_text(f"{self._proc}/{one.container.pid}/net/dev"))

    def _everyone(self) -> tuple[str, CgroupUsage] | None:
        """The group of all pods, made by whichever of Docker's drivers is in use."""
        for path in (cgroupfs_path(self._top), slice_path(self._top)):
            controllers = ("cpuacct", "cpu", "memory", "pids") if self._files.version == 1 else ("",)
            used = self._files.use(dict.fromkeys(controllers, path), FULL)
            if used is not None:
                return path, used
        return None

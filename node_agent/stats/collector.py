"""Reads /proc and cgroup files. Driver."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from node_agent.cgroups.cgroupfs import MOUNT
from node_agent.cgroups.hierarchy import CgroupPath, cgroupfs_path, slice_path
from node_agent.runtime.container import RuntimeContainer
from node_agent.stats.cgroup_stats import (
    ALL_FILES,
    CPU_AND_MEMORY_FILES,
    MEMORY_FILES,
    TASK_FILES,
    CgroupUsage,
    Files,
    parent_cgroups,
    parse_memberships,
    parse_usage,
    sum_usage,
)
from node_agent.stats.machine import FILES, MachineStats, NetworkInterface, parse_interfaces, parse_machine
from node_agent.stats.model import ContainerStats, NodeStats, PodStats, PodWithContainers

PROC = Path("/proc")

NAMING_CONTROLLERS = ("memory", "")
"""Controllers of the cgroup by which a container is identified: memory in version 1, none in version 2."""

POD_CONTROLLERS = ("cpuacct", "cpu", "memory", "pids")
"""Controllers of the cgroup of all pods in version 1."""


class CgroupReader:
    """The cgroup hierarchies under one mount directory."""

    def __init__(self, mount: Path = MOUNT, proc: Path = PROC) -> None:
        self._mount = str(mount)
        self._proc = str(proc)
        self.version = 2 if (mount / "cgroup.controllers").exists() else 1

    def cgroups_of(self, pid: int) -> dict[str, str]:
        """Return the paths of a process's cgroups by controller (cgroups(7)), empty if the process has exited."""
        return parse_memberships(read_text(f"{self._proc}/{pid}/cgroup"))

    def usage(self, cgroups: Mapping[str, str], files: Files) -> CgroupUsage | None:
        """Return the usage of a cgroup as far as the files contain it, None if the cgroup does not exist."""
        texts = {}
        for controller, name in files[self.version]:
            if controller in cgroups:
                text = read_text(f"{self._mount}/{controller}{cgroups[controller]}/{name}")
                if text:
                    texts[name] = text
        return parse_usage(texts, self.version)


def read_text(path: str) -> str:
    """Return the content of a file, empty if it does not exist, because a container may exit at any time."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def working_set_bytes(pid: int) -> int:
    """Return the working set in bytes of the container of a process, 0 if the process has exited."""
    reader = CgroupReader()
    usage = reader.usage(reader.cgroups_of(pid), MEMORY_FILES)
    return usage.working_set if usage is not None else 0


def task_count(pid: int) -> int:
    """Return the number of processes and threads in the container of a process, 0 if the process has exited."""
    reader = CgroupReader()
    usage = reader.usage(reader.cgroups_of(pid), TASK_FILES)
    return usage.tasks if usage is not None else 0


class StatsCollector:
    """Collects the usage of the machine, of pods and of containers. Remembers only the cgroups of containers.

    `pods_cgroup` is the cgroup of all pods.
    """

    def __init__(self, pods_cgroup: CgroupPath, cgroups: CgroupReader, proc: Path = PROC) -> None:
        self._pods_cgroup = pods_cgroup
        self._cgroups = cgroups
        self._proc = str(proc)
        self._container_cgroups: dict[str, dict[str, str]] = {}

    def collect_machine(self) -> MachineStats:
        """Return the usage of the machine."""
        return parse_machine({name: read_text(f"{self._proc}/{name}") for name in FILES})

    def collect(self, pods: Iterable[PodWithContainers], *, full: bool) -> NodeStats:
        """Return the usage of the machine and of everything that runs. Without `full`, only CPU and memory."""
        cached_cgroups = self._container_cgroups
        self._container_cgroups = {}
        stats = [self._collect_pod(pod, cached_cgroups, full=full) for pod in pods]
        running = tuple(pod for pod in stats if pod is not None)
        return NodeStats(time.time(), self.collect_machine(), running, self._collect_all_pods())

    def _collect_pod(
        self, pod: PodWithContainers, cached_cgroups: Mapping[str, dict[str, str]], *, full: bool
    ) -> PodStats | None:
        """Return the usage of a pod, None if nothing of it runs."""
        collected = [
            stats
            for container in pod.containers.all
            if container.pid and (stats := self._collect_container(container, cached_cgroups, full=full)) is not None
        ]
        if not collected:
            return None
        sandbox = next((stats for stats in collected if stats.container.is_sandbox), None)
        containers = tuple(stats for stats in collected if not stats.container.is_sandbox)
        first_container = sandbox or containers[0]
        cgroup, usage = self._collect_pod_cgroup(pod.pod.metadata.uid, first_container.container.id, full=full)
        return PodStats(
            pod=pod.pod,
            cgroup=cgroup,
            usage=usage or sum_usage([stats.usage for stats in collected]),
            at=time.time(),
            containers=containers,
            sandbox=sandbox,
            interfaces=self._read_interfaces(pod, first_container) if full else None,
        )

    def _collect_container(
        self, container: RuntimeContainer, cached_cgroups: Mapping[str, dict[str, str]], *, full: bool
    ) -> ContainerStats | None:
        """Return the usage of a container, None if it has exited, even if another process has its PID now."""
        cgroups = cached_cgroups.get(container.id) or self._cgroups.cgroups_of(container.pid)
        path = _naming_path(cgroups)
        if container.id not in path:
            return None
        usage = self._cgroups.usage(cgroups, ALL_FILES if full else CPU_AND_MEMORY_FILES)
        if usage is None:
            return None
        self._container_cgroups[container.id] = cgroups
        return ContainerStats(container, path, usage, time.time())

    def _collect_pod_cgroup(self, uid: str, container_id: str, *, full: bool) -> tuple[str, CgroupUsage | None]:
        """Return path and usage of the pod's cgroup. The path is empty if the pod has no cgroup of its own."""
        cgroups = parent_cgroups(self._container_cgroups[container_id])
        path = _naming_path(cgroups)
        if uid not in path.rpartition("/")[2].replace("_", "-"):
            return "", None
        return path, self._cgroups.usage(cgroups, ALL_FILES if full else CPU_AND_MEMORY_FILES)

    def _read_interfaces(self, pod: PodWithContainers, stats: ContainerStats) -> tuple[NetworkInterface, ...] | None:
        if pod.pod.spec.host_network:
            return None
        return parse_interfaces(read_text(f"{self._proc}/{stats.container.pid}/net/dev"))

    def _collect_all_pods(self) -> tuple[str, CgroupUsage] | None:
        """Return path and usage of the cgroup of all pods, whichever of Docker's cgroup drivers created it."""
        controllers = POD_CONTROLLERS if self._cgroups.version == 1 else ("",)
        for path in (cgroupfs_path(self._pods_cgroup), slice_path(self._pods_cgroup)):
            usage = self._cgroups.usage(dict.fromkeys(controllers, path), ALL_FILES)
            if usage is not None:
                return path, usage
        return None


def _naming_path(cgroups: Mapping[str, str]) -> str:
    return next((cgroups[controller] for controller in NAMING_CONTROLLERS if controller in cgroups), "")

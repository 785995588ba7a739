"""Usage of the node, pods and containers at one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from api.core.pod import Pod
from node_agent.runtime.container import RuntimeContainer, RuntimePod
from node_agent.stats.cgroup_stats import CgroupUsage
from node_agent.stats.machine import MachineStats, NetworkInterface


@dataclass(frozen=True, slots=True)
class FilesystemStats:
    """A file system: bytes and inodes, those that are free for everybody, and all."""

    available: int
    capacity: int
    inodes_free: int
    inodes: int
    reserved: int = 0
    """Bytes that are free for root alone."""

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return self.capacity - self.available - self.reserved

    @property
    def percent_used(self) -> int:
        """How much is not available, in whole percent, rounded up as kubelet does."""
        return 100 - self.available * 100 // self.capacity if self.capacity else 100

    def excess(self, percent: int) -> int:
        """How many bytes have to go so that no more than so many percent are in use."""
        return max(self.capacity * (100 - percent) // 100 - self.available, 0)


@dataclass(frozen=True, slots=True)
class PodWithContainers:
    """A pod that is here, with its containers as they were last seen."""

    pod: Pod
    containers: RuntimePod


class DiskUsage(NamedTuple):
    """What is taken of a disk: bytes and inodes."""

    size: int = 0
    inodes: int = 0


@dataclass(frozen=True, slots=True)
class PodDiskUsage:
    """What a pod takes of disks, as of `at` (seconds since 1970): what containers have written and logged, by id, and
    volumes that are its own, by name; of those in memory also the file systems.
    """

    at: float = 0.0
    written: Mapping[str, DiskUsage] = field(default_factory=dict)
    logs: Mapping[str, DiskUsage] = field(default_factory=dict)
    volumes: Mapping[str, DiskUsage] = field(default_factory=dict)
    memory: Mapping[str, FilesystemStats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerStats:
    """A container that runs; `group` is the path of its control group, `at` when it was looked at."""

    container: RuntimeContainer
    group: str
    use: CgroupUsage
    at: float


@dataclass(frozen=True, slots=True)
class PodStats:
    """A pod of which something runs. `group` is empty where it has no control group of its own.

    `links` are None where it has the node's. `claims` are the file systems of its claims, by the volume's name.
    """

    pod: Pod
    group: str
    use: CgroupUsage
    at: float
    containers: tuple[ContainerStats, ...] = ()
    sandbox: ContainerStats | None = None
    links: tuple[NetworkInterface, ...] | None = None
    disk: PodDiskUsage | None = None
    claims: Mapping[str, FilesystemStats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeStats:
    """One look, at `at` (seconds since 1970). `everyone` is what all pods use, with the path of their group.

    `node_disk` has the agent's state, `image_disk` what Docker keeps.
    """

    at: float
    machine: MachineStats
    pods: tuple[PodStats, ...] = ()
    everyone: tuple[str, CgroupUsage] | None = None
    node_disk: FilesystemStats | None = None
    image_disk: FilesystemStats | None = None


def cpu_times(figures: NodeStats) -> dict[str, int]:
    """What rates are made from: the machine by the empty name, pods by their uid, containers by their id."""
    times = {"": figures.machine.cpu}
    if figures.everyone is not None:
        times[figures.everyone[0]] = figures.everyone[1].cpu
    for pod in figures.pods:
        times[pod.pod.metadata.uid] = pod.use.cpu
        times |= {one.container.id: one.use.cpu for one in pod.containers}
    return times


def nano_cores(before: int, after: int, seconds: float) -> int:
    """Of a CPU time in nanoseconds, how much of a core it takes in billionths; one that went back has begun anew."""
    return int((after - before if after >= before else after) / seconds) if seconds > 0 else 0

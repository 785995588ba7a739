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
    """Bytes and inodes of a file system. `available` and `inodes_free` do not include what is reserved for root."""

    available: int
    capacity: int
    inodes_free: int
    inodes: int
    reserved: int = 0
    """Bytes that only root can use."""

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self.capacity - self.available - self.reserved

    @property
    def percent_used(self) -> int:
        """Part that is not available, in whole percent, rounded up as in the kubelet."""
        return 100 - self.available * 100 // self.capacity if self.capacity else 100

    def excess(self, percent: int) -> int:
        """Return the bytes to free so that at most `percent` percent are in use."""
        return max(self.capacity * (100 - percent) // 100 - self.available, 0)


@dataclass(frozen=True, slots=True)
class PodWithContainers:
    """A pod of this node, with its containers as they were read last."""

    pod: Pod
    containers: RuntimePod


class DiskUsage(NamedTuple):
    """Bytes and inodes in use."""

    size: int = 0
    inodes: int = 0


@dataclass(frozen=True, slots=True)
class PodDiskUsage:
    """The disk usage of a pod at the time `at` (seconds since 1970).

    `rootfs` are the writable layers of containers with the volumes of their images, and `logs` their logs, by container
    ID. `volumes` are the volumes that belong to the pod, by name. `memory_filesystems` are the file systems of those in
    memory. `managed_files` are the files of the agent that containers may write: termination messages, /etc/hosts and
    /etc/resolv.conf.
    """

    at: float = 0.0
    rootfs: Mapping[str, DiskUsage] = field(default_factory=dict)
    logs: Mapping[str, DiskUsage] = field(default_factory=dict)
    volumes: Mapping[str, DiskUsage] = field(default_factory=dict)
    memory_filesystems: Mapping[str, FilesystemStats] = field(default_factory=dict)
    managed_files: DiskUsage = field(default_factory=lambda: DiskUsage(0))


@dataclass(frozen=True, slots=True)
class ContainerStats:
    """The usage of a running container at the time `at`. `cgroup` is the path of its cgroup."""

    container: RuntimeContainer
    cgroup: str
    usage: CgroupUsage
    at: float


@dataclass(frozen=True, slots=True)
class PodStats:
    """The usage of a pod with running containers.

    `cgroup` is empty if the pod has no cgroup of its own. `interfaces` are None if it has the node's network. `claims`
    are the file systems of its PersistentVolumeClaims, by volume name.
    """

    pod: Pod
    cgroup: str
    usage: CgroupUsage
    at: float
    containers: tuple[ContainerStats, ...] = ()
    sandbox: ContainerStats | None = None
    interfaces: tuple[NetworkInterface, ...] | None = None
    disk: PodDiskUsage | None = None
    claims: Mapping[str, FilesystemStats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeStats:
    """The usage of the node at the time `at` (seconds since 1970).

    `all_pods` is the path and the usage of the cgroup of all pods. `node_fs` is the file system with the state of the
    agent, `image_fs` that with Docker's images.
    """

    at: float
    machine: MachineStats
    pods: tuple[PodStats, ...] = ()
    all_pods: tuple[str, CgroupUsage] | None = None
    node_fs: FilesystemStats | None = None
    image_fs: FilesystemStats | None = None


def cpu_times(stats: NodeStats) -> dict[str, int]:
    """Return the CPU times from which rates are computed, in nanoseconds.

    The keys are an empty string for the machine, the path of the cgroup of all pods, pod UIDs and container IDs.
    """
    times = {"": stats.machine.cpu}
    if stats.all_pods is not None:
        path, usage = stats.all_pods
        times[path] = usage.cpu
    for pod in stats.pods:
        times[pod.pod.metadata.uid] = pod.usage.cpu
        times |= {container.container.id: container.usage.cpu for container in pod.containers}
    return times


def nano_cores(before: int, after: int, seconds: float) -> int:
    """Return the rate between two CPU times (nanoseconds), in billionths of a core.

    A CPU time that decreased was reset in between.
    """
    used = after - before if after >= before else after
    return int(used / seconds) if seconds > 0 else 0

"""Cgroup paths, limits and files; slice names and properties; CPU shares and quota. Pure.

The hierarchy is that of kubelet: `kubepods`, in it `burstable` and `besteffort`, and in these a cgroup for each pod.
The cgroups of Guaranteed pods are directly in `kubepods`. A cgroup is a directory with the files of this module
(Docker's driver `cgroupfs`), or a slice of systemd (driver `systemd`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from api.core.pod import Pod
from api.core.resource_requests import cpu_limit, cpu_request, memory_limit, pod_limit, pod_request

KUBEPODS = "kubepods"
POD_PREFIX = "pod"
BURSTABLE, BEST_EFFORT = "burstable", "besteffort"

QOS_PARENTS = {"Burstable": (BURSTABLE,), "BestEffort": (BEST_EFFORT,)}
"""Quality of service class → names of the cgroups between `kubepods` and the pod's cgroup."""

CPU_PERIOD = 100_000
"""Period of the CPU quota in µs."""

MIN_QUOTA = 1_000
MIN_SHARES, MAX_SHARES = 2, 262_144
MIN_WEIGHT, MAX_WEIGHT = 1, 10_000

SLICE_SUFFIX = ".slice"
UNLIMITED = 2**64 - 1

PERIODS_PER_SECOND = 10
"""CPU periods in a second: systemd counts the quota by the second."""

PERCENT_US = 10_000
"""µs in a percent of a second. systemd stores whole percents, and a container may not have more than its slice."""


class CgroupPath(NamedTuple):
    """The names of a cgroup and of its ancestors, from the root of the hierarchy."""

    names: tuple[str, ...]

    def child(self, *names: str) -> CgroupPath:
        """Return the path of a cgroup within this one."""
        return CgroupPath((*self.names, *names))


class CgroupLimits(NamedTuple):
    """CPU shares, CPU quota in µs per 100 ms, memory in bytes, number of processes. 0 is no limit."""

    shares: int = MIN_SHARES
    quota: int = 0
    memory: int = 0
    pids: int = 0


class PodsCapacity(NamedTuple):
    """Resources of all pods together: cores, and memory in bytes.

    `pids` is the number of processes that one pod may have; 0 is no limit. Without `cpu_cfs_quota`, CPU limits are not
    enforced.
    """

    cpus: int
    memory: int
    pids: int = 0
    cpu_cfs_quota: bool = True


class CgroupFile(NamedTuple):
    """The text for one file of a cgroup. `controller` is used with cgroup v1 only."""

    controller: str
    file: str
    text: str


class Property(NamedTuple):
    """A property of a systemd unit on D-Bus: its name, and its signature and value."""

    name: str
    value: tuple[str, int | bool | str]


def cpu_shares(milli: int) -> int:
    """Return the CPU shares for a request in thousandths of a core."""
    return min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def cpu_quota(milli: int) -> int:
    """Return the quota in µs per 100 ms for a limit in thousandths of a core. 0 is no limit."""
    return max(milli * CPU_PERIOD // 1000, MIN_QUOTA) if milli else 0


def cpu_weight(shares: int) -> int:
    """Return the weight of cgroup v2 (1 to 10000) for CPU shares of v1 (2 to 262144)."""
    return MIN_WEIGHT + (shares - MIN_SHARES) * (MAX_WEIGHT - MIN_WEIGHT) // (MAX_SHARES - MIN_SHARES)


def pods_cgroup(root: str) -> CgroupPath:
    """Return the cgroup of all pods. `root` is the path of its parent; `/` is the root of the hierarchy."""
    return CgroupPath((*(name for name in root.split("/") if name), KUBEPODS))


def pod_cgroup(pod: Pod, root: str) -> CgroupPath:
    """Return the cgroup of a pod."""
    return pods_cgroup(root).child(*QOS_PARENTS.get(pod.status.qos_class, ()), POD_PREFIX + pod.metadata.uid)


def candidate_cgroups(uid: str, root: str) -> tuple[CgroupPath, ...]:
    """Return the cgroups that a pod with this UID may have: one for each quality of service class."""
    return tuple(parent.child(POD_PREFIX + uid) for parent in parent_cgroups(root))


def parent_cgroups(root: str) -> tuple[CgroupPath, ...]:
    """Return the cgroups that contain cgroups of pods."""
    return (pods_cgroup(root), *(pods_cgroup(root).child(*names) for names in QOS_PARENTS.values()))


def pod_limits(pod: Pod, capacity: PodsCapacity) -> CgroupLimits:
    """Return the limits of a pod's cgroup. CPU and memory are limited if all its containers have such a limit."""
    return CgroupLimits(
        shares=cpu_shares(pod_request(pod.spec, cpu_request)),
        quota=cpu_quota(pod_limit(pod.spec, cpu_limit)) if capacity.cpu_cfs_quota else 0,
        memory=pod_limit(pod.spec, memory_limit),
        pids=capacity.pids,
    )


def wider_limits(first: CgroupLimits, second: CgroupLimits) -> CgroupLimits:
    """Return limits within which containers with either limits have room."""
    return CgroupLimits(
        shares=max(first.shares, second.shares),
        quota=_wider(first.quota, second.quota),
        memory=_wider(first.memory, second.memory),
        pids=_wider(first.pids, second.pids),
    )


def _wider(first: int, second: int) -> int:
    return max(first, second) if first and second else 0


def qos_cgroups(pods: Iterable[Pod], root: str, capacity: PodsCapacity) -> tuple[tuple[CgroupPath, CgroupLimits], ...]:
    """Return the limits of `kubepods` and of the QoS cgroups for these pods, parents first."""
    burstable = (pod_request(pod.spec, cpu_request) for pod in pods if pod.status.qos_class == "Burstable")
    kubepods = pods_cgroup(root)
    return (
        (kubepods, CgroupLimits(shares=cpu_shares(capacity.cpus * 1000), memory=capacity.memory)),
        (kubepods.child(BURSTABLE), CgroupLimits(shares=cpu_shares(sum(burstable)))),
        (kubepods.child(BEST_EFFORT), CgroupLimits()),
    )


def cgroupfs_path(cgroup: CgroupPath) -> str:
    """Return the directory of a cgroup, from the root of the hierarchy: Docker's cgroup parent with `cgroupfs`."""
    return "/" + "/".join(cgroup.names)


def limit_files(limits: CgroupLimits, version: int) -> Iterator[CgroupFile]:
    """Yield the files that set the limits of a cgroup (cgroups(7); version 2: the kernel's cgroup-v2.rst)."""
    pids = str(limits.pids or "max")
    if version == 1:
        yield CgroupFile("cpu", "cpu.shares", str(limits.shares))
        yield CgroupFile("cpu", "cpu.cfs_period_us", str(CPU_PERIOD))
        yield CgroupFile("cpu", "cpu.cfs_quota_us", str(limits.quota or -1))
        yield CgroupFile("memory", "memory.limit_in_bytes", str(limits.memory or -1))
        yield CgroupFile("pids", "pids.max", pids)
    else:
        yield CgroupFile("", "cpu.weight", str(cpu_weight(limits.shares)))
        yield CgroupFile("", "cpu.max", f"{limits.quota or 'max'} {CPU_PERIOD}")
        yield CgroupFile("", "memory.max", str(limits.memory or "max"))
        yield CgroupFile("", "pids.max", pids)


def slice_unit(cgroup: CgroupPath) -> str:
    """Return the systemd unit of a cgroup: Docker's cgroup parent with the driver `systemd`."""
    return "-".join(name.replace("-", "_") for name in cgroup.names) + SLICE_SUFFIX


def slice_path(cgroup: CgroupPath) -> str:
    """Return the directory of a slice, from the root of the hierarchy."""
    return "".join(f"/{slice_unit(CgroupPath(cgroup.names[:depth]))}" for depth in range(1, len(cgroup.names) + 1))


def slice_last_name(directory: str) -> str:
    """Return the last name of the cgroup of a slice's directory. Returns an empty string for other directories."""
    if not directory.endswith(SLICE_SUFFIX):
        return ""
    return directory.removesuffix(SLICE_SUFFIX).rpartition("-")[2].replace("_", "-")


def slice_properties(limits: CgroupLimits, version: int) -> Iterator[Property]:
    """Yield the properties of a slice with these limits, for systemd with this cgroup version."""
    quota = -(-limits.quota * PERIODS_PER_SECOND // PERCENT_US) * PERCENT_US
    for kind in ("CPU", "Memory", "Tasks"):
        yield Property(f"{kind}Accounting", ("b", True))
    if version == 1:
        yield Property("CPUShares", ("t", limits.shares))
        yield Property("MemoryLimit", ("t", limits.memory or UNLIMITED))
    else:
        yield Property("CPUWeight", ("t", cpu_weight(limits.shares)))
        yield Property("MemoryMax", ("t", limits.memory or UNLIMITED))
    yield Property("CPUQuotaPerSecUSec", ("t", quota or UNLIMITED))
    yield Property("TasksMax", ("t", limits.pids or UNLIMITED))

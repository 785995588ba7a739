"""Cgroup paths, limits and files; slice names and properties; CPU shares and quota. Pure.

Source: facts/node.md 6. The hierarchy is the kubelet's: `kubepods`, in it `burstable` and `besteffort`, and in these a
group for each pod; those of Guaranteed pods are directly in `kubepods`. A group is made as a directory with the values
of this module (Docker's driver `cgroupfs`), or as a slice of systemd (`slices.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from api.core.pod import Pod
from api.core.resources import limited_cpu, limited_memory, pod_limit, pod_request, requested_cpu

CPU_PERIOD, MIN_QUOTA = 100_000, 1_000
MIN_SHARES, MAX_SHARES = 2, 262_144


def cpu_shares(milli: int) -> int:
    """Docker's CPU weight for a request in thousandths of a core."""
    return min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def cpu_quota(milli: int) -> int:
    """The µs of each 100 ms that a limit in thousandths of a core allows; 0 is no limit."""
    return max(milli * CPU_PERIOD // 1000, MIN_QUOTA) if milli else 0


TOP, POD = "kubepods", "pod"
BURSTABLE, BEST_EFFORT = "burstable", "besteffort"
MIDDLE = {"Burstable": (BURSTABLE,), "BestEffort": (BEST_EFFORT,)}
LEAST_WEIGHT, MOST_WEIGHT = 1, 10_000


class CgroupPath(NamedTuple):
    """The names of a group and of those above it, from the top of the hierarchy."""

    names: tuple[str, ...]

    def below(self, *names: str) -> CgroupPath:
        """A group within this one."""
        return CgroupPath((*self.names, *names))


class CgroupLimits(NamedTuple):
    """What a group is promised and may not exceed: memory in bytes, quota in µs per 100 ms; 0 is no limit."""

    shares: int = MIN_SHARES
    quota: int = 0
    memory: int = 0
    pids: int = 0


class PodsCapacity(NamedTuple):
    """What all pods together have: cores and bytes; `pids` is how many processes one of them may have, 0: any.

    `quotas`: limits of CPU hold back.
    """

    cpus: int
    memory: int
    pids: int = 0
    quotas: bool = True


class CgroupFile(NamedTuple):
    """What to write into one file of a group; `controller` counts in version 1 only."""

    controller: str
    file: str
    text: str


def pods_cgroup(root: str) -> CgroupPath:
    """The group of all pods; `root` is the one above it, `/` for the top of the hierarchy."""
    return CgroupPath((*(name for name in root.split("/") if name), TOP))


def pod_cgroup(pod: Pod, root: str) -> CgroupPath:
    """The group of a pod."""
    return pods_cgroup(root).below(*MIDDLE.get(pod.status.qos_class, ()), POD + pod.metadata.uid)


def candidate_cgroups(uid: str, root: str) -> tuple[CgroupPath, ...]:
    """Where the group of a pod may be of which only the UID is known."""
    return tuple(one.below(POD + uid) for one in parent_cgroups(root))


def parent_cgroups(root: str) -> tuple[CgroupPath, ...]:
    """The groups in which those of pods are."""
    return (pods_cgroup(root), *(pods_cgroup(root).below(*names) for names in MIDDLE.values()))


def pod_limits(pod: Pod, room: PodsCapacity) -> CgroupLimits:
    """What the pod as a whole is promised, and what it may not exceed where every container has a limit."""
    return CgroupLimits(
        shares=cpu_shares(pod_request(pod.spec, requested_cpu)),
        quota=cpu_quota(pod_limit(pod.spec, limited_cpu)) if room.quotas else 0,
        memory=pod_limit(pod.spec, limited_memory),
        pids=room.pids,
    )


def qos_cgroups(pods: Iterable[Pod], root: str, room: PodsCapacity) -> tuple[tuple[CgroupPath, CgroupLimits], ...]:
    """What all pods have, and what the classes have of it while these pods are here, from the top."""
    burstable = (pod_request(pod.spec, requested_cpu) for pod in pods if pod.status.qos_class == "Burstable")
    everyone = pods_cgroup(root)
    return (
        (everyone, CgroupLimits(shares=cpu_shares(room.cpus * 1000), memory=room.memory)),
        (everyone.below(BURSTABLE), CgroupLimits(shares=cpu_shares(sum(burstable)))),
        (everyone.below(BEST_EFFORT), CgroupLimits()),
    )


def cgroupfs_path(group: CgroupPath) -> str:
    """The directory of a group, from the top of the hierarchy, as Docker's driver `cgroupfs` is told it."""
    return "/" + "/".join(group.names)


def limit_files(limits: CgroupLimits, version: int) -> Iterator[CgroupFile]:
    """The files of a group (cgroups(7); version 2: cgroup-v2.rst of the kernel)."""
    quota, memory, pids = limits.quota, limits.memory, str(limits.pids or "max")
    if version == 1:
        yield CgroupFile("cpu", "cpu.shares", str(limits.shares))
        yield CgroupFile("cpu", "cpu.cfs_period_us", str(CPU_PERIOD))
        yield CgroupFile("cpu", "cpu.cfs_quota_us", str(quota or -1))
        yield CgroupFile("memory", "memory.limit_in_bytes", str(memory or -1))
        yield CgroupFile("pids", "pids.max", pids)
    else:
        yield CgroupFile("", "cpu.weight", str(cpu_weight(limits.shares)))
        yield CgroupFile("", "cpu.max", f"{quota or 'max'} {CPU_PERIOD}")
        yield CgroupFile("", "memory.max", str(memory or "max"))
        yield CgroupFile("", "pids.max", pids)


def cpu_weight(shares: int) -> int:
    """CPU shares of version 1 (2 to 262144) as the weight of version 2 (1 to 10000)."""
    return LEAST_WEIGHT + (shares - MIN_SHARES) * (MOST_WEIGHT - LEAST_WEIGHT) // (MAX_SHARES - MIN_SHARES)


SLICE = ".slice"
UNLIMITED = 2**64 - 1
PER_SECOND = 10
"""Periods of 100 ms in a second: systemd counts CPU time by the second."""

PERCENT = 10_000
"""µs in a percent of a second. systemd stores whole percents, and a container may not have more than its slice."""


class Property(NamedTuple):
    """A property of a unit on D-Bus: its name, and its value with its signature."""

    name: str
    value: tuple[str, int | bool | str]


def slice_unit(group: CgroupPath) -> str:
    """The slice of a group."""
    return "-".join(map(_escaped, group.names)) + SLICE


def slice_path(group: CgroupPath) -> str:
    """The directory of a slice, from the top of the hierarchy."""
    return "".join(f"/{slice_unit(CgroupPath(group.names[:depth]))}" for depth in range(1, len(group.names) + 1))


def slice_last_name(directory: str) -> str:
    """The last name of the group that a directory is of; empty where it is none of a slice."""
    return directory.removesuffix(SLICE).rpartition("-")[2].replace("_", "-") if directory.endswith(SLICE) else ""


def slice_properties(limits: CgroupLimits, version: int) -> Iterator[Property]:
    """What is asked of systemd, for the version of control groups it runs with."""
    quota = -(-limits.quota * PER_SECOND // PERCENT) * PERCENT
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


def _escaped(name: str) -> str:
    return name.replace("-", "_")

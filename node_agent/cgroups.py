"""The control groups of pods: where they are, and what each pod, each class and all pods together may use. Pure.

Source: facts/node.md 6. The hierarchy is the kubelet's: `kubepods`, in it `burstable` and `besteffort`, and in these a
group for each pod; those of Guaranteed pods are directly in `kubepods`. A group is made as a directory with the values
of this module (Docker's driver `cgroupfs`), or as a slice of systemd (`slices.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from api.objects import Pod
from api.resources import allowed, limited_cpu, limited_memory, needed, requested_cpu
from node_agent.containers import CPU_PERIOD, LEAST_SHARES, MOST_SHARES, cpu_quota, cpu_shares

TOP, POD = "kubepods", "pod"
BURSTABLE, BEST_EFFORT = "burstable", "besteffort"
MIDDLE = {"Burstable": (BURSTABLE,), "BestEffort": (BEST_EFFORT,)}
LEAST_WEIGHT, MOST_WEIGHT = 1, 10_000


class Group(NamedTuple):
    """The names of a group and of those above it, from the top of the hierarchy."""

    names: tuple[str, ...]

    def below(self, *names: str) -> Group:
        """A group within this one."""
        return Group((*self.names, *names))


class Limits(NamedTuple):
    """What a group is promised and may not exceed: memory in bytes, quota in µs per 100 ms; 0 is no limit."""

    shares: int = LEAST_SHARES
    quota: int = 0
    memory: int = 0
    pids: int = 0


class Room(NamedTuple):
    """What all pods together have: cores and bytes; `pids` is how many processes one of them may have, 0: any.

    `quotas`: limits of CPU hold back.
    """

    cpus: int
    memory: int
    pids: int = 0
    quotas: bool = True


class Value(NamedTuple):
    """What to write into one file of a group; `controller` counts in version 1 only."""

    controller: str
    file: str
    text: str


def top(root: str) -> Group:
    """The group of all pods; `root` is the one above it, `/` for the top of the hierarchy."""
    return Group((*(name for name in root.split("/") if name), TOP))


def group(pod: Pod, root: str) -> Group:
    """The group of a pod."""
    return top(root).below(*MIDDLE.get(pod.status.qos_class, ()), POD + pod.metadata.uid)


def groups(uid: str, root: str) -> tuple[Group, ...]:
    """Where the group of a pod may be of which only the UID is known."""
    return tuple(one.below(POD + uid) for one in parents(root))


def parents(root: str) -> tuple[Group, ...]:
    """The groups in which those of pods are."""
    return (top(root), *(top(root).below(*names) for names in MIDDLE.values()))


def limits(pod: Pod, room: Room) -> Limits:
    """What the pod as a whole is promised, and what it may not exceed where every container has a limit."""
    return Limits(
        shares=cpu_shares(needed(pod.spec, requested_cpu)),
        quota=cpu_quota(allowed(pod.spec, limited_cpu)) if room.quotas else 0,
        memory=allowed(pod.spec, limited_memory),
        pids=room.pids,
    )


def shared(pods: Iterable[Pod], root: str, room: Room) -> tuple[tuple[Group, Limits], ...]:
    """What all pods have, and what the classes have of it while these pods are here, from the top."""
    burstable = (needed(pod.spec, requested_cpu) for pod in pods if pod.status.qos_class == "Burstable")
    everyone = top(root)
    return (
        (everyone, Limits(shares=cpu_shares(room.cpus * 1000), memory=room.memory)),
        (everyone.below(BURSTABLE), Limits(shares=cpu_shares(sum(burstable)))),
        (everyone.below(BEST_EFFORT), Limits()),
    )


def path(group: Group) -> str:
    """The directory of a group, from the top of the hierarchy, as Docker's driver `cgroupfs` is told it."""
    return "/" + "/".join(group.names)


def values(limits: Limits, version: int) -> Iterator[Value]:
    """The files of a group (cgroups(7); version 2: cgroup-v2.rst of the kernel)."""
    quota, memory, pids = limits.quota, limits.memory, str(limits.pids or "max")
    if version == 1:
        yield Value("cpu", "cpu.shares", str(limits.shares))
        yield Value("cpu", "cpu.cfs_period_us", str(CPU_PERIOD))
        yield Value("cpu", "cpu.cfs_quota_us", str(quota or -1))
        yield Value("memory", "memory.limit_in_bytes", str(memory or -1))
        yield Value("pids", "pids.max", pids)
    else:
        yield Value("", "cpu.weight", str(weight(limits.shares)))
        yield Value("", "cpu.max", f"{quota or 'max'} {CPU_PERIOD}")
        yield Value("", "memory.max", str(memory or "max"))
        yield Value("", "pids.max", pids)


def weight(shares: int) -> int:
    """CPU shares of version 1 (2 to 262144) as the weight of version 2 (1 to 10000)."""
    return LEAST_WEIGHT + (shares - LEAST_SHARES) * (MOST_WEIGHT - LEAST_WEIGHT) // (MOST_SHARES - LEAST_SHARES)

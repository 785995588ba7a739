"""The control group of a pod: where it is, and what it may use as a whole. Pure.

Source: facts/node.md 6. The hierarchy is the kubelet's with the cgroupfs driver:
`/kubepods/[burstable|besteffort/]podUID`, of Guaranteed pods directly under kubepods.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from api.objects import Pod
from api.resources import allowed, limited_cpu, limited_memory, needed, requested_cpu
from node_agent.containers import CPU_PERIOD, LEAST_SHARES, MOST_SHARES, cpu_quota, cpu_shares

TOP = "kubepods"
CLASSES = ("", "burstable/", "besteffort/")
LEAST_WEIGHT, MOST_WEIGHT = 1, 10_000


class Value(NamedTuple):
    """What to write into one file of a group; `controller` counts in version 1 only."""

    controller: str
    file: str
    text: str


def path(pod: Pod, root: str) -> str:
    """The group of a pod, from the top of the hierarchy; `root` is where ours begin, `/` for the top itself."""
    middle = {"Burstable": "burstable/", "BestEffort": "besteffort/"}.get(pod.status.qos_class, "")
    return f"{root.rstrip('/')}/{TOP}/{middle}pod{pod.metadata.uid}"


def paths(uid: str, root: str) -> tuple[str, ...]:
    """Where the group of a pod may be of which only the UID is known."""
    return tuple(f"{root.rstrip('/')}/{TOP}/{middle}pod{uid}" for middle in CLASSES)


def values(pod: Pod, version: int) -> Iterator[Value]:
    """What the pod as a whole is promised, and what it may not exceed where every container has a limit."""
    shares = cpu_shares(needed(pod.spec, requested_cpu))
    quota, memory = cpu_quota(allowed(pod.spec, limited_cpu)), allowed(pod.spec, limited_memory)
    if version == 1:
        yield Value("cpu", "cpu.shares", str(shares))
        yield Value("cpu", "cpu.cfs_period_us", str(CPU_PERIOD))
        yield Value("cpu", "cpu.cfs_quota_us", str(quota or -1))
        yield Value("memory", "memory.limit_in_bytes", str(memory or -1))
    else:
        yield Value("", "cpu.weight", str(weight(shares)))
        yield Value("", "cpu.max", f"{quota or 'max'} {CPU_PERIOD}")
        yield Value("", "memory.max", str(memory or "max"))


def weight(shares: int) -> int:
    """CPU shares of version 1 (2 to 262144) as the weight of version 2 (1 to 10000)."""
    return LEAST_WEIGHT + (shares - LEAST_SHARES) * (MOST_WEIGHT - LEAST_WEIGHT) // (MOST_SHARES - LEAST_SHARES)

"""Which pod has to leave a node that runs out of memory, disk or processes, and with which words. Pure.

Kubelet's rules and words; one pod in a round. Soft thresholds are in `thresholds`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec.structs import replace

from api import quantity, times
from api.objects import Condition, Container, Pod, PodStatus
from node_agent.stages import sidecars

HARD = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"
EVICTED = "Evicted"
GRACE_SECONDS = 1
CRITICAL_PRIORITY = 2_000_000_000
DISRUPTION = "DisruptionTarget"

MEMORY, DISK, PROCESSES = "MemoryPressure", "DiskPressure", "PIDPressure"
SIGNALS: Mapping[str, tuple[str, str]] = {
    "memory.available": ("memory", MEMORY),
    "nodefs.available": ("ephemeral-storage", DISK),
    "nodefs.inodesFree": ("inodes", DISK),
    "imagefs.available": ("ephemeral-storage", DISK),
    "imagefs.inodesFree": ("inodes", DISK),
    "pid.available": ("pids", PROCESSES),
}
"""Signal → the resource that is low, and the node's condition."""

_SHAPE = re.compile(r"([a-zA-Z.]+)<([0-9.]+%|[0-9.]+[a-zA-Z]*)")


class BadThreshold(ValueError):
    """`str(error)` says what was found and what is accepted."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A signal is too low below `amount`, or below so many percent of the capacity; for `grace` it may be, if soft."""

    signal: str
    amount: int = 0
    percent: float | None = None
    grace: timedelta | None = None

    def of(self, capacity: int) -> int:
        """In bytes, inodes or processes."""
        return self.amount if self.percent is None else int(capacity * self.percent / 100)


@dataclass(frozen=True, slots=True)
class Observation:
    """What there is of a signal: bytes, inodes or processes."""

    available: int
    capacity: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """The node's conditions."""

    memory: bool = False
    disk: bool = False
    processes: bool = False

    def rows(self) -> tuple[tuple[str, str, str, str], ...]:
        """Type, status, reason and message of each condition."""
        return (
            (MEMORY, "True", "KubeletHasInsufficientMemory", "the node agent has insufficient memory available")
            if self.memory
            else (MEMORY, "False", "KubeletHasSufficientMemory", "the node agent has sufficient memory available"),
            (DISK, "True", "KubeletHasDiskPressure", "the node agent has disk pressure")
            if self.disk
            else (DISK, "False", "KubeletHasNoDiskPressure", "the node agent has no disk pressure"),
            (PROCESSES, "True", "KubeletHasInsufficientPID", "the node agent has insufficient PID available")
            if self.processes
            else (PROCESSES, "False", "KubeletHasSufficientPID", "the node agent has sufficient PID available"),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a pod takes: bytes of memory (working set) and disk, inodes, processes.

    `memory_of` and `disk_of` are by container, `volumes` by name of emptyDirs on disk.
    """

    pod: Pod
    processes: int = 0
    inodes: int = 0
    memory_of: Mapping[str, int] = field(default_factory=dict)
    disk_of: Mapping[str, int] = field(default_factory=dict)
    volumes: Mapping[str, int] = field(default_factory=dict)

    @property
    def memory(self) -> int:
        """Of all its containers."""
        return sum(self.memory_of.values())

    @property
    def disk(self) -> int:
        """Writable layers, logs and emptyDirs."""
        return sum(self.disk_of.values()) + sum(self.volumes.values())


@dataclass(frozen=True, slots=True)
class Verdict:
    """A pod that has to go, what its status says, and in how many seconds at most it has to have ended."""

    uid: str
    message: str
    grace: int = GRACE_SECONDS


def thresholds(text: str) -> tuple[Threshold, ...]:
    """From `memory.available<100Mi,nodefs.available<10%`. Raises BadThreshold."""
    return tuple(_threshold(part.strip()) for part in text.split(",") if part.strip())


def _threshold(text: str) -> Threshold:
    shape = _SHAPE.fullmatch(text)
    if shape is None or shape[1] not in SIGNALS:
        raise BadThreshold(
            f'found {text!r}; for example "memory.available<100Mi" or "nodefs.available<10%" is accepted, '
            f"with one of {', '.join(SIGNALS)}"
        )
    signal, amount = shape[1], shape[2]
    try:
        if not amount.endswith("%"):
            return Threshold(signal, quantity.whole(amount))
        percent = float(amount[:-1])
    except ValueError as error:
        raise BadThreshold(f"found {text!r}: {error}") from None
    if not 0 <= percent <= 100:
        raise BadThreshold(f"found {text!r}; 0% to 100% is accepted")
    return Threshold(signal, percent=percent)


def met(limits: Iterable[Threshold], seen: Mapping[str, Observation]) -> tuple[Threshold, ...]:
    """The thresholds below which a signal has fallen, memory first, and hard ones before soft ones."""
    low = [one for one in limits if one.signal in seen and _is_low(one, seen[one.signal])]
    return tuple(sorted(low, key=lambda one: (SIGNALS[one.signal][1] != MEMORY, one.grace is not None)))


def _is_low(limit: Threshold, seen: Observation) -> bool:
    return seen.available < limit.of(seen.capacity)


def remembered(before: Mapping[str, datetime], low: Iterable[Threshold], now: datetime) -> dict[str, datetime]:
    """When each condition last had a cause."""
    return {**before, **{SIGNALS[one.signal][1]: now for one in low}}


def pressure(last: Mapping[str, datetime], now: datetime, transition: timedelta) -> Pressure:
    """The conditions, each of which outlives its cause by so much."""
    present = {kind for kind, moment in last.items() if now - moment < transition or now == moment}
    return Pressure(MEMORY in present, DISK in present, PROCESSES in present)


def choose(
    low: tuple[Threshold, ...], seen: Mapping[str, Observation], pods: Iterable[Usage], most_grace: int = 0
) -> Verdict | None:
    """The pod that goes in this round for the first of these thresholds; None when nobody may be sent away.

    For a soft threshold it has its own grace period, up to `most_grace` seconds.
    """
    if not low:
        return None
    resource = SIGNALS[low[0].signal][0]
    ranked = sorted((one for one in pods if not is_critical(one.pod)), key=lambda one: _rank(resource, one))
    if not ranked:
        return None
    pod = ranked[0].pod
    grace = GRACE_SECONDS if low[0].grace is None else min(pod.spec.termination_grace_period_seconds or 0, most_grace)
    return Verdict(pod.metadata.uid, _message(low[0], seen[low[0].signal], ranked[0]), grace)


def is_critical(pod: Pod) -> bool:
    """Whether the cluster would suffer more from the loss of the pod than from the pressure."""
    return (pod.spec.priority or 0) >= CRITICAL_PRIORITY


def _rank(resource: str, one: Usage) -> tuple[float, ...]:
    """Who takes more than requested goes first, then who matters least, then who is farthest above the request."""
    priority = one.pod.spec.priority or 0
    if resource == "pids":
        return (priority, -one.processes)
    taken = {"memory": one.memory, "ephemeral-storage": one.disk, "inodes": one.inodes}[resource]
    asked = sum(_request(container, resource) for container in lasting(one.pod))
    return (taken <= asked, priority, asked - taken)


def lasting(pod: Pod) -> tuple[Container, ...]:
    """The containers that run as long as the pod does."""
    return (*sidecars(pod), *pod.spec.containers)


def _request(container: Container, resource: str) -> int:
    """A limit without a request is a request."""
    wishes = {**container.resources.limits, **container.resources.requests}
    return quantity.whole(wishes.get(resource, 0))


def _message(limit: Threshold, seen: Observation, one: Usage) -> str:
    resource = SIGNALS[limit.signal][0]
    of_bytes = resource in {"memory", "ephemeral-storage"}
    shown = _binary if of_bytes else str
    words = (
        f"The node was low on resource: {resource}. "
        f"Threshold quantity: {shown(limit.of(seen.capacity))}, available: {shown(seen.available)}. "
    )
    usage = one.memory_of if resource == "memory" else one.disk_of if of_bytes else {}
    for container in lasting(one.pod):
        taken, asked = usage.get(container.name, 0), _request(container, resource)
        if taken > asked:
            words += (
                f"Container {container.name} was using {_binary(taken)}, request is {_binary(asked)}, "
                f"has larger consumption of {resource}. "
            )
    return words


def _binary(amount: int) -> str:
    """As Kubernetes writes bytes: with the largest unit that leaves a whole number."""
    for power, unit in reversed(tuple(enumerate(("Ki", "Mi", "Gi", "Ti"), 1))):
        if amount and amount % 1024**power == 0:
            return f"{amount // 1024**power}{unit}"
    return str(amount)


def over_limits(pods: Iterable[Usage]) -> tuple[Verdict, ...]:
    """Every pod that takes more disk than it said it would at most: all of them go, critical or not."""
    found = ((one, next(_excesses(one), "")) for one in pods)
    return tuple(Verdict(one.pod.metadata.uid, words) for one, words in found if words)


def has_disk_limits(pod: Pod) -> bool:
    """Whether its use of disk has to be measured at all."""
    limited = any("ephemeral-storage" in container.resources.limits for container in lasting(pod))
    return limited or bool(_sized_volumes(pod))


def _sized_volumes(pod: Pod) -> dict[str, str | int]:
    sized = {}
    for volume in pod.spec.volumes:
        source = volume.empty_dir
        if source is not None and source.size_limit is not None and source.medium != "Memory":
            sized[volume.name] = source.size_limit
    return sized


def _excesses(one: Usage) -> Iterator[str]:
    for name, most in _sized_volumes(one.pod).items():
        if one.volumes.get(name, 0) > quantity.whole(most):
            yield f'Usage of EmptyDir volume "{name}" exceeds the limit "{most}". '
    limits = {
        container.name: container.resources.limits["ephemeral-storage"]
        for container in lasting(one.pod)
        if "ephemeral-storage" in container.resources.limits
    }
    total = sum(quantity.whole(limit) for limit in limits.values())
    if limits and one.disk > total:
        yield f"Pod ephemeral local storage usage exceeds the total limit of containers {_binary(total)}. "
    for name, limit in limits.items():
        if one.disk_of.get(name, 0) > quantity.whole(limit):
            yield f'Container {name} exceeded its local ephemeral storage limit "{limit}". '


def evicted(status: PodStatus, message: str, now: datetime) -> PodStatus:
    """The status of a pod from the moment at which it has to go; it never changes back."""
    mark = Condition(
        type=DISRUPTION,
        status="True",
        reason="TerminationByKubelet",
        message=message,
        last_transition_time=times.text(now),
    )
    others = tuple(row for row in status.conditions if row.type != DISRUPTION)
    return replace(status, phase="Failed", reason=EVICTED, message=message, conditions=(*others, mark))


def is_evicted(status: PodStatus) -> bool:
    """Whether the pod had to go: nothing of it may be left on the node, while its object stays."""
    return status.phase == "Failed" and status.reason == EVICTED

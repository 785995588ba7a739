"""Eviction thresholds, signals, node pressure. Pure.

Kubelet's rules and words; one pod in a round. Soft thresholds are in `thresholds`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from api.meta import quantity

HARD = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"

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
class SignalObservation:
    """What there is of a signal: bytes, inodes or processes."""

    available: int
    capacity: int


@dataclass(frozen=True, slots=True)
class PressureCondition:
    """A pressure condition of the Node object."""

    type: str
    is_true: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pressure:
    """Which resources the node is short of."""

    memory: bool = False
    disk: bool = False
    processes: bool = False

    def conditions(self) -> tuple[PressureCondition, ...]:
        """Return the three pressure conditions, true or not."""
        if self.memory:
            memory = ("KubeletHasInsufficientMemory", "the node agent has insufficient memory available")
        else:
            memory = ("KubeletHasSufficientMemory", "the node agent has sufficient memory available")
        if self.disk:
            disk = ("KubeletHasDiskPressure", "the node agent has disk pressure")
        else:
            disk = ("KubeletHasNoDiskPressure", "the node agent has no disk pressure")
        if self.processes:
            processes = ("KubeletHasInsufficientPID", "the node agent has insufficient PID available")
        else:
            processes = ("KubeletHasSufficientPID", "the node agent has sufficient PID available")
        return (
            PressureCondition(MEMORY, self.memory, *memory),
            PressureCondition(DISK, self.disk, *disk),
            PressureCondition(PROCESSES, self.processes, *processes),
        )


@dataclass(slots=True)
class NodePressure:
    """The current pressure of the node. EvictionManager writes it; PodAdmitter and NodeStatusLoop read it."""

    current: Pressure = Pressure()


def parse_thresholds(text: str) -> tuple[Threshold, ...]:
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
            return Threshold(signal, quantity.to_int(amount))
        percent = float(amount[:-1])
    except ValueError as error:
        raise BadThreshold(f"found {text!r}: {error}") from None
    if not 0 <= percent <= 100:
        raise BadThreshold(f"found {text!r}; 0% to 100% is accepted")
    return Threshold(signal, percent=percent)


def thresholds_met(limits: Iterable[Threshold], seen: Mapping[str, SignalObservation]) -> tuple[Threshold, ...]:
    """The thresholds below which a signal has fallen, memory first, and hard ones before soft ones."""
    low = [one for one in limits if one.signal in seen and _is_low(one, seen[one.signal])]
    return tuple(sorted(low, key=lambda one: (SIGNALS[one.signal][1] != MEMORY, one.grace is not None)))


def _is_low(limit: Threshold, seen: SignalObservation) -> bool:
    return seen.available < limit.of(seen.capacity)


def conditions_last_observed(
    before: Mapping[str, datetime], low: Iterable[Threshold], now: datetime
) -> dict[str, datetime]:
    """When each condition last had a cause."""
    return {**before, **{SIGNALS[one.signal][1]: now for one in low}}


def node_pressure(last: Mapping[str, datetime], now: datetime, transition: timedelta) -> Pressure:
    """The conditions, each of which outlives its cause by so much."""
    present = {kind for kind, moment in last.items() if now - moment < transition or now == moment}
    return Pressure(MEMORY in present, DISK in present, PROCESSES in present)


_PERIOD = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


def parse_soft_thresholds(limits: str, periods: str) -> tuple[Threshold, ...]:
    """From `memory.available<1Gi` and `memory.available=1m30s`: each threshold has its period. Raises BadThreshold."""
    grace = dict(_period(part.strip()) for part in periods.split(",") if part.strip())
    found = parse_thresholds(limits)
    signals = {one.signal for one in found}
    for signal in sorted(signals ^ grace.keys()):
        missing = "grace period" if signal in signals else "soft threshold"
        raise BadThreshold(f"{signal} has no {missing}; every soft threshold needs a grace period, and no other")
    return tuple(replace(one, grace=grace[one.signal]) for one in found)


def _period(text: str) -> tuple[str, timedelta]:
    signal, _, length = text.partition("=")
    shape = _PERIOD.fullmatch(length)
    if signal not in SIGNALS or not length or shape is None:
        raise BadThreshold(f'found {text!r}; for example "memory.available=1m30s" is accepted')
    hours, minutes, seconds = (float(part or 0) for part in shape.groups())
    return signal, timedelta(hours=hours, minutes=minutes, seconds=seconds)


def thresholds_first_observed(
    before: Mapping[Threshold, datetime], low: Iterable[Threshold], now: datetime
) -> dict[Threshold, datetime]:
    """Since when each of the thresholds that are met now has been so without a break."""
    return {one: before.get(one, now) for one in low}


def due_thresholds(since: Mapping[Threshold, datetime], now: datetime) -> tuple[Threshold, ...]:
    """Those that call for action now: hard ones at once, soft ones after their time."""
    return tuple(one for one, moment in since.items() if one.grace is None or now - moment >= one.grace)


def next_threshold_due(since: Mapping[Threshold, datetime], now: datetime) -> datetime | None:
    """When the next one will."""
    ends = (moment + one.grace for one, moment in since.items() if one.grace is not None)
    return min((end for end in ends if end > now), default=None)

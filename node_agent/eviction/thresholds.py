"""Eviction thresholds, signals, node pressure. Pure.

Rules and messages are the kubelet's. At most one pod is evicted in a pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from api.meta import quantity

HARD = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%"
"""Default of the setting `evictionHard`."""

MEMORY, DISK, PROCESSES = "MemoryPressure", "DiskPressure", "PIDPressure"


class Signal(NamedTuple):
    """The resource that a signal measures, and the condition of the node when it is low."""

    resource: str
    condition: str


SIGNALS: Mapping[str, Signal] = {
    "memory.available": Signal("memory", MEMORY),
    "nodefs.available": Signal("ephemeral-storage", DISK),
    "nodefs.inodesFree": Signal("inodes", DISK),
    "imagefs.available": Signal("ephemeral-storage", DISK),
    "imagefs.inodesFree": Signal("inodes", DISK),
    "pid.available": Signal("pids", PROCESSES),
}
"""The signals by name."""

_THRESHOLD = re.compile(r"([a-zA-Z.]+)<([0-9.]+%|[0-9.]+[a-zA-Z]*)")
_GRACE_PERIOD = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


class BadThreshold(ValueError):
    """A threshold that cannot be parsed. The message says what was found and what is accepted."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A limit below which a signal must not fall: an amount, or a percentage of the capacity.

    `grace` is the grace period of a soft threshold, None for a hard one.
    """

    signal: str
    amount: int = 0
    percent: float | None = None
    grace: timedelta | None = None

    def limit(self, capacity: int) -> int:
        """Return the limit in bytes, inodes or processes."""
        return self.amount if self.percent is None else int(capacity * self.percent / 100)


@dataclass(frozen=True, slots=True)
class SignalObservation:
    """The value of a signal: bytes, inodes or processes that are available and that exist."""

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
    """The resources that the node lacks."""

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


# --- settings ---------------------------------------------------------------------------------------------------------


def parse_thresholds(text: str) -> tuple[Threshold, ...]:
    """Parse thresholds such as `memory.available<100Mi,nodefs.available<10%`. Raises BadThreshold."""
    return tuple(_parse_threshold(part.strip()) for part in text.split(",") if part.strip())


def _parse_threshold(text: str) -> Threshold:
    match = _THRESHOLD.fullmatch(text)
    if match is None or match[1] not in SIGNALS:
        raise BadThreshold(
            f'found {text!r}; for example "memory.available<100Mi" or "nodefs.available<10%" is accepted, '
            f"with one of {', '.join(SIGNALS)}"
        )
    signal, amount = match.groups()
    try:
        if not amount.endswith("%"):
            return Threshold(signal, quantity.to_int(amount))
        percent = float(amount[:-1])
    except ValueError as error:
        raise BadThreshold(f"found {text!r}: {error}") from None
    if not 0 <= percent <= 100:
        raise BadThreshold(f"found {text!r}; 0% to 100% is accepted")
    return Threshold(signal, percent=percent)


def parse_soft_thresholds(thresholds: str, grace_periods: str) -> tuple[Threshold, ...]:
    """Parse thresholds and grace periods such as `memory.available=1m30s`, one for each signal. Raises BadThreshold."""
    grace = dict(_parse_grace_period(part.strip()) for part in grace_periods.split(",") if part.strip())
    parsed = parse_thresholds(thresholds)
    signals = {threshold.signal for threshold in parsed}
    for signal in sorted(signals ^ grace.keys()):
        missing = "grace period" if signal in signals else "soft threshold"
        raise BadThreshold(f"{signal} has no {missing}; every soft threshold needs a grace period, and no other")
    return tuple(replace(threshold, grace=grace[threshold.signal]) for threshold in parsed)


def _parse_grace_period(text: str) -> tuple[str, timedelta]:
    signal, _, period = text.partition("=")
    match = _GRACE_PERIOD.fullmatch(period)
    if signal not in SIGNALS or not period or match is None:
        raise BadThreshold(f'found {text!r}; for example "memory.available=1m30s" is accepted')
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return signal, timedelta(hours=hours, minutes=minutes, seconds=seconds)


def hard_eviction_reservation(thresholds: Iterable[Threshold], capacity: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of `memory` and `ephemeral-storage` that pods cannot use without crossing a hard threshold.

    Signals of the images' file system, inodes and processes reserve nothing (kubelet: hardEvictionReservation).
    """
    reservation = {"memory": 0, "ephemeral-storage": 0}
    for threshold in thresholds:
        if threshold.grace is None and threshold.signal in {"memory.available", "nodefs.available"}:
            resource = SIGNALS[threshold.signal].resource
            reservation[resource] = threshold.limit(capacity[resource])
    return reservation


# --- observation ------------------------------------------------------------------------------------------------------


def thresholds_met(
    thresholds: Iterable[Threshold], observations: Mapping[str, SignalObservation]
) -> tuple[Threshold, ...]:
    """Return the thresholds whose signals are below them: memory first, and hard ones before soft ones."""
    met_thresholds = [threshold for threshold in thresholds if _is_met(threshold, observations.get(threshold.signal))]
    return tuple(
        sorted(
            met_thresholds,
            key=lambda threshold: (SIGNALS[threshold.signal].condition != MEMORY, threshold.grace is not None),
        )
    )


def _is_met(threshold: Threshold, observation: SignalObservation | None) -> bool:
    # A signal that could not be observed evicts no pod (kubelet: thresholdsMet).
    return observation is not None and observation.available < threshold.limit(observation.capacity)


def thresholds_first_observed(
    previous: Mapping[Threshold, datetime], met_thresholds: Iterable[Threshold], now: datetime
) -> dict[Threshold, datetime]:
    """Return the time since which each threshold has been met without interruption."""
    return {threshold: previous.get(threshold, now) for threshold in met_thresholds}


def due_thresholds(first_observed: Mapping[Threshold, datetime], now: datetime) -> tuple[Threshold, ...]:
    """Return the thresholds that require an eviction now: hard ones at once, soft ones after their grace period."""
    return tuple(
        threshold
        for threshold, since in first_observed.items()
        if threshold.grace is None or now - since >= threshold.grace
    )


def next_threshold_due(first_observed: Mapping[Threshold, datetime], now: datetime) -> datetime | None:
    """Return the time at which the next soft threshold becomes due, None if none does."""
    due_times = [since + threshold.grace for threshold, since in first_observed.items() if threshold.grace is not None]
    return min((due_time for due_time in due_times if due_time > now), default=None)


def conditions_last_observed(
    previous: Mapping[str, datetime], met_thresholds: Iterable[Threshold], now: datetime
) -> dict[str, datetime]:
    """Return the time at which each condition last had a threshold that was met."""
    return {**previous, **{SIGNALS[threshold.signal].condition: now for threshold in met_thresholds}}


def node_pressure(last_observed: Mapping[str, datetime], now: datetime, transition: timedelta) -> Pressure:
    """Return the pressure of the node. A condition stays true for `transition` after its thresholds were met last."""
    active = {condition for condition, moment in last_observed.items() if now - moment < transition or now == moment}
    return Pressure(MEMORY in active, DISK in active, PROCESSES in active)

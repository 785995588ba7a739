"""The rules between a recommended and a desired number of pods: stabilization, rates, bounds. Pure.

Times are those of a monotonic clock, so a step of the time of day changes nothing. The history is in memory only, as in
Kubernetes: after a start of the master the current number is the first recommendation, so that nothing is removed at
once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from master.resources.autoscaling import MAX_POLICIES, HorizontalPodAutoscalerBehavior, HPAScalingRules

SCALE_UP_FACTOR, SCALE_UP_MINIMUM = 2, 4
"""Without a behavior, at most this many times the current number of pods, or the minimum if it is greater."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The number of pods that the metrics required at a time."""

    replicas: int
    at: float


@dataclass(frozen=True, slots=True)
class ScaleEvent:
    """A change of the number of pods, by a number above 0."""

    change: int
    at: float


@dataclass(frozen=True, slots=True)
class History:
    """What happened to one autoscaler, oldest first. Entries that no window or period reaches any more are dropped."""

    recommendations: tuple[Recommendation, ...] = ()
    scale_ups: tuple[ScaleEvent, ...] = ()
    scale_downs: tuple[ScaleEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the greatest number of pods."""

    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason and message of a condition."""

    reason: str
    message: str


READY_FOR_NEW_SCALE = Reason("ReadyForNewScale", "recommended size matches current size")
SCALE_UP_STABILIZED = Reason(
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
)
SCALE_DOWN_STABILIZED = Reason(
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
)
DESIRED_WITHIN_RANGE = Reason("DesiredWithinRange", "the desired count is within the acceptable range")
TOO_FEW_REPLICAS = Reason("TooFewReplicas", "the desired replica count is less than the minimum replica count")
TOO_MANY_REPLICAS = Reason("TooManyReplicas", "the desired replica count is more than the maximum replica count")
SCALE_UP_LIMIT = Reason("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate")
SCALE_DOWN_LIMIT = Reason(
    "ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"
)


@dataclass(frozen=True, slots=True)
class Normalized:
    """The desired number of pods.

    `able` explains how it was stabilized, `limited` which limit applies (`is_limited`) or that none does.
    """

    replicas: int
    able: Reason
    limited: Reason
    is_limited: bool
    history: History


def begin(history: History, current: int, monotonic: float) -> History:
    """Return the history with the current number as the first recommendation, if it has none."""
    if history.recommendations:
        return history
    return replace(history, recommendations=(Recommendation(current, monotonic),))


def normalize(
    behavior: HorizontalPodAutoscalerBehavior | None,
    current: int,
    recommended: int,
    bounds: Bounds,
    history: History,
    downscale_stabilization: float,
    monotonic: float,
) -> Normalized:
    """Return the desired number of pods for a recommended one, and the history with this recommendation."""
    if behavior is None or behavior.scale_up is None or behavior.scale_down is None:
        window = downscale_stabilization
        recent = [each.replicas for each in history.recommendations if each.at >= monotonic - window]
        stabilized = max((recommended, *recent))
        desired, limited = _without_behavior(current, stabilized, bounds)
        able = SCALE_DOWN_STABILIZED
    else:
        up_window = behavior.scale_up.stabilization_window_seconds or 0
        down_window = behavior.scale_down.stabilization_window_seconds
        if down_window is None:
            down_window = int(downscale_stabilization)
        window = max(up_window, down_window)
        lowest = _recent(history, up_window, monotonic)
        highest = _recent(history, down_window, monotonic)
        stabilized = min(max(current, min((recommended, *lowest))), max((recommended, *highest)))
        desired, limited = _with_behavior(behavior, current, stabilized, bounds, history, monotonic)
        able = SCALE_UP_STABILIZED if recommended >= current else SCALE_DOWN_STABILIZED
    return Normalized(
        replicas=desired,
        able=able if stabilized != recommended else READY_FOR_NEW_SCALE,
        limited=limited,
        is_limited=desired != stabilized,
        history=_with_recommendation(history, Recommendation(recommended, monotonic), window),
    )


def _recent(history: History, window: float, monotonic: float) -> list[int]:
    return [each.replicas for each in history.recommendations if each.at > monotonic - window]


def _with_recommendation(history: History, new: Recommendation, window: float) -> History:
    """Return the history with a new recommendation.

    An older one matters only for the highest or the lowest of a window. So it is dropped if a later one is at least as
    high and another at least as low.
    """
    kept = [new]
    highest = lowest = new.replicas
    for each in reversed(history.recommendations):
        if each.at < new.at - window:
            break
        if each.replicas > highest or each.replicas < lowest:
            kept.append(each)
            highest, lowest = max(highest, each.replicas), min(lowest, each.replicas)
    return replace(history, recommendations=tuple(reversed(kept)))


def _without_behavior(current: int, stabilized: int, bounds: Bounds) -> tuple[int, Reason]:
    up_limit = max(SCALE_UP_FACTOR * current, SCALE_UP_MINIMUM)
    maximum, limit = (up_limit, SCALE_UP_LIMIT) if bounds.maximum > up_limit else (bounds.maximum, TOO_MANY_REPLICAS)
    if stabilized < bounds.minimum:
        return bounds.minimum, TOO_FEW_REPLICAS
    return (maximum, limit) if stabilized > maximum else (stabilized, DESIRED_WITHIN_RANGE)


def _with_behavior(
    behavior: HorizontalPodAutoscalerBehavior,
    current: int,
    stabilized: int,
    bounds: Bounds,
    history: History,
    monotonic: float,
) -> tuple[int, Reason]:
    assert behavior.scale_up is not None
    assert behavior.scale_down is not None
    if stabilized > current:
        up_limit = max(current, _up_limit(current, behavior.scale_up, history, monotonic))
        maximum, limit = (
            (up_limit, SCALE_UP_LIMIT) if bounds.maximum > up_limit else (bounds.maximum, TOO_MANY_REPLICAS)
        )
        if stabilized > maximum:
            return maximum, limit
    elif stabilized < current:
        down_limit = min(current, _down_limit(current, behavior.scale_down, history, monotonic))
        minimum, limit = (
            (down_limit, SCALE_DOWN_LIMIT) if bounds.minimum < down_limit else (bounds.minimum, TOO_FEW_REPLICAS)
        )
        if stabilized < minimum:
            return minimum, limit
    return stabilized, DESIRED_WITHIN_RANGE


def _up_limit(current: int, rules: HPAScalingRules, history: History, monotonic: float) -> int:
    """Return up to which number of pods the policies allow to scale."""
    if rules.select_policy == "Disabled":
        return current
    limits = []
    for policy in rules.policies[:MAX_POLICIES]:
        start = _period_start(current, policy.period_seconds, history, monotonic)
        limits.append(start + policy.value if policy.type == "Pods" else math.ceil(start * (1 + policy.value / 100)))
    return min(limits, default=current) if rules.select_policy == "Min" else max(limits, default=current)


def _down_limit(current: int, rules: HPAScalingRules, history: History, monotonic: float) -> int:
    """Return down to which number of pods the policies allow to scale."""
    if rules.select_policy == "Disabled":
        return current
    limits = []
    for policy in rules.policies[:MAX_POLICIES]:
        start = _period_start(current, policy.period_seconds, history, monotonic)
        limits.append(start - policy.value if policy.type == "Pods" else int(start * (1 - policy.value / 100)))
    return max(limits, default=current) if rules.select_policy == "Min" else min(limits, default=current)


def _period_start(current: int, seconds: int, history: History, monotonic: float) -> int:
    """Return the number of pods at the start of a period: without what was added in it, with what was removed."""
    added, removed = (
        sum(event.change for event in events if event.at > monotonic - seconds)
        for events in (history.scale_ups, history.scale_downs)
    )
    return current - added + removed


def with_scale_event(
    history: History, behavior: HorizontalPodAutoscalerBehavior | None, before: int, after: int, monotonic: float
) -> History:
    """Return the history with a change of the number of pods. Only policies read it, so it is dropped without them."""
    if behavior is None or behavior.scale_up is None or behavior.scale_down is None:
        return replace(history, scale_ups=(), scale_downs=())
    period = max(
        (policy.period_seconds for rules in (behavior.scale_up, behavior.scale_down) for policy in rules.policies),
        default=0,
    )
    event = ScaleEvent(abs(after - before), monotonic)
    ups, downs = _since(history.scale_ups, monotonic - period), _since(history.scale_downs, monotonic - period)
    if after > before:
        return replace(history, scale_ups=(*ups, event), scale_downs=downs)
    return replace(history, scale_ups=ups, scale_downs=(*downs, event))


def _since(events: Iterable[ScaleEvent], time: float) -> tuple[ScaleEvent, ...]:
    return tuple(event for event in events if event.at >= time)

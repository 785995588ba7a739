"""The replica calculator of HorizontalPodAutoscalers: from a metric and its target to a number of pods. Pure.

The rules and the arithmetic are those of Kubernetes: values are integers in thousandths, and averages and utilizations
are cut to integers before they are compared with the target.
"""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from api.core.pod import Pod
from api.core.resource_requests import sidecars
from api.meta import quantity
from api.meta.types import Condition
from master.resources.metadata import parse_time
from master.resources.pods import is_pod_ready

CPU = "cpu"
MAX_REPLICAS = (1 << 31) - 1
MAX_MILLI = (1 << 63) - 1
"""The greatest amount. A greater one is taken for it."""


class MetricError(Exception):
    """A metric from which no number of pods follows. The message is that of Kubernetes, for events and conditions."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """The ratios of usage to target within which nothing changes: from 1 - `scale_down` to 1 + `scale_up`."""

    scale_down: float
    scale_up: float

    def contain(self, ratio: float) -> bool:
        """Return whether a ratio is too near to 1 for a change."""
        return 1.0 - self.scale_down <= ratio <= 1.0 + self.scale_up


@dataclass(frozen=True, slots=True)
class ReadinessTiming:
    """When the CPU usage of a pod counts.

    Within `cpu_initialization_period` after its start, a pod counts while it is ready, with a sample that began after
    it became so. Later every pod counts, except one that is not ready and has not been so since
    `initial_readiness_delay` after its start.
    """

    cpu_initialization_period: datetime.timedelta
    initial_readiness_delay: datetime.timedelta


@dataclass(frozen=True, slots=True)
class PodMetric:
    """The value of a metric for one pod, in thousandths, measured over `window` until `timestamp`."""

    value: int
    timestamp: datetime.datetime
    window: datetime.timedelta


PodMetrics = Mapping[str, PodMetric]
"""By name of the pod."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The number of pods that a metric requires, and its measured value in thousandths.

    `utilization` is the value in percent of the requests; None if the metric has none.
    """

    replicas: int
    value: int
    utilization: int | None = None


@dataclass(frozen=True, slots=True)
class PodGroups:
    """Pods by what is known about them, as names.

    `ready` have a value that counts, `unready` do not run yet, `missing` have no value. Pods that are being deleted or
    failed are in none of these.
    """

    ready: tuple[str, ...]
    unready: tuple[str, ...]
    missing: tuple[str, ...]


def clamp_milli(amount: int) -> int:
    """Return an amount in thousandths, within what Kubernetes can express."""
    return max(-MAX_MILLI, min(MAX_MILLI, amount))


_parse_time = functools.lru_cache(maxsize=8192)(parse_time)


@functools.lru_cache(maxsize=4096)
def milli(text: str | float) -> int:
    """Return a quantity in thousandths. Raises BadQuantity."""
    return clamp_milli(quantity.to_milli(text))


# --- readiness --------------------------------------------------------------------------------------------------------


def group_pods(
    pods: Iterable[Pod], metrics: PodMetrics, resource: str, timing: ReadinessTiming, now: datetime.datetime
) -> PodGroups:
    """Return the pods by readiness and by whether they have a value. `resource` is empty for other metrics."""
    ready, unready, missing = [], [], []
    for pod in pods:
        name, phase = pod.metadata.name, pod.status.phase
        if pod.metadata.deletion_timestamp is not None or phase == "Failed":
            continue
        metric = metrics.get(name)
        if phase == "Pending":
            unready.append(name)
        elif metric is None:
            missing.append(name)
        elif resource == CPU and _is_unready(pod, metric, timing, now):
            unready.append(name)
        else:
            ready.append(name)
    return PodGroups(tuple(ready), tuple(unready), tuple(missing))


def _is_unready(pod: Pod, metric: PodMetric, timing: ReadinessTiming, now: datetime.datetime) -> bool:
    """Return whether the CPU usage of a pod does not count, because it may be that of its start."""
    condition = next((condition for condition in pod.status.conditions if condition.type == "Ready"), None)
    started = _parse_time(pod.status.start_time)
    if condition is None or started is None:
        return True
    is_not_ready = condition.status == "False"
    changed = _changed_at(condition)
    if now < started + timing.cpu_initialization_period:
        return is_not_ready or metric.timestamp < changed + metric.window
    return is_not_ready and changed < started + timing.initial_readiness_delay


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _changed_at(condition: Condition) -> datetime.datetime:
    return _parse_time(condition.last_transition_time) or _EPOCH


# --- metrics of pods --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """The pods of a target by what is known about them, with the values of those that are ready."""

    groups: PodGroups
    values: Mapping[str, int]


def usage_of(
    pods: Sequence[Pod], metrics: PodMetrics, resource: str, timing: ReadinessTiming, now: datetime.datetime
) -> Usage:
    """Return the usage of pods. Raises MetricError if no value counts."""
    if not pods:
        raise MetricError("no pods returned by selector while calculating replica count")
    groups = group_pods(pods, metrics, resource, timing, now)
    if not groups.ready:
        raise MetricError("did not receive metrics for targeted pods (pods might be unready)")
    return Usage(groups, {name: metrics[name].value for name in groups.ready})


def utilization_replicas(
    current: int, target_percent: int, usage: Usage, requests: Mapping[str, int], tolerances: Tolerances
) -> Proposal:
    """Return the proposal of a target in percent of the requests. Raises MetricError."""
    percent, average = _utilization(usage.values, requests)
    assumed = {name: requests[name] * max(100, target_percent) // 100 for name in usage.groups.missing}
    replicas = _replicas(
        current,
        percent / target_percent,
        usage,
        assumed,
        lambda filled: _utilization(filled, requests)[0] / target_percent,
        tolerances,
    )
    return Proposal(replicas, average, percent)


def average_replicas(current: int, target: int, usage: Usage, tolerances: Tolerances) -> Proposal:
    """Return the proposal of a target for the average over the pods."""
    average = _average(usage.values)
    assumed = dict.fromkeys(usage.groups.missing, target)
    replicas = _replicas(
        current, average / target, usage, assumed, lambda filled: _average(filled) / target, tolerances
    )
    return Proposal(replicas, average)


def _replicas(
    current: int,
    ratio: float,
    usage: Usage,
    assumed: Mapping[str, int],
    ratio_of: Callable[[Mapping[str, int]], float],
    tolerances: Tolerances,
) -> int:
    """Return the number of pods for a ratio of usage to target.

    Pods without a value are assumed to use the target (`assumed`) if the others require fewer pods, and nothing if they
    require more. Unready pods count as using nothing if more pods are required. If the result has another direction
    then, or is within the tolerances, nothing changes.
    """
    groups = usage.groups
    count_unready = bool(groups.unready) and ratio > 1.0
    if not count_unready and not groups.missing:
        return current if tolerances.contain(ratio) else to_replicas(ratio * len(groups.ready))
    filled = dict(usage.values)
    if ratio < 1.0:
        filled |= assumed
    elif ratio > 1.0:
        filled |= dict.fromkeys(groups.missing, 0)
    if count_unready:
        filled |= dict.fromkeys(groups.unready, 0)
    new_ratio = ratio_of(filled)
    if tolerances.contain(new_ratio) or (ratio < 1.0 < new_ratio) or (new_ratio < 1.0 < ratio):
        return current
    replicas = to_replicas(new_ratio * len(filled))
    is_other_direction = (new_ratio < 1.0 and replicas > current) or (new_ratio > 1.0 and replicas < current)
    return current if is_other_direction else replicas


def pod_requests(pods: Iterable[Pod], resource: str, container: str) -> dict[str, int]:
    """Return what pods, or one container of each, request, by name of the pod. Raises MetricError."""
    return {pod.metadata.name: pod_request(pod, resource, container) for pod in pods}


def pod_request(pod: Pod, resource: str, container: str) -> int:
    """Return what a pod, or one of its containers, requests, in thousandths. Sidecars count. Raises MetricError."""
    total = 0
    containers = (*pod.spec.containers, *sidecars(pod)) if pod.spec.init_containers else pod.spec.containers
    for each in containers:
        if container in ("", each.name):
            request = each.resources.requests.get(resource)
            if request is None:
                raise MetricError(f"missing request for {resource} in container {each.name} of Pod {pod.metadata.name}")
            total += milli(request)
            if container:
                return total
    if container:
        raise MetricError(f"container {container} not found in Pod {pod.metadata.name}")
    return clamp_milli(total)


def _utilization(values: Mapping[str, int], requests: Mapping[str, int]) -> tuple[int, int]:
    """Return the usage in percent of the requests, and its average. Raises MetricError."""
    total, requested = sum(values.values()), sum(requests[name] for name in values)
    if requested <= 0:
        raise MetricError("no metrics returned matched known pods")
    return _quotient(total * 100, requested), _quotient(total, len(values))


def _average(values: Mapping[str, int]) -> int:
    return _quotient(sum(values.values()), len(values))


def _quotient(dividend: int, divisor: int) -> int:
    """Return a quotient, cut to an integer as Go does: towards zero."""
    return dividend // divisor if dividend >= 0 else -(-dividend // divisor)


# --- metrics of objects and of the outside ----------------------------------------------------------------------------


def value_replicas(current: int, target: int, value: int, pods: Sequence[Pod], tolerances: Tolerances) -> Proposal:
    """Return the proposal of a target for the whole value: the ready pods times the ratio. Raises MetricError."""
    ratio = value / target
    if tolerances.contain(ratio):
        return Proposal(current, value)
    if not pods:
        raise MetricError(
            "unable to calculate ready pods: no pods returned by selector while calculating replica count"
        )
    ready = sum(pod.status.phase == "Running" and is_pod_ready(pod) for pod in pods)
    return Proposal(to_replicas(ratio * ready), value)


def per_pod_replicas(status_replicas: int, target: int, value: int, tolerances: Tolerances) -> Proposal:
    """Return the proposal of a target for the value divided by the number of pods. The value is that of one pod."""
    if status_replicas == 0:  # The ratio is infinite, unless there is nothing to do.
        return Proposal(to_replicas(value / target), value)
    ratio = value / (target * status_replicas)
    replicas = status_replicas if tolerances.contain(ratio) else to_replicas(value / target)
    return Proposal(replicas, math.ceil(value / status_replicas))


def to_replicas(number: float) -> int:
    """Return a number of pods, rounded up, between 0 and MAX_REPLICAS."""
    return max(0, min(MAX_REPLICAS, math.ceil(number)))

"""Queries for the metrics of HorizontalPodAutoscalers, their answers, and the usage of pods by resource. Pure.

custom.metrics.k8s.io and external.metrics.k8s.io are served by extension API servers.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from api.meta.selectors import LabelSelector, format_selector
from api.meta.types import ObjectReference, Value
from api.meta.values import Quantity
from master.controllers.autoscaling.replica_calculator import MetricError, PodMetric, PodMetrics, milli
from master.resources import metrics as resource_metrics
from master.resources.autoscaling import CrossVersionObjectReference, MetricIdentifier
from master.resources.metadata import parse_time
from master.resources.scheme import find_kind

CUSTOM_METRICS, EXTERNAL_METRICS = "custom.metrics.k8s.io", "external.metrics.k8s.io"
VERSIONS = {CUSTOM_METRICS: ("v1beta2", "v1beta1"), EXTERNAL_METRICS: ("v1beta1",)}
"""The versions that can be read, the preferred one first."""

MAX_ANSWER_BYTES, MAX_ANSWER_ITEMS = 4 << 20, 10_000
DEFAULT_WINDOW_SECONDS = 60
"""The window of a metric that names none."""


@dataclass(frozen=True, slots=True)
class MetricQuery:
    """A request for the values of a metric: the segments of its path below the version, and its parameters."""

    group: str
    segments: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...] = ()

    def path(self, version: str) -> str:
        """Return the path of the request."""
        return f"/apis/{self.group}/{version}/" + "/".join(quote(segment, safe="*") for segment in self.segments)


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A value of a metric. `name` is the described object, empty for an external metric."""

    name: str
    metric: PodMetric


Answer = tuple[MetricValue, ...] | MetricError
Answers = Mapping[MetricQuery, Answer]


def pods_query(namespace: str, selector: str, metric: MetricIdentifier) -> MetricQuery:
    """Return the query for a metric of all pods of a selector."""
    parameters = (("labelSelector", selector), *_metric_selector("metricLabelSelector", metric))
    return MetricQuery(CUSTOM_METRICS, ("namespaces", namespace, "pods", "*", metric.name), parameters)


def object_query(namespace: str, described: CrossVersionObjectReference, metric: MetricIdentifier) -> MetricQuery:
    """Return the query for a metric of one object. Raises MetricError."""
    group = described.api_version.rpartition("/")[0]
    parameters = _metric_selector("metricLabelSelector", metric)
    if (group, described.kind) == ("", "Namespace"):
        return MetricQuery(CUSTOM_METRICS, ("namespaces", namespace, "metrics", metric.name), parameters)
    resource = find_kind(group, described.kind)
    if resource is None:
        raise MetricError(
            f"unable to fetch metrics from custom metrics API: unable to map kind {described.kind}.{group} to "
            "resource: "
            f'no matches for kind "{described.kind}" in group "{group}"'
        )
    name = f"{resource.plural}.{group}" if group else resource.plural
    segments = ("namespaces", namespace, name, described.name, metric.name)
    return MetricQuery(CUSTOM_METRICS, segments, parameters)


def external_query(namespace: str, metric: MetricIdentifier) -> MetricQuery:
    """Return the query for a metric from outside of the cluster."""
    return MetricQuery(
        EXTERNAL_METRICS, ("namespaces", namespace, metric.name), _metric_selector("labelSelector", metric)
    )


def _metric_selector(parameter: str, metric: MetricIdentifier) -> tuple[tuple[str, str], ...]:
    selector = metric.selector
    is_empty = selector is None or selector == LabelSelector()
    return () if is_empty else ((parameter, format_selector(selector)),)


def not_served(query: MetricQuery) -> str:
    """Return the error of a query whose API group no server serves."""
    if query.group == CUSTOM_METRICS:
        return f"no custom metrics API ({CUSTOM_METRICS}) registered"
    return f"the server could not find the requested resource (get {query.segments[-1]}.{EXTERNAL_METRICS})"


# --- answers ------------------------------------------------------------------------------------------------------


class _Item(Value, frozen=True):
    """The used fields of a MetricValue or an ExternalMetricValue."""

    described_object: ObjectReference = ObjectReference()
    timestamp: str = ""
    window_seconds: int | None = None
    window: int | None = None
    """`window_seconds` as custom.metrics.k8s.io/v1beta1 calls it."""
    value: Quantity = 0


class _Items(Value, frozen=True):
    """The used fields of a list of values."""

    items: tuple[_Item, ...] = ()


MAX_WINDOW_SECONDS = 86_400


def decode_values(body: bytes, now: datetime.datetime) -> tuple[MetricValue, ...]:
    """Return the values in a body. Raises MetricError, DecodeError and BadQuantity."""
    if len(body) > MAX_ANSWER_BYTES:
        raise MetricError(f"the answer has {len(body)} bytes; {MAX_ANSWER_BYTES} are accepted")
    items = msgspec.json.decode(body, type=_Items).items
    if len(items) > MAX_ANSWER_ITEMS:
        raise MetricError(f"the answer has {len(items)} values; {MAX_ANSWER_ITEMS} are accepted")
    return tuple(
        MetricValue(
            item.described_object.name,
            PodMetric(milli(item.value), parse_time(item.timestamp) or now, _window(item)),
        )
        for item in items
    )


def _window(item: _Item) -> datetime.timedelta:
    seconds = item.window if item.window_seconds is None else item.window_seconds
    seconds = DEFAULT_WINDOW_SECONDS if seconds is None else seconds
    return datetime.timedelta(seconds=max(0, min(seconds, MAX_WINDOW_SECONDS)))


# --- usage of pods ----------------------------------------------------------------------------------------------------


WINDOW = datetime.timedelta(seconds=int(resource_metrics.WINDOW.removesuffix("s")))


def usage_of_pods(
    measured: Iterable[resource_metrics.PodMetrics], resource: str, container: str, now: datetime.datetime
) -> PodMetrics:
    """Return the usage of a resource by pods, or by one container of each."""
    usage: dict[str, PodMetric] = {}
    for pod in measured:
        amounts = [
            resource_metrics.milli_usage(each.usage, resource)
            for each in pod.containers
            if container in ("", each.name)
        ]
        known = [amount for amount in amounts if amount is not None]
        if known and len(known) == len(amounts):
            usage[pod.metadata.name] = PodMetric(sum(known), parse_time(pod.timestamp) or now, WINDOW)
    return usage

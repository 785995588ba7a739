"""Metrics of requests, under kube-apiserver's names and labels. Pure: times come as arguments.

Every label has few values, whatever clients send: a verb, resource, subresource or path that is not served, and a
status code that HTTP does not define (pods may answer it through the proxy), is folded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

from master.audit.event import AuditRecord
from master.request_info import RequestInfo
from reconcile.exposition import Histogram, MetricFamily, counter, format_labels, gauge, histogram

DURATION_BUCKETS = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
)  # fmt: skip

VERBS = {
    "get": "GET",
    "head": "GET",
    "list": "LIST",
    "watch": "WATCH",
    "create": "POST",
    "post": "POST",
    "update": "PUT",
    "put": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETECOLLECTION",
}
"""The label of a verb, or of the method of a request that is about no resource. OTHER_VERB for all others."""

OTHER_VERB, APPLY, CONNECT = "OTHER", "APPLY", "CONNECT"

PATHS = ("/healthz", "/livez", "/readyz", "/metrics", "/version", "/openapi", "/oauth", "/login", "/apis", "/api")
"""Paths that are about no resource. The label of a longer path is that of its beginning; none for others."""

NO_RESPONSE = 0
"""The code of a request whose client left before the response."""

OTHER_CODE = "other"
_CODES = {status.value: str(status.value) for status in HTTPStatus} | {NO_RESPONSE: "0"}

_READING_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))


class RequestLabels(NamedTuple):
    """The labels of a request. `scope` is resource, namespace, cluster, or empty."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    scope: str = ""
    dry_run: str = ""

    def text(self, **more: str) -> str:
        """Return the labels as text."""
        return format_labels(**self._asdict(), component="apiserver", **more)


def request_labels(record: AuditRecord, content_type: str, *, is_dry_run: bool) -> RequestLabels:
    """Return the labels of a request, by what is known of it when it ends. `content_type` is that of its body."""
    verb = VERBS.get(record.verb, OTHER_VERB)
    if record.aggregated is not None:  # its resources are not known, and there may be any number of them
        return RequestLabels(verb, *record.aggregated)
    if record.info is None:
        if record.attributes is not None:  # a review, or a request for a project
            scope = "namespace" if record.attributes.namespace else "cluster"
            return RequestLabels(verb, record.attributes.group, "v1", record.attributes.resource, scope=scope)
        path = next((path for path in PATHS if record.path == path or record.path.startswith(f"{path}/")), "")
        return RequestLabels(verb, subresource=path)
    info = record.info
    subresource = info.resource.subresource(info.subresource)
    if subresource is not None and subresource.proxied:
        verb = CONNECT
    elif verb == "PATCH" and content_type.startswith("application/apply-patch"):
        verb = APPLY
    group, _, version = info.resource.type.API_VERSION.rpartition("/")
    return RequestLabels(
        verb=verb,
        group=group,
        version=version,
        resource=info.resource.plural,
        subresource="" if subresource is None else subresource.name,
        scope=_scope(info, verb),
        dry_run="All" if is_dry_run else "",
    )


def _scope(info: RequestInfo, verb: str) -> str:
    if info.name or verb == "POST":
        return "resource"
    return "namespace" if info.namespace else "cluster"


@dataclass(slots=True)
class _Ended:
    """The ended requests with the same labels, their durations, and their number by status code."""

    seconds: Histogram = field(default_factory=lambda: Histogram(DURATION_BUCKETS))
    codes: Counter[int] = field(default_factory=Counter)


class RequestMetrics:
    """Counts and times requests. A request is in flight until it ends, or until it is known to be long-running."""

    def __init__(self) -> None:
        self._ended: dict[RequestLabels, _Ended] = {}
        self._in_flight = {True: 0, False: 0}
        self._long_running: Counter[RequestLabels] = Counter()

    def begin(self, method: str) -> None:
        """Count a request as being in flight."""
        self._in_flight[method in _READING_METHODS] += 1

    def end(self, method: str, labels: RequestLabels, code: int, seconds: float) -> None:
        """Count a request that has ended. `code` is the status of the response, NO_RESPONSE for none."""
        self._in_flight[method in _READING_METHODS] -= 1
        ended = self._ended.get(labels)
        if ended is None:
            ended = self._ended[labels] = _Ended()
        ended.seconds.observe(seconds)
        ended.codes[code if code in _CODES else -1] += 1

    @contextmanager
    def long_running(self, method: str, labels: RequestLabels) -> Iterator[None]:
        """Count a request as a watch or a stream, and not as being in flight, during the block."""
        is_reading = method in _READING_METHODS
        self._in_flight[is_reading] -= 1
        self._long_running[labels] += 1
        try:
            yield
        finally:
            self._in_flight[is_reading] += 1
            self._long_running[labels] -= 1

    def families(self) -> Iterator[MetricFamily]:
        """Yield the metrics."""
        yield counter(
            "apiserver_request_total",
            "Requests that have ended, by status code; 0: the client left before the response.",
            {
                labels.text(code=_CODES.get(code, OTHER_CODE)): number
                for labels, ended in self._ended.items()
                for code, number in ended.codes.items()
            },
        )
        yield histogram(
            "apiserver_request_duration_seconds",
            "Seconds from a request until its response; of a watch or a stream, until its end.",
            {labels.text(): ended.seconds for labels, ended in self._ended.items()},
        )
        yield gauge(
            "apiserver_current_inflight_requests",
            "Requests that are being answered, without watches and streams.",
            {
                format_labels(request_kind="readOnly" if is_reading else "mutating"): number
                for is_reading, number in self._in_flight.items()
            },
        )
        yield gauge(
            "apiserver_longrunning_requests",
            "Open watches and streams.",
            {labels.text(): number for labels, number in self._long_running.items()},
        )

"""Metrics of requests: labels, what hostile requests add, requests in progress."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from master.audit.event import AuditRecord
from master.auth.attributes import Attributes
from master.server.auditing import attributes_of
from master.server.request_metrics import NO_RESPONSE, RequestLabels, RequestMetrics, request_labels
from master.server.routes import ProxyRoute, ResourceRoute, resolve
from reconcile.exposition import format_families


def labels_of(method: str, path: str, content_type: str = "", **query: str) -> RequestLabels:
    """Return the labels of a request that was routed as the server routes it."""
    record = AuditRecord("id", datetime.datetime.now(datetime.UTC), method, path, "", (), "")
    route = resolve(method, path, path, query)
    attributes = attributes_of(route, query)
    record.verb = attributes.verb
    record.info = route.info if isinstance(route, ResourceRoute | ProxyRoute) else None
    record.attributes = attributes if isinstance(attributes, Attributes) else None
    return request_labels(record, content_type, is_dry_run=query.get("dryRun") == "All")


RED = "/api/v1/namespaces/red/pods"
CASES: list[tuple[tuple[str, ...], dict[str, str], RequestLabels]] = [
    (("GET", RED), {}, RequestLabels("LIST", "", "v1", "pods", "", "namespace")),
    (("GET", "/api/v1/pods"), {"watch": "1"}, RequestLabels("WATCH", "", "v1", "pods", "", "cluster")),
    (("GET", f"{RED}/web"), {}, RequestLabels("GET", "", "v1", "pods", "", "resource")),
    (("HEAD", f"{RED}/web"), {}, RequestLabels("GET", "", "v1", "pods", "", "resource")),
    (("POST", RED), {"dryRun": "All"}, RequestLabels("POST", "", "v1", "pods", "", "resource", "All")),
    (("PUT", f"{RED}/web/status"), {}, RequestLabels("PUT", "", "v1", "pods", "status", "resource")),
    (("PATCH", f"{RED}/web"), {}, RequestLabels("PATCH", "", "v1", "pods", "", "resource")),
    (
        ("PATCH", f"{RED}/web", "application/apply-patch+yaml; charset=utf-8"),
        {},
        RequestLabels("APPLY", "", "v1", "pods", "", "resource"),
    ),
    (("DELETE", RED), {}, RequestLabels("DELETECOLLECTION", "", "v1", "pods", "", "namespace")),
    (("POST", f"{RED}/web/exec"), {}, RequestLabels("CONNECT", "", "v1", "pods", "exec", "resource")),
    (("GET", f"{RED}/web/proxy/any/path"), {}, RequestLabels("CONNECT", "", "v1", "pods", "proxy", "resource")),
    (("GET", "/apis/apps/v1/deployments"), {}, RequestLabels("LIST", "apps", "v1", "deployments", "", "cluster")),
    (
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
        {},
        RequestLabels("POST", "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "", "cluster"),
    ),
    (("GET", "/healthz/ping"), {}, RequestLabels("GET", subresource="/healthz")),
    (("GET", "/metrics"), {}, RequestLabels("GET", subresource="/metrics")),
    (("GET", "/metricses"), {}, RequestLabels("GET")),
    (("BREW", "/coffee"), {}, RequestLabels("OTHER")),
    (("GET", f"{RED}/web/songs"), {}, RequestLabels("GET", "", "v1", "pods", "", "resource")),
    (("GET", "/api/v1/songs"), {}, RequestLabels("GET", subresource="/api")),
]


@pytest.mark.parametrize(("request_line", "query", "expected"), CASES)
def test_labels_are_those_of_kube_apiserver(
    request_line: tuple[str, ...], query: dict[str, str], expected: RequestLabels
) -> None:
    assert labels_of(*request_line, **query) == expected


def values(metrics: RequestMetrics) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(format_families(metrics.families())):
        for sample in family.samples:
            text = " ".join(sample.labels[name] for name in ("verb", "request_kind", "code") if name in sample.labels)
            found.setdefault(sample.name, {})[text] = sample.value
    return found


def test_ended_requests_are_counted_by_code_and_timed() -> None:
    metrics, listing = RequestMetrics(), labels_of("GET", RED)
    for code, seconds in ((200, 0.01), (200, 0.3), (403, 0.001), (NO_RESPONSE, 2.0), (299, 0.1)):
        metrics.begin("GET")
        metrics.end("GET", listing, code, seconds)
    found = values(metrics)
    assert found["apiserver_request_total"] == {"LIST 200": 2, "LIST 403": 1, "LIST 0": 1, "LIST other": 1}
    assert found["apiserver_request_duration_seconds_count"] == {"LIST": 5}
    assert found["apiserver_request_duration_seconds_sum"]["LIST"] == pytest.approx(2.411)


def test_watch_is_not_in_flight_while_it_runs() -> None:
    metrics, watching = RequestMetrics(), labels_of("GET", RED, watch="1")
    metrics.begin("GET")
    metrics.begin("POST")
    assert values(metrics)["apiserver_current_inflight_requests"] == {"readOnly": 1, "mutating": 1}
    with metrics.long_running("GET", watching):
        assert values(metrics)["apiserver_current_inflight_requests"] == {"readOnly": 0, "mutating": 1}
        assert values(metrics)["apiserver_longrunning_requests"] == {"WATCH": 1}
    metrics.end("GET", watching, 200, 60.0)
    assert values(metrics)["apiserver_current_inflight_requests"] == {"readOnly": 0, "mutating": 1}
    assert values(metrics)["apiserver_longrunning_requests"] == {"WATCH": 0}


def test_clients_cannot_make_series() -> None:
    """Names, namespaces, paths, methods and codes that nobody serves add no series beyond the first of their kind."""
    chosen = random.Random(1)

    def word() -> str:
        return "".join(chosen.choices("abcdefghij", k=8))

    def request(metrics: RequestMetrics) -> None:
        method = chosen.choice(("GET", "POST", "PUT", "PATCH", "DELETE", word().upper()))
        path = chosen.choice(
            (
                f"/{word()}", f"/api/v1/{word()}", f"/apis/{word()}/v1/{word()}", f"/healthz/{word()}",
                f"/oauth/{word()}", f"/api/v1/namespaces/{word()}/pods/{word()}", f"{RED}/{word()}/{word()}",
                f"/api/v1/namespaces/{word()}/services/{word()}/proxy/{word()}",
            )
        )  # fmt: skip
        query: dict[str, Any] = {"dryRun": word(), "fieldSelector": word()}
        labels = labels_of(method, path, word(), **query)
        metrics.begin(method)
        metrics.end(
            method, labels, chosen.choice((200, 404, NO_RESPONSE, chosen.randrange(600, 1000))), chosen.random()
        )

    metrics = RequestMetrics()
    for _ in range(10_000):
        request(metrics)
    before = len(values_by_line(metrics))
    for _ in range(10_000):
        request(metrics)
    assert len(values_by_line(metrics)) == before < 2_000


def values_by_line(metrics: RequestMetrics) -> list[str]:
    return [line for line in format_families(metrics.families()).splitlines() if not line.startswith("#")]

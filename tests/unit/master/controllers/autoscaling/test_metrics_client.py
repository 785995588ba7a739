"""Queries to extension API servers: paths, answers, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from api.meta.selectors import LabelSelector
from master import errors
from master.controllers.autoscaling import metric_queries, metrics_client
from master.controllers.autoscaling.metric_queries import (
    CUSTOM_METRICS,
    MAX_ANSWER_BYTES,
    MAX_ANSWER_ITEMS,
    MetricQuery,
    external_query,
    object_query,
    pods_query,
    usage_of_pods,
)
from master.controllers.autoscaling.metrics_client import NoExtensionAPIs, ask
from master.controllers.autoscaling.replica_calculator import MAX_MILLI, MetricError
from master.resources.autoscaling import CrossVersionObjectReference, MetricIdentifier
from master.resources.metrics import ContainerMetrics, PodMetrics, Usage
from reconcile.errors import NotReady
from tests.unit.master.controllers.autoscaling.examples import NOW, WINDOW, measured

HITS = MetricIdentifier(name="hits", selector=LabelSelector(match_labels={"verb": "GET"}))
QUEUE = MetricIdentifier(name="queue depth")
CUSTOM, EXTERNAL = pods_query("red", "app=web", HITS), external_query("red", QUEUE)


class Server:
    """Extension API servers with one answer."""

    def __init__(self, answer: bytes | Exception = b"", versions: Sequence[str] = ("v1beta1", "v1beta2")) -> None:
        self._answer = answer
        self._versions = versions
        self.requests: list[tuple[str, Mapping[str, str]]] = []

    def served_version(self, group: str, versions: Sequence[str]) -> str:
        return next((version for version in versions if version in self._versions), "")

    async def get(self, path: str, parameters: Mapping[str, str]) -> bytes:
        self.requests.append((path, parameters))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def items(*values: Any, **more: Any) -> bytes:
    rows = [
        {"describedObject": {"name": f"p{index}"}, "timestamp": "2026-01-31T11:59:00Z", "value": value, **more}
        for index, value in enumerate(values)
    ]
    return json.dumps({"kind": "MetricValueList", "items": rows}).encode()


async def error_of(query: MetricQuery, apis: metrics_client.ExtensionAPIs) -> str:
    answer = (await ask([query], apis, NOW))[query]
    assert isinstance(answer, MetricError)
    return str(answer)


async def test_values_are_read_in_the_preferred_version() -> None:
    server = Server(items("1500m", "2", windowSeconds=30))
    answers = await ask([CUSTOM, CUSTOM], server, NOW)
    assert server.requests == [
        ("/apis/custom.metrics.k8s.io/v1beta2/namespaces/red/pods/*/hits",
         {"labelSelector": "app=web", "metricLabelSelector": "verb=GET"})
    ]  # fmt: skip
    values = answers[CUSTOM]
    assert isinstance(values, tuple)
    assert [(value.name, value.metric.value) for value in values] == [("p0", 1500), ("p1", 2000)]
    assert values[0].metric.window.total_seconds() == 30
    assert values[0].metric.timestamp.minute == 59


async def test_paths_of_metrics_are_those_of_kubernetes() -> None:
    server = Server(items(1), versions=("v1beta1",))
    ingress = CrossVersionObjectReference(api_version="networking.k8s.io/v1", kind="Ingress", name="in")
    namespace = CrossVersionObjectReference(api_version="v1", kind="Namespace", name="red")
    queries = [EXTERNAL, object_query("red", ingress, QUEUE), object_query("red", namespace, HITS)]
    await ask(queries, server, NOW)
    assert sorted(path for path, _ in server.requests) == [
        "/apis/custom.metrics.k8s.io/v1beta1/namespaces/red/ingresses.networking.k8s.io/in/queue%20depth",
        "/apis/custom.metrics.k8s.io/v1beta1/namespaces/red/metrics/hits",
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/red/queue%20depth",
    ]
    with pytest.raises(MetricError, match='no matches for kind "Thing" in group'):
        object_query("red", CrossVersionObjectReference(api_version="example.com/v1", kind="Thing", name="x"), HITS)


async def test_api_that_nobody_serves_has_the_words_of_kubernetes() -> None:
    assert await error_of(CUSTOM, NoExtensionAPIs()) == (
        "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered"
    )
    assert await error_of(EXTERNAL, NoExtensionAPIs()) == (
        "unable to fetch metrics from external metrics API: the server could not find the requested resource (get "
        "queue depth.external.metrics.k8s.io)"
    )


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (items(), "no metrics returned from custom metrics API"),
        (NotReady("no route"), "unable to fetch metrics from custom metrics API: no route"),
        (errors.service_unavailable("later"), "unable to fetch metrics from custom metrics API: later"),
        (b"<html>", "unable to fetch metrics from custom metrics API: JSON is malformed"),
        (b'{"items": 7}', "unable to fetch metrics from custom metrics API: Expected `array`"),
        (items("much"), "unable to fetch metrics from custom metrics API: 'much' is not a quantity"),
        (items("1e999"), "unable to fetch metrics from custom metrics API: '1e999' is out of range"),
        (b" " * (MAX_ANSWER_BYTES + 1), "unable to fetch metrics from custom metrics API: the answer has"),
        (items(*range(MAX_ANSWER_ITEMS + 1)), "unable to fetch metrics from custom metrics API: the answer has 10001"),
    ],
)
async def test_answer_that_is_none_is_an_error(answer: bytes | Exception, error: str) -> None:
    assert (await error_of(CUSTOM, Server(answer))).startswith(error)


async def test_server_that_does_not_answer_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Server):
        async def get(self, path: str, parameters: Mapping[str, str]) -> bytes:
            await asyncio.Event().wait()
            return b""

    monkeypatch.setattr(metrics_client, "QUERY_SECONDS", 0.01)
    assert "no answer within" in await error_of(CUSTOM, Silent())


async def test_hostile_values_are_bounded() -> None:
    answers = await ask([CUSTOM], Server(items("1e30", "-1e30", window=10**15)), NOW)
    values = answers[CUSTOM]
    assert isinstance(values, tuple)
    assert [value.metric.value for value in values] == [MAX_MILLI, -MAX_MILLI]
    assert values[0].metric.window.total_seconds() == metric_queries.MAX_WINDOW_SECONDS
    assert CUSTOM.group == CUSTOM_METRICS


def test_usage_of_a_pod_is_the_sum_of_its_containers() -> None:
    two = PodMetrics(
        metadata=measured(1)["p0"].metadata,
        timestamp="2026-01-31T11:59:50Z",
        containers=(ContainerMetrics("a", Usage("1500001n", "10Ki")), ContainerMetrics("b", Usage("2000000n", "1Ki"))),
    )
    assert usage_of_pods([two], "cpu", "", NOW)["p0"].value == 4  # each is rounded up
    assert usage_of_pods([two], "memory", "", NOW)["p0"].value == 11 * 1024 * 1000
    assert usage_of_pods([two], "cpu", "b", NOW)["p0"].value == 2
    assert usage_of_pods([two], "cpu", "c", NOW) == {}
    assert usage_of_pods([two], "ephemeral-storage", "", NOW) == {}
    assert usage_of_pods([two], "cpu", "", NOW)["p0"].window == WINDOW

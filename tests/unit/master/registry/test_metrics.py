"""Metrics of nodes and pods, from nodes that answer, fail or answer late."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from master.auth.bootstrap_policy import ROLES
from master.errors import StatusError
from master.registry import metrics
from master.registry.metrics import SUMMARY_PATH, MetricsReader
from master.registry.request import Request
from master.request_info import RequestInfo
from master.resources.metrics import NODE_METRICS, POD_METRICS
from master.resources.scheme import STORED_TYPES
from master.server.discovery import group, resources
from master.server.routes import resolve_path
from master.storage.sqlite import SQLiteStorage
from reconcile.errors import NotReady
from tests.testbed.apiserver.changes import put
from tests.unit.master.examples import node, pod

NOW = datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)
TIME = "2026-01-31T12:00:00Z"


def used(nano_cores: int, size: int) -> dict[str, Any]:
    return {
        "cpu": {"time": TIME, "usageNanoCores": nano_cores, "usageCoreNanoSeconds": 7},
        "memory": {"time": TIME, "workingSetBytes": size, "rssBytes": 1},
    }


def summary(*pods: str) -> bytes:
    """Return the summary of a node with these pods of the project red, each with two containers."""
    rows = [
        {
            "podRef": {"name": name, "namespace": "red", "uid": "u"},
            "containers": [{"name": "b", **used(2_000_000, 2048)}, {"name": "a", **used(1_000_000, 1024)}],
            **used(4_000_000, 9000),
        }
        for name in pods
    ]
    return json.dumps({"node": {"nodeName": "n", **used(1_500_000_000, 1 << 30)}, "pods": rows}).encode()


class Nodes:
    """The responses of nodes."""

    def __init__(self) -> None:
        self.summaries: dict[str, bytes] = {}
        self.requested_nodes: list[str] = []

    async def get(self, node: str, path: str, seconds: float = 10.0) -> bytes:
        assert (path, seconds < 10) == (SUMMARY_PATH, True)
        self.requested_nodes.append(node)
        await asyncio.sleep(0)
        if node not in self.summaries:
            raise NotReady(f"node {node}: no answer")
        return self.summaries[node]


class Door:
    """A client of the metrics API."""

    def __init__(self, store: SQLiteStorage, nodes: Nodes) -> None:
        self.nodes = nodes
        self._metrics = MetricsReader(store, nodes, lambda: NOW)

    async def get(self, path: str, accept: str = "", **query: str) -> Any:
        where = resolve_path(f"/apis/metrics.k8s.io/v1beta1/{path}")
        assert where is not None
        answer = await self._metrics.answer("get" if where.name else "list", Request(where, query, accept))
        return json.loads(answer.body)

    async def refused(self, path: str, verb: str = "get") -> int:
        where = resolve_path(f"/apis/metrics.k8s.io/v1beta1/{path}")
        assert where is not None
        with pytest.raises(StatusError) as actual:
            await self._metrics.answer(verb, Request(where, {}))
        return actual.value.status.code


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    store = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    labelled = replace(
        pod("web", "near"), metadata=replace(pod("web").metadata, namespace="red", labels={"app": "web"})
    )
    for obj in (node("near", labels={"zone": "a"}), node("far"), labelled, pod("other", "far"), pod("waits")):
        await store.write(put(obj))
    nodes = Nodes()
    nodes.summaries = {"near": summary("web", "of-nobody"), "far": summary("other")}
    yield Door(store, nodes)
    await store.close()


def names(actual: Any) -> list[str]:
    return [obj["metadata"]["name"] for obj in actual["items"]]


async def test_node_metrics_report_usage(door: Door) -> None:
    actual = await door.get("nodes")
    assert (actual["kind"], actual["apiVersion"]) == ("NodeMetricsList", "metrics.k8s.io/v1beta1")
    assert names(actual) == ["far", "near"]
    near = await door.get("nodes/near")
    assert near["usage"] == {"cpu": "1500000000n", "memory": "1048576Ki"}
    assert (near["timestamp"], near["metadata"]["labels"]) == (TIME, {"zone": "a"})
    assert names(await door.get("nodes", labelSelector="zone=a")) == ["near"]
    assert names(await door.get("nodes", fieldSelector="metadata.name=far")) == ["far"]


async def test_pod_metrics_report_usage_by_container(door: Door) -> None:
    assert names(await door.get("pods")) == ["other", "web"]
    assert names(await door.get("namespaces/blue/pods")) == []
    assert names(await door.get("namespaces/red/pods", labelSelector="app=web")) == ["web"]
    web = await door.get("namespaces/red/pods/web")
    assert web["containers"] == [
        {"name": "a", "usage": {"cpu": "1000000n", "memory": "1Ki"}},
        {"name": "b", "usage": {"cpu": "2000000n", "memory": "2Ki"}},
    ]
    assert await door.refused("namespaces/red/pods/waits") == 404
    assert await door.refused("namespaces/red/pods/of-nobody") == 404


async def test_unresponsive_node_is_omitted_and_not_queried_again_at_once(door: Door) -> None:
    del door.nodes.summaries["far"]
    assert names(await door.get("nodes")) == ["near"]
    assert names(await door.get("pods")) == ["web"]
    assert await door.refused("nodes/far") == 404
    assert sorted(door.nodes.requested_nodes) == ["far", "near"]


async def test_node_with_invalid_metrics_is_omitted(door: Door) -> None:
    door.nodes.summaries["far"] = b"<html>"
    assert names(await door.get("nodes")) == ["near"]


async def test_node_without_metrics_yet_is_omitted(door: Door) -> None:
    half = {"podRef": {"name": "other", "namespace": "red"}, "containers": [{"name": "a"}, {"name": "b", **used(1, 1)}]}
    door.nodes.summaries["far"] = json.dumps({"node": {"cpu": {"time": TIME}}, "pods": [half]}).encode()
    assert names(await door.get("nodes")) == ["near"]
    assert names(await door.get("pods")) == ["web"]


async def test_concurrent_metrics_requests_share_one_query(door: Door) -> None:
    await asyncio.gather(*(door.get("nodes/near") for _ in range(20)))
    await door.get("namespaces/red/pods/web")
    assert door.nodes.requested_nodes == ["near"]


async def test_metrics_cache_expires(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CACHE_SECONDS", 0.0)
    await door.get("nodes/near")
    await door.get("nodes/near")
    assert door.nodes.requested_nodes == ["near", "near"]
    async with asyncio.timeout(10):
        while door._metrics._cache:
            await asyncio.sleep(0)


async def test_metrics_table_has_kubectl_top_columns(door: Door) -> None:
    actual = await door.get("pods", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
    assert [column["name"] for column in actual["columnDefinitions"]] == ["Name", "CPU", "Memory", "Window"]
    assert [table_row["cells"][:3] for table_row in actual["rows"]] == [
        ["other", "3000000n", "3Ki"],
        ["web", "3000000n", "3Ki"],
    ]


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete", "deletecollection", "watch"])
async def test_metrics_reject_writes_and_watches(door: Door, verb: str) -> None:
    assert await door.refused("nodes/near", verb) == 405


def test_discovery_lists_the_metrics_group() -> None:
    assert group("metrics.k8s.io") is not None
    actual = resources("metrics.k8s.io", "v1beta1")
    assert actual is not None
    assert [(resource["name"], resource["kind"], resource["verbs"]) for resource in actual["resources"]] == [
        ("nodes", "NodeMetrics", ["get", "list"]),
        ("pods", "PodMetrics", ["get", "list"]),
    ]
    assert RequestInfo(NODE_METRICS) != RequestInfo(POD_METRICS)


def test_metrics_reader_role_is_aggregated_to_view() -> None:
    [reader] = [
        cluster_role for cluster_role in ROLES if cluster_role.metadata.name == "system:aggregated-metrics-reader"
    ]
    assert reader.metadata.labels["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    [rule] = reader.rules
    assert (rule.api_groups, rule.resources) == (("metrics.k8s.io",), ("pods", "nodes"))

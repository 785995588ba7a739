"""Discovery: groups, versions and resources."""

from __future__ import annotations

import json

import msgspec

from master.registry.aggregated_apis import AggregatedVersion
from master.resources.scheme import BUILTIN_SCHEME
from master.server import discovery


def test_aggregated_discovery_is_returned_when_preferred() -> None:
    both = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
    assert discovery.aggregated_version(both) == "v2"
    assert discovery.aggregated_version(beta) == "v2beta1"
    assert discovery.aggregated_version("application/json") == ""
    names = [
        resource["resource"] for resource in discovery.aggregated(True, "v2")["items"][0]["versions"][0]["resources"]
    ]
    assert names == sorted(names)
    assert {"configmaps", "namespaces", "nodes", "pods"} <= set(names)


def test_api_group_lists_its_preferred_version_first() -> None:
    assert discovery.group("autoscaling") == {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": "autoscaling",
        "versions": [
            {"groupVersion": f"autoscaling/{api_version}", "version": api_version} for api_version in ("v2", "v1")
        ],
        "preferredVersion": {"groupVersion": "autoscaling/v2", "version": "v2"},
    }
    actual = {group["metadata"].get("name"): group["versions"] for group in discovery.aggregated(False, "v2")["items"]}
    assert [entry["version"] for entry in actual["autoscaling"]] == ["v2", "v1"]
    for version in ("v2", "v1"):
        rows = discovery.resources("autoscaling", version)
        assert rows is not None
        assert rows["resources"][0]["name"] == "horizontalpodautoscalers"
    assert discovery.resources("autoscaling", "v3") is None


def test_internal_operations_are_not_among_discovery_verbs() -> None:
    rows = discovery.resources("podlane.io", "v1")
    assert rows is not None
    verbs = {resource["name"]: resource["verbs"] for resource in rows["resources"]}
    assert verbs["podaddresses"] == ["get", "list", "watch"]
    assert "create" in verbs["nodequeries"]


REMOTE = (
    AggregatedVersion("low.example.org", "v1", 100, 100),
    AggregatedVersion("high.example.org", "v1", 20000, 15, b'[{"resource":"toys"}]'),
    AggregatedVersion("high.example.org", "v2beta1", 2000, 9, is_current=False),
    AggregatedVersion("high.example.org", "v2", 2000, 15),
    AggregatedVersion("metrics.k8s.io", "v1beta1", 100, 100, b'[{"resource":"nodes"}]'),
    AggregatedVersion("metrics.k8s.io", "v1", 20000, 1000),
)


def test_versions_of_other_servers_come_after_the_own_ones_by_their_priorities() -> None:
    own = [group["name"] for group in discovery.groups()["groups"]]
    listed = discovery.groups(BUILTIN_SCHEME, REMOTE)["groups"]
    assert [group["name"] for group in listed] == [*own, "high.example.org", "low.example.org"]
    assert [version["version"] for version in listed[-2]["versions"]] == ["v2", "v1", "v2beta1"]
    metrics = discovery.group("metrics.k8s.io", BUILTIN_SCHEME, REMOTE)
    assert metrics is not None
    assert metrics["preferredVersion"]["version"] == "v1beta1", "the own one, wherever it is served"
    assert discovery.group("none.example.org", BUILTIN_SCHEME, REMOTE) is None


def test_aggregated_discovery_has_the_resources_of_other_servers() -> None:
    items = json.loads(msgspec.json.encode(discovery.aggregated(False, "v2", BUILTIN_SCHEME, REMOTE)))["items"]
    groups = {item["metadata"]["name"]: item["versions"] for item in items}
    assert [(entry["version"], entry["freshness"]) for entry in groups["high.example.org"]] == [
        ("v2", "Current"),
        ("v1", "Current"),
        ("v2beta1", "Stale"),
    ]
    assert groups["high.example.org"][1]["resources"] == [{"resource": "toys"}]
    assert groups["metrics.k8s.io"][0] == {
        "version": "v1beta1",
        "resources": [{"resource": "nodes"}],
        "freshness": "Current",
    }
    without = {item["metadata"]["name"]: item["versions"] for item in discovery.aggregated(False, "v2")["items"]}
    assert [entry["resource"] for entry in without["metrics.k8s.io"][0]["resources"]] == ["nodes", "pods"]

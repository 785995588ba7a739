"""Discovery: groups, versions and resources."""

from __future__ import annotations

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
    rows = discovery.resources("networking.k8s.io", "v1")
    assert rows is not None
    verbs = {resource["name"]: resource["verbs"] for resource in rows["resources"]}
    assert verbs["ipaddresses"] == ["get", "list", "watch"]
    assert "create" not in verbs["servicecidrs"]
    assert "create" in verbs["ingresses"]

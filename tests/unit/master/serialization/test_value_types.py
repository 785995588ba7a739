"""Values that clients with fixed types cannot decode."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from master.resources import BUILTIN
from master.serialization.messages import message_names, message_of
from master.serialization.readable import unreadable
from master.server import openapi

BIG, HUGE = 1 << 31, 1 << 63


@pytest.mark.parametrize(
    ("version", "kind", "document", "paths"),
    [
        ("apps/v1", "Deployment", {"spec": {"replicas": BIG}}, ["spec.replicas"]),
        ("apps/v1", "Deployment", {"spec": {"replicas": BIG - 1, "revisionHistoryLimit": -BIG}}, []),
        (
            "apps/v1",
            "Deployment",
            {"spec": {"strategy": {"rollingUpdate": {"maxSurge": BIG, "maxUnavailable": "25%"}}}},
            ["spec.strategy.rollingUpdate.maxSurge"],
        ),
        (
            "v1",
            "Pod",
            {"spec": {"topologySpreadConstraints": [{"maxSkew": 1}, {"maxSkew": BIG}], "activeDeadlineSeconds": BIG}},
            ["spec.topologySpreadConstraints[1].maxSkew"],
        ),
        ("v1", "Pod", {"spec": {"activeDeadlineSeconds": HUGE}}, ["spec.activeDeadlineSeconds"]),
        ("v1", "Pod", {"metadata": {"creationTimestamp": "garbage"}}, ["metadata.creationTimestamp"]),
        ("v1", "Pod", {"metadata": {"creationTimestamp": None, "labels": {"a": "b"}}}, []),
        ("v1", "Pod", {"status": {"startTime": ""}}, ["status.startTime"]),
        ("v1", "Pod", {"status": {"startTime": "2026-02-30T00:00:00Z"}}, ["status.startTime"]),
        ("v1", "Pod", {"status": {"startTime": "2026-02-28T00:00:00.5+01:00"}}, []),
        ("v1", "Node", {"status": {"capacity": {"cpu": "abc", "memory": "1Gi"}}}, ["status.capacity[cpu]"]),
        ("v1", "Node", {"spec": {"taints": [{"key": "a", "timeAdded": "x"}]}}, ["spec.taints[0].timeAdded"]),
        (
            "v1",
            "Node",
            {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 99999999999}}}},
            ["status.daemonEndpoints.kubeletEndpoint.Port"],
        ),
        ("coordination.k8s.io/v1", "Lease", {"spec": {"renewTime": "garbage"}}, ["spec.renewTime"]),
        ("coordination.k8s.io/v1", "Lease", {"spec": {"renewTime": "2026-01-01T00:00:00.000001Z"}}, []),
        ("network.openshift.io/v1", "NetNamespace", {"netid": HUGE}, []),
        (
            "network.openshift.io/v1",
            "NetNamespace",
            {"netid": 1, "metadata": {"creationTimestamp": "garbage", "labels": {"a": "b"}}},
            ["metadata.creationTimestamp"],
        ),
    ],
)
def test_values_unreadable_by_typed_clients_are_found(
    version: str, kind: str, document: dict[str, Any], paths: list[str]
) -> None:
    assert [problem.path for problem in unreadable(version, kind, document)] == paths


def test_every_kubernetes_kind_has_a_message() -> None:
    known = {
        resource.kind for resource in BUILTIN if message_of(resource.type.API_VERSION, resource.kind) in message_names()
    }
    others = ("openshift.io", "podlane.io", "metrics.k8s.io")
    kubernetes = (
        resource
        for resource in BUILTIN
        if not any(group.endswith(others) for group in (resource.group, resource.stored_resource.group))
    )
    left = {resource.kind for resource in kubernetes} - known
    assert left <= NOT_CREATABLE | {"CustomResourceDefinition"}, left - NOT_CREATABLE


NOT_CREATABLE = {resource.kind for resource in BUILTIN if "create" not in resource.verbs}


def test_openapi_integer_format_equals_the_message_type() -> None:
    (deployment,) = (resource for resource in BUILTIN if (resource.group, resource.kind) == ("apps", "Deployment"))
    (pod,) = (resource for resource in BUILTIN if resource.kind == "Pod")
    actual = openapi.components([deployment, pod], (Empty,))
    assert actual["DeploymentSpec"]["properties"]["replicas"]["format"] == "int32"
    assert actual["PodSpec"]["properties"]["activeDeadlineSeconds"]["format"] == "int64"


class Empty(msgspec.Struct):
    """Nothing."""

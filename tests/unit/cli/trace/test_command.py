"""Which pods can be traced, by name and by address."""

from __future__ import annotations

from typing import Any

import pytest

from api.core.pod import Pod, PodSpec, PodStatus
from api.meta.types import ObjectMeta
from cli.trace.command import pods_with_addresses


@pytest.mark.parametrize(
    ("spec", "status", "is_there"),
    [
        ({}, {"pod_ip": "10.128.0.2", "phase": "Running"}, True),
        ({}, {"pod_ip": "", "phase": "Pending"}, False),
        ({"node_name": ""}, {"pod_ip": "10.128.0.2"}, False),
        ({}, {"pod_ip": "10.128.0.2", "phase": "Succeeded"}, False),
        ({}, {"pod_ip": "10.128.0.2", "phase": "Failed"}, False),
        ({"host_network": True}, {"pod_ip": "10.245.2.3", "phase": "Running"}, False),
    ],
)
def test_only_running_pods_with_an_own_address_can_be_traced(
    spec: dict[str, Any], status: dict[str, Any], is_there: bool
) -> None:
    meta = ObjectMeta(name="a", namespace="red")
    where: dict[str, Any] = {"node_name": "node-1"} | spec
    pod = Pod(metadata=meta, spec=PodSpec(containers=(), **where), status=PodStatus(**status))
    hosts = pods_with_addresses([pod])
    assert [(str(end), end.project, end.node) for end in hosts] == [("red/a", "red", "node-1")] * is_there

"""Rows of tables."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.config import ConfigMap, Secret
from api.core.node import NodeSystemInfo
from api.core.pod import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
)
from api.meta.types import Condition
from master.resources.pods import pod_state
from master.resources.printing import duration
from master.resources.scheme import BY_KIND
from master.serialization import tables
from master.serialization.negotiation import View
from tests.unit.master.examples import meta, namespace, net_namespace, node, pod, subnet

NOW = datetime.datetime(2026, 1, 1, 0, 2, 21, tzinfo=datetime.UTC)

AGES = [
    (-5, "<invalid>"), (-1, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (141, "2m21s"), (599, "9m59s"), (600, "10m"),
    (10799, "179m"), (10800, "3h"), (11460, "3h11m"), (28800, "8h"), (172799, "47h"), (172800, "2d"), (180000, "2d2h"),
    (691200, "8d"), (63071999, "729d"), (63072000, "2y"), (64000000, "2y10d"), (252288000, "8y"),
]  # fmt: skip


@pytest.mark.parametrize(("seconds", "text"), AGES)
def test_table_age_has_kubectls_format(seconds: int, text: str) -> None:
    assert duration(seconds) == text


def table(kind: str, obj: Any, view: View = View.TABLE) -> Any:
    return json.loads(tables.encode_object(BY_KIND[kind], obj, view, NOW))


def test_older_clients_get_v1beta1_tables() -> None:
    version = "meta.k8s.io/v1beta1"
    actual = table("Namespace", namespace("red"), View.TABLE_V1BETA1)
    assert (actual["apiVersion"], actual["rows"][0]["object"]["apiVersion"]) == (version, version)
    assert actual["rows"][0]["cells"] == table("Namespace", namespace("red"))["rows"][0]["cells"]
    assert table("Namespace", namespace("red"), View.METADATA_V1BETA1)["apiVersion"] == version


def container(name: str = "c", ready: bool = False, restarts: int = 0, **state: Any) -> ContainerStatus:
    return ContainerStatus(name=name, ready=ready, restart_count=restarts, state=ContainerState(**state))


RUNNING = ContainerStateRunning(started_at="2026-01-01T00:00:00Z")
CRASHING = ContainerStateWaiting(reason="CrashLoopBackOff")
KILLED = ContainerStateTerminated(exit_code=137, signal=9)
COMPLETED = ContainerStateTerminated(exit_code=0, reason="Completed")


def with_containers(*statuses: ContainerStatus, phase: str = "Running", **rest: Any) -> Pod:
    obj = pod("p", node="n")
    return replace(obj, status=PodStatus(phase=phase, container_statuses=statuses, **rest))


READY = (Condition(type="Ready", status="True"),)

STATES = [
    (pod("p"), "Pending"),
    (with_containers(container(running=RUNNING, ready=True)), "Running"),
    (with_containers(container(waiting=CRASHING)), "CrashLoopBackOff"),
    (with_containers(container(waiting=ContainerStateWaiting(reason="ContainerCreating")), phase="Pending"),
     "ContainerCreating"),
    (with_containers(container(terminated=COMPLETED), phase="Succeeded"), "Completed"),
    (with_containers(container(terminated=ContainerStateTerminated(exit_code=3)), phase="Failed"), "ExitCode:3"),
    (with_containers(container(terminated=KILLED), phase="Failed"), "Signal:9"),
    (with_containers(container(terminated=COMPLETED), container("d", ready=True, running=RUNNING)), "NotReady"),
    (with_containers(container(terminated=COMPLETED), container("d", ready=True, running=RUNNING), conditions=READY),
     "Running"),
    (with_containers(phase="Failed", reason="Evicted"), "Evicted"),
    (pod("p", deleted="2026-01-01T00:00:00Z"), "Terminating"),
    (replace(pod("p"), spec=PodSpec(init_containers=(Container(name="c"), Container(name="d"))),
             status=PodStatus(phase="Pending", init_container_statuses=(
                 container(terminated=COMPLETED), container(running=RUNNING)))), "Init:1/2"),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "word"), STATES, ids=[word for _, word in STATES])
def test_pod_status_column_summarizes_the_pod(obj: Pod, word: str) -> None:
    assert pod_state(obj) == word


def test_pod_table_row() -> None:
    last = ContainerState(terminated=ContainerStateTerminated(exit_code=1, finished_at="2026-01-01T00:02:11Z"))
    status = replace(container(ready=True, running=RUNNING, restarts=1), last_state=last)
    actual = table("Pod", with_containers(status, pod_ip="10.128.0.2"))
    assert actual["rows"][0]["cells"] == [
        "p",
        "1/1",
        "Running",
        "1 (10s ago)",
        "2m21s",
        "10.128.0.2",
        "n",
        *["<none>"] * 2,
    ]
    assert actual["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert actual["metadata"] == {"resourceVersion": "7"}


def test_node_table_row() -> None:
    info = NodeSystemInfo(
        kubelet_version="v1.32.0", os_image="Debian", kernel_version="6.1", architecture="amd64",
        container_runtime_version="docker://20.10",
    )  # fmt: skip
    obj = node("n", unschedulable=True, labels={"node-role.kubernetes.io/edge": ""})
    obj = replace(obj, status=replace(obj.status, node_info=info))
    assert table("Node", obj)["rows"][0]["cells"] == [
        "n", "Ready,SchedulingDisabled", "edge", "2m21s", "v1.32.0", "10.245.2.3", "<none>", "Debian", "6.1 (amd64)",
        "docker://20.10",
    ]  # fmt: skip
    for ready, word in (("False", "NotReady"), ("Unknown", "NotReady")):
        assert table("Node", node("n", ready=ready))["rows"][0]["cells"][1] == word
    assert table("Node", type(obj)(metadata=meta("n")))["rows"][0]["cells"][1] == "Unknown"


def test_network_kinds_table_rows() -> None:
    assert table("HostSubnet", subnet("n", "10.128.0.0/23"))["rows"][0]["cells"] == [
        "n", "n", "10.245.2.3", "10.128.0.0/23", "", "",
    ]  # fmt: skip
    assert table("NetNamespace", net_namespace("red", 10))["rows"][0]["cells"] == ["red", 10, ""]
    assert table("Namespace", namespace("red"))["rows"][0]["cells"] == ["red", "Active", "2m21s"]


def test_configuration_kinds_table_rows() -> None:
    config = ConfigMap(metadata=meta("c"), data={"a": "1"}, binary_data={"b": b"2"})
    assert table("ConfigMap", config)["rows"][0]["cells"] == ["c", 2, "2m21s"]
    secret = Secret(metadata=meta("s"), data={"a": b"1"}, type="Opaque")
    assert table("Secret", secret)["rows"][0]["cells"] == ["s", "Opaque", 1, "2m21s"]


def test_table_row_object_follows_include_object() -> None:
    kind = BY_KIND["Namespace"]
    assert "object" not in tables.table_row(kind, namespace("red"), View.TABLE, NOW, "None")
    assert tables.table_row(kind, namespace("red"), View.TABLE, NOW, "Object")["object"] == namespace("red")

"""Admission of pods by the node, and preemption."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.node import Node, NodeSpec, NodeStatus, Taint
from api.core.pod import ContainerPort, Pod
from api.core.resource_requests import allocatable, pod_requests, total_requests
from api.meta.types import ObjectMeta
from api.validation.static_pods import CONFIG_SOURCE
from node_agent.eviction.thresholds import Pressure
from node_agent.pods.admission import admit, pressure_rejection, select_victims
from node_agent.runtime.container import RuntimePod
from node_agent.runtime.termination import active_deadline
from tests.unit.node_agent.examples import NOW, make_container, make_pod, make_runtime_pod

NODE = Node(
    metadata=ObjectMeta(name="n1", labels={"disk": "ssd", "cores": "8"}),
    spec=NodeSpec(taints=(Taint(key="gone", value="soon", effect="NoExecute"), Taint(key="k", effect="NoSchedule"))),
    status=NodeStatus(allocatable={"cpu": "2", "memory": "1Gi", "pods": "3"}),
)
STAYS = "  tolerations: [{operator: Exists, effect: NoExecute}]\n"
AFFINITY = (
    STAYS + "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [TERMS]}}}"
)


def make_test_pod(spec: str = "", cpu: str = "0", memory: str = "0", uid: str = "u", static: bool = False) -> Pod:
    text = f"[{{name: main, image: i, resources: {{requests: {{cpu: '{cpu}', memory: '{memory}'}}}}}}]"
    pod = make_pod(text, STAYS + spec if "tolerations" not in spec else spec)
    source = {CONFIG_SOURCE: "file" if static else "api"}
    return replace(pod, metadata=replace(pod.metadata, uid=uid, annotations=source))


def with_port(host_port: int, address: str = "", protocol: str = "TCP") -> Pod:
    pod = make_test_pod()
    [main] = pod.spec.containers
    port = {"container_port": 80, "host_port": host_port, "host_ip": address, "protocol": protocol}
    return replace(pod, spec=replace(pod.spec, containers=(replace(main, ports=(ContainerPort(**port),)),)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pod", "other_pods", "reason"),
    [
        (make_test_pod(), [], ""),
        (make_test_pod(cpu="2"), [], ""),
        (make_test_pod(cpu="2001m"), [], "OutOfcpu"),
        (make_test_pod(cpu="1"), [make_test_pod(cpu="1001m")], "OutOfcpu"),
        (make_test_pod(), [make_test_pod(cpu="3")], ""),
        (make_test_pod(memory="1Gi"), [make_test_pod(memory="1")], "OutOfmemory"),
        (make_test_pod(), [make_test_pod(), make_test_pod()], ""),
        (make_test_pod(), [make_test_pod(), make_test_pod(), make_test_pod()], "OutOfpods"),
        (make_test_pod("  nodeSelector: {disk: ssd}"), [], ""),
        (make_test_pod("  nodeSelector: {disk: hdd}"), [], "NodeAffinity"),
        (make_test_pod("  os: {name: linux}"), [], ""),
        (make_test_pod("  os: {name: windows}"), [], "PodOSNotSupported"),
        (make_test_pod("  securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}"), [], "SysctlForbidden"),
        (make_test_pod("  securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]}"), [], ""),
        (make_test_pod("  tolerations: []"), [], "TaintToleration"),
        (make_test_pod("  tolerations: []", static=True), [], ""),
        (make_test_pod("  tolerations: [{key: gone, value: soon}]"), [], ""),
        (make_test_pod("  tolerations: [{key: gone, value: later}]"), [], "TaintToleration"),
        (make_test_pod("  tolerations: [{key: gone, operator: Exists, effect: NoSchedule}]"), [], "TaintToleration"),
        (with_port(80), [with_port(80)], "NodePorts"),
        (with_port(80), [with_port(80, protocol="UDP")], ""),
        (with_port(80), [with_port(81)], ""),
        (with_port(80, "10.0.0.1"), [with_port(80, "10.0.0.2")], ""),
        (with_port(80, "10.0.0.1"), [with_port(80)], "NodePorts"),
        (with_port(0), [with_port(0)], ""),
    ],
)
def test_admission_accepts_pods_that_match_and_fit(pod: Pod, other_pods: list[Pod], reason: str) -> None:
    rejection = admit(pod, NODE, other_pods)
    assert (rejection.reason if rejection else "") == reason
    assert rejection is None or rejection.message


def test_admission_accepts_allowed_sysctls_only() -> None:
    pod = make_test_pod("  securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}")
    assert admit(pod, NODE, [], ("kernel.msg*",)) is None
    assert admit(pod, NODE, [], ("net.*",)) is not None


@pytest.mark.parametrize(
    ("term", "matches"),
    [
        ("{matchExpressions: [{key: disk, operator: In, values: [hdd, ssd]}]}", True),
        ("{matchExpressions: [{key: disk, operator: NotIn, values: [hdd]}]}", True),
        ("{matchExpressions: [{key: rack, operator: NotIn, values: [hdd]}]}", True),
        ("{matchExpressions: [{key: disk, operator: NotIn, values: [ssd]}]}", False),
        ("{matchExpressions: [{key: disk, operator: Exists}]}", True),
        ("{matchExpressions: [{key: rack, operator: Exists}]}", False),
        ("{matchExpressions: [{key: rack, operator: DoesNotExist}]}", True),
        ("{matchExpressions: [{key: cores, operator: Gt, values: ['7']}]}", True),
        ("{matchExpressions: [{key: cores, operator: Gt, values: ['8']}]}", False),
        ("{matchExpressions: [{key: cores, operator: Lt, values: ['9']}]}", True),
        ("{matchExpressions: [{key: disk, operator: Lt, values: ['9']}]}", False),
        ("{matchFields: [{key: metadata.name, operator: In, values: [n1]}]}", True),
        ("{matchFields: [{key: metadata.name, operator: NotIn, values: [n1]}]}", False),
        ("{}", False),
        ("{}, {matchExpressions: [{key: disk, operator: Exists}]}", True),
        ("{matchExpressions: [{key: disk, operator: Exists}, {key: rack, operator: Exists}]}", False),
    ],
)
def test_admission_checks_node_affinity(term: str, matches: bool) -> None:
    rejection = admit(make_test_pod(AFFINITY.replace("TERMS", term)), NODE, [])
    assert (rejection.reason if rejection else "") == ("" if matches else "NodeAffinity")


def test_preemption_selects_no_victims_when_the_pod_cannot_fit() -> None:
    assert select_victims(make_test_pod(cpu="3", static=True), NODE, [make_test_pod(cpu="1", uid="a")]) == ()


def test_preemption_selects_the_fewest_and_least_protected_pods() -> None:
    other_pods = [make_test_pod(cpu="1", uid="a"), make_test_pod(cpu="500m", uid="b"), make_test_pod(uid="c")]
    other_pods = [
        replace(pod, status=replace(pod.status, qos_class=kind))
        for pod, kind in zip(other_pods, ("Guaranteed", "Burstable", "BestEffort"), strict=True)
    ]
    node = replace(NODE, status=NodeStatus(allocatable={"cpu": "2", "memory": "1Gi", "pods": "9"}))
    assert [pod.metadata.uid for pod in select_victims(make_test_pod(cpu="1", static=True), node, other_pods)] == ["b"]
    assert [pod.metadata.uid for pod in select_victims(make_test_pod(cpu="1500m", static=True), node, other_pods)] == [
        "a"
    ]
    assert {pod.metadata.uid for pod in select_victims(make_test_pod(cpu="2", static=True), node, other_pods)} == {
        "a",
        "b",
    }
    full = replace(NODE, status=NodeStatus(allocatable={"pods": "3"}))
    assert [pod.metadata.uid for pod in select_victims(make_test_pod(static=True), full, other_pods)] == ["c"]


SIZES = st.lists(
    st.tuples(st.integers(0, 8), st.booleans(), st.sampled_from(["BestEffort", "Burstable", "Guaranteed"]))
)


@given(SIZES, st.integers(0, 12))
def test_preemption_victims_are_sufficient_necessary_and_never_critical(
    sizes: list[tuple[int, bool, str]], cpu: int
) -> None:
    other_pods = [
        make_test_pod(cpu=f"{size}", uid=str(number), static=static) for number, (size, static, _) in enumerate(sizes)
    ]
    other_pods = [
        replace(pod, status=replace(pod.status, qos_class=size[2])) for pod, size in zip(other_pods, sizes, strict=True)
    ]
    node = replace(NODE, status=NodeStatus(allocatable={"cpu": "10", "pods": "6"}))
    critical = make_test_pod(cpu=f"{cpu}", uid="critical", static=True)
    chosen = select_victims(critical, node, other_pods)
    staying = [pod for pod in other_pods if pod not in chosen]
    assert not any(pod.metadata.annotations[CONFIG_SOURCE] == "file" for pod in chosen)
    if chosen:
        assert admit(critical, node, other_pods) is not None
        assert admit(critical, node, staying) is None
        assert all(admit(critical, node, [*staying, pod]) is not None for pod in chosen)
    elif admit(critical, node, other_pods) is not None:
        firm = [pod for pod in other_pods if pod.metadata.annotations[CONFIG_SOURCE] == "file"]
        assert admit(critical, node, firm) is not None


def test_admission_sums_requests_and_allocatable() -> None:
    assert pod_requests(make_test_pod(cpu="0.5", memory="1Ki")) == {"cpu": 500, "memory": 1024, "pods": 1}
    assert total_requests([make_test_pod(cpu="1"), make_test_pod(cpu="1", memory="1")]) == {
        "cpu": 2000,
        "memory": 1,
        "pods": 2,
    }
    assert allocatable(NODE) | {"ephemeral-storage": 0} == {
        "cpu": 2000,
        "memory": 1 << 30,
        "pods": 3,
        "ephemeral-storage": 0,
    }
    assert allocatable(Node())["cpu"] > 1 << 60


def test_active_deadline_counts_from_the_start_time() -> None:
    active = make_test_pod("  activeDeadlineSeconds: 60")
    later = timedelta(seconds=60)
    assert active_deadline(make_test_pod(), RuntimePod(), NOW) is None
    assert active_deadline(active, RuntimePod(), NOW) == NOW + later
    old = make_container(active, ran=500.0)
    assert active_deadline(active, make_runtime_pod(old), NOW) == NOW - timedelta(seconds=500) + later
    pod = replace(active, status=replace(active.status, start_time="2026-01-01T00:00:00Z"))
    deadline = active_deadline(pod, make_runtime_pod(old), NOW)
    assert deadline is not None
    assert deadline.isoformat() == "2026-01-01T00:01:00+00:00"


MEMORY, DISK, BOTH = Pressure(memory=True), Pressure(disk=True), Pressure(memory=True, processes=True)
TOLERANT = "  tolerations: [{key: node.kubernetes.io/memory-pressure, operator: Exists, effect: NoSchedule}]"


@pytest.mark.parametrize(
    ("pod", "pressure", "condition_names"),
    [
        (make_test_pod(), Pressure(), ""),
        (make_test_pod(), MEMORY, "MemoryPressure"),
        (make_test_pod(cpu="1"), MEMORY, ""),
        (make_test_pod(TOLERANT), MEMORY, ""),
        (make_test_pod(TOLERANT), DISK, "DiskPressure"),
        (make_test_pod(cpu="1"), DISK, "DiskPressure"),
        (make_test_pod(cpu="1"), Pressure(processes=True), "PIDPressure"),
        (make_test_pod(cpu="1"), BOTH, "MemoryPressure PIDPressure"),
        (make_test_pod(static=True), BOTH, ""),
        (make_test_pod("  priority: 2000000000"), BOTH, ""),
        (make_test_pod("  priority: 1999999999"), DISK, "DiskPressure"),
    ],
)
def test_admission_under_pressure_accepts_tolerating_pods_only(
    pod: Pod, pressure: Pressure, condition_names: str
) -> None:
    refused = pressure_rejection(pod, pressure)
    assert (refused is None) == (not condition_names)
    if refused is not None:
        assert (refused.reason, refused.message) == ("Evicted", f"The node had condition: [{condition_names}]. ")

"""Cluster IPs and node ports of services."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from api.core.services import LoadBalancerIngress, LoadBalancerStatus, Service, ServiceStatus
from api.validation.registry import check_update, decode, default
from master.admission.service_ips import AllocatorCursors, allocate
from master.config import DEFAULT_NODE_PORTS
from master.errors import StatusError
from master.registry.patch import merge_patch
from master.resources.services import SERVICES
from tests.unit.master.examples import service

NETWORK = IPv4Network("172.30.0.0/29")


def given(
    service: Service,
    others: Sequence[Service] = (),
    cursors: AllocatorCursors = AllocatorCursors(),  # noqa: B008 it is frozen
    old: Service | None = None,
) -> tuple[Service, AllocatorCursors]:
    return allocate(service, old, others, NETWORK, DEFAULT_NODE_PORTS, cursors)


# --- addresses --------------------------------------------------------------------------------------------------------


def test_cluster_ips_are_allocated_in_sequence_and_reused_last() -> None:
    first, cursors = given(service("a"))
    second, cursors = given(service("b"), [first], cursors)
    third, _ = given(service("c"), [second], cursors)
    assert [allocated.spec.cluster_ip for allocated in (first, second, third)] == [
        "172.30.0.1",
        "172.30.0.2",
        "172.30.0.3",
    ]
    assert third.spec.cluster_ips == ("172.30.0.3",)


def test_exhausted_service_network_is_reported() -> None:
    others: list[Service] = []
    cursors = AllocatorCursors()
    for number in range(6):
        done, cursors = given(service(f"s{number}"), others, cursors)
        others = [*others, done]
    assert len({allocated.spec.cluster_ip for allocated in others}) == 6
    with pytest.raises(StatusError, match="no free address left"):
        given(service("more"), others, cursors)


REQUESTED_ADDRESSES = [
    ({"clusterIP": "172.30.0.5"}, "172.30.0.5"),
    ({"clusterIP": "None"}, "None"),
    ({"type": "ExternalName", "externalName": "example.org", "ports": []}, ""),
]


@pytest.mark.parametrize(("spec", "address"), REQUESTED_ADDRESSES, ids=str)
def test_service_may_request_a_cluster_ip_or_none(spec: dict[str, Any], address: str) -> None:
    assert given(service(**spec))[0].spec.cluster_ip == address


@pytest.mark.parametrize("address", ["172.30.0.0", "172.30.0.7", "10.0.0.1", "172.30.0.1"])
def test_unavailable_cluster_ip_is_rejected(address: str) -> None:
    taken, _ = given(service("a"))
    with pytest.raises(StatusError, match="failed to allocate IP"):
        given(service(clusterIP=address), [taken])


def test_node_ports_are_allocated_requested_and_released() -> None:
    first, cursors = given(service("a", type="NodePort"))
    assert [port.node_port for port in first.spec.ports] == [30000]
    requested = service("b", type="NodePort", ports=[{"port": 80, "nodePort": 30001}])
    allocated, cursors = given(requested, [first], cursors)
    assert allocated.spec.ports[0].node_port == 30001
    for number in (30000, 29999):
        with pytest.raises(StatusError, match="provided port is"):
            given(service("c", type="NodePort", ports=[{"port": 1, "nodePort": number}]), [first, allocated], cursors)
    closed = replace(first, spec=replace(first.spec, type="ClusterIP"))
    assert given(closed)[0].spec.ports[0].node_port == 0


TCP, UDP = {"name": "t", "port": 53}, {"name": "u", "port": 53, "protocol": "UDP"}
ONE_NUMBER = [
    ([TCP, UDP], [30000, 30000]),
    ([TCP, UDP | {"nodePort": 30007}], [30007, 30007]),
    ([TCP | {"nodePort": 30001}, UDP | {"nodePort": 30002}], [30001, 30002]),
    ([TCP, UDP | {"port": 54}], [30000, 30001]),
]


@pytest.mark.parametrize(("ports", "numbers"), ONE_NUMBER, ids=str)
def test_port_in_two_protocols_shares_one_node_port(ports: list[Any], numbers: list[int]) -> None:
    done, _ = given(service(type="NodePort", ports=ports))
    assert [port.node_port for port in done.spec.ports] == numbers


def test_node_port_belongs_to_one_service_in_all_protocols() -> None:
    first, _ = given(service("a", type="NodePort"))
    with pytest.raises(StatusError, match="provided port is already allocated"):
        given(service("b", type="NodePort", ports=[UDP | {"nodePort": 30000}]), [first])


def test_node_port_outside_the_range_is_kept_by_its_service() -> None:
    """The setting may have changed meanwhile."""
    old, _ = given(service(type="NodePort"))
    new = SERVICES.prepare_for_update(service(type="NodePort", selector={"a": "b"}), old)
    unchanged, _ = allocate(new, old, (), NETWORK, range(40000, 40010), AllocatorCursors())
    assert unchanged.spec.ports[0].node_port == 30000
    with pytest.raises(StatusError, match="valid ports is 40000-40009"):
        allocate(new, None, (), NETWORK, range(40000, 40010), AllocatorCursors())


LOCAL = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}


def test_local_load_balancer_service_gets_a_health_check_node_port() -> None:
    first, cursors = given(service("a", **LOCAL))
    assert (first.spec.ports[0].node_port, first.spec.health_check_node_port) == (30000, 30001)
    requested, _ = given(service("b", **LOCAL, healthCheckNodePort=30009), [first], cursors)
    assert (requested.spec.ports[0].node_port, requested.spec.health_check_node_port) == (30002, 30009)
    for number in (30000, 30001, 29999):
        with pytest.raises(StatusError, match=r"spec\.healthCheckNodePort.*provided port is"):
            given(service("c", **LOCAL, healthCheckNodePort=number), [first, requested], cursors)
    with pytest.raises(StatusError, match=r"spec\.healthCheckNodePort.*provided port is"):
        given(service("c", **LOCAL, healthCheckNodePort=30050, ports=[{"port": 80, "nodePort": 30050}]))


def test_update_keeps_allocated_service_fields() -> None:
    old, _ = given(service(type="NodePort"))
    new = SERVICES.prepare_for_update(service(type="NodePort", selector={"a": "b"}), old)
    assert (new.spec.cluster_ip, new.spec.ports[0].node_port) == ("172.30.0.1", 30000)
    assert not list(check_update(old, new))
    other = replace(new, spec=replace(new.spec, cluster_ip="172.30.0.2"))
    assert [problem.path for problem in check_update(old, other)] == ["spec.clusterIPs[0]"]


def after(old: Service, changes: dict[str, Any]) -> Service | list[str]:
    """Return a service after a merge patch of its spec, or the paths of the errors."""
    document = merge_patch(msgspec.json.decode(msgspec.json.encode(old)), {"spec": changes})
    result, problems, _ = decode(Service, SERVICES.normalize_update(document, old))
    if result is None:
        return [problem.path for problem in problems]
    new = SERVICES.prepare_for_update(default(result), old)
    return [problem.path for problem in check_update(old, new)] or given(new, (), AllocatorCursors(0, 5), old)[0]


FILLED = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "externalTrafficPolicy", "loadBalancerClass")
OTHER_NAME = {"type": "ExternalName", "externalName": "example.org"}
INSIDE = {"clusterIP": "172.30.0.1", "clusterIPs": ["172.30.0.1"], "ipFamilies": ["IPv4"]}
INSIDE["ipFamilyPolicy"] = "SingleStack"
OPEN = {**INSIDE, "externalTrafficPolicy": "Cluster"}
CHANGES = [
    ("NodePort", {"type": "ClusterIP"}, INSIDE, [0]),
    ("NodePort", {"type": None}, INSIDE, [0]),
    ("NodePort", {"type": "LoadBalancer"}, OPEN, [30000]),
    ("NodePort", {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False}, OPEN, [0]),
    ("NodePort", OTHER_NAME, {}, [0]),
    ("LoadBalancer", {"type": "ClusterIP"}, INSIDE, [0]),
    ("ClusterIP", OTHER_NAME, {}, [0]),
    ("ClusterIP", {"type": "NodePort"}, OPEN, [30005]),
    ("ClusterIP", {"clusterIP": None}, INSIDE, [0]),
    ("ClusterIP", {"clusterIP": ""}, INSIDE, [0]),
    ("ClusterIP", {"clusterIP": None, "clusterIPs": None}, INSIDE, [0]),
]


@pytest.mark.parametrize(("kind", "changes", "filled", "node_ports"), CHANGES, ids=str)
def test_service_type_change_allocates_and_releases_fields(
    kind: str, changes: dict[str, Any], filled: dict[str, Any], node_ports: list[int]
) -> None:
    new = after(given(service(type=kind))[0], changes)
    assert isinstance(new, Service), new
    actual = msgspec.json.decode(msgspec.json.encode(new.spec))
    assert {name: actual[name] for name in FILLED if name in actual} == filled
    assert [port.node_port for port in new.spec.ports] == node_ports


def test_service_type_change_removes_fields_of_the_old_type() -> None:
    old, _ = given(service(**LOCAL, sessionAffinity="ClientIP"))
    balanced = replace(old, status=ServiceStatus(LoadBalancerStatus((LoadBalancerIngress(ip="172.29.0.1"),))))
    assert [
        load_balancer_ingress.ip
        for load_balancer_ingress in accepted(after(balanced, {"selector": {"a": "b"}})).status.load_balancer.ingress
    ] == ["172.29.0.1"]
    same = accepted(after(balanced, {"ports": [{"port": 81}]}))
    numbers = (same.spec.ports[0].node_port, same.spec.health_check_node_port)
    assert numbers == (old.spec.ports[0].node_port, old.spec.health_check_node_port)
    other = accepted(after(balanced, {"externalTrafficPolicy": "Cluster"}))
    assert other.spec.health_check_node_port == 0
    inside = accepted(after(balanced, {"type": "ClusterIP", "sessionAffinity": "None"}))
    assert inside.status.load_balancer.ingress == ()
    assert inside.spec.session_affinity_config is None
    assert inside.spec.health_check_node_port == 0
    assert after(balanced, {"healthCheckNodePort": 30700}) == ["spec.healthCheckNodePort"]
    assert after(balanced, {"loadBalancerClass": "example.org/a"}) == ["spec.loadBalancerClass"]


def accepted(result: Service | list[str]) -> Service:
    assert isinstance(result, Service), result
    return result


AFFINITIES = [
    ({"sessionAffinity": "ClientIP"}, 10800),
    ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {}}}, 10800),
    ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}}, 5),
    ({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}}, None),
]


@pytest.mark.parametrize(("spec", "seconds"), AFFINITIES, ids=str)
def test_session_affinity_timeout_is_defaulted_and_validated(spec: dict[str, Any], seconds: int | None) -> None:
    config = service(**spec).spec.session_affinity_config
    assert (config.client_ip.timeout_seconds if config and config.client_ip else None) == seconds


REFUSED_CHANGES = [
    ("ClusterIP", {"clusterIP": "172.30.0.3"}, ["spec.clusterIPs[0]"]),
    ("ClusterIP", {"clusterIP": "None"}, ["spec.clusterIPs[0]"]),
    ("ClusterIP", {**OTHER_NAME, "clusterIP": "172.30.0.3"}, ["spec.clusterIP"]),
    ("NodePort", {"type": "ClusterIP", "ports": [{"port": 80, "nodePort": 30007}]}, ["spec.ports[0].nodePort"]),
    ("ClusterIP", {"ports": [{"port": 80, "nodePort": 30007}]}, ["spec.ports[0].nodePort"]),
]


@pytest.mark.parametrize(("kind", "changes", "paths"), REFUSED_CHANGES, ids=str)
def test_forbidden_service_change_is_rejected(kind: str, changes: dict[str, Any], paths: list[str]) -> None:
    assert after(given(service(type=kind))[0], changes) == paths


WRONG = [
    ({"ports": []}, ["spec.ports"]),
    ({"ports": [{"port": 0}]}, ["spec.ports[0].port"]),
    ({"ports": [{"port": 1}, {"port": 2}]}, ["spec.ports[0].name", "spec.ports[1].name"]),
    ({"ports": [{"port": 1, "targetPort": "Not_A_Name"}]}, ["spec.ports[0].targetPort"]),
    ({"ports": [{"port": 1, "nodePort": 30000}]}, ["spec.ports[0].nodePort"]),
    ({"clusterIP": "::1"}, ["spec.clusterIP"]),
    ({"clusterIP": "127.0.0.1"}, ["spec.clusterIP"]),
    ({"type": "Sometimes"}, ["spec.type"]),
    ({"type": "ExternalName"}, ["spec.externalName"]),
    ({"type": "NodePort", "clusterIP": "None"}, ["spec.clusterIP"]),
    ({"externalTrafficPolicy": "Local"}, ["spec.externalTrafficPolicy"]),
    ({"healthCheckNodePort": 30000}, ["spec.healthCheckNodePort"]),
    ({"type": "LoadBalancer", "healthCheckNodePort": 30000}, ["spec.healthCheckNodePort"]),
    ({"allocateLoadBalancerNodePorts": True}, ["spec.allocateLoadBalancerNodePorts"]),
    ({"loadBalancerClass": "example.org/a"}, ["spec.loadBalancerClass"]),
    ({"loadBalancerSourceRanges": ["10.0.0.0/8"]}, ["spec.loadBalancerSourceRanges"]),
    ({"type": "LoadBalancer", "loadBalancerSourceRanges": ["x"]}, ["spec.loadBalancerSourceRanges[0]"]),
    ({"trafficDistribution": "Anywhere"}, ["spec.trafficDistribution"]),
    (
        {"type": "NodePort", "ports": [TCP | {"nodePort": 30000}, TCP | {"name": "o", "port": 2, "nodePort": 30000}]},
        ["spec.ports[1].nodePort"],
    ),
    (
        {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 90000}}},
        ["spec.sessionAffinityConfig.clientIP.timeoutSeconds"],
    ),
    ({"externalIPs": ["169.254.1.1"]}, ["spec.externalIPs[0]"]),
]


@pytest.mark.parametrize(("spec", "paths"), WRONG, ids=str)
def test_invalid_service_is_rejected_by_path(spec: dict[str, Any], paths: list[str]) -> None:
    document = {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}], **spec}}
    _, problems, _ = decode(Service, document)
    assert [problem.path for problem in problems] == paths

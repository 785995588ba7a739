"""Service ports of a node from services, slices and pods: policies, readiness and projects.

The tests call `service_ports` through a ServiceMap, which passes it the slices and the index of frontends and pods.
"""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from msgspec.structs import replace

from api.core.endpoints import Endpoint, EndpointConditions, SlicePort
from api.core.services import (
    ClientIPConfig,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceStatus,
    SessionAffinityConfig,
)
from api.network.types import PodAddress
from sdn.drivers.openflow.messages import GroupCommand, bundle_add, group_mod
from sdn.model.service_port import Protocol, ProxyMode, ServicePortInfo, ServicePortName
from sdn.pipeline.service import GroupIds, service_port_flows
from sdn.proxy.service_map import ServiceMap
from sdn.proxy.service_ports import MAX_ENDPOINTS
from tests.unit.sdn.examples import NODE
from tests.unit.sdn.proxy.examples import (
    CONFIG,
    ENDED,
    HERE,
    LEAVING,
    PODS,
    THERE,
    WAITING,
    backend,
    config_with,
    endpoint,
    fill,
    only_port,
    pod,
    rejections,
    service,
    service_map_of,
    slice_of,
)


def test_service_port_has_its_endpoints() -> None:
    port = only_port(service_map_of(service(), slice_of("web", endpoint(THERE), endpoint(HERE))))
    both = (backend(HERE), backend(THERE))
    assert port == ServicePortInfo(
        key=ServicePortName("red", "web", "", Protocol.TCP),
        vnid=10,
        cluster_ip=IPv4Address("172.30.0.7"),
        port=80,
        internal_endpoints=both,
        cluster_endpoints=both,
        external_endpoints=both,
        draining_ports=frozenset({80}),
    )
    assert [endpoint_info.is_local for endpoint_info in port.internal_endpoints] == [True, False]


def test_service_port_has_node_port_external_ips_and_affinity() -> None:
    load_balancer = service(
        type="LoadBalancer",
        ports=(ServicePort(port=80, protocol="TCP", node_port=30080),),
        external_ips=("192.0.2.9",),
        session_affinity="ClientIP",
        session_affinity_config=SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=30)),
        external_traffic_policy="Local",
        health_check_node_port=31000,
    )
    ingress = LoadBalancerStatus(ingress=(LoadBalancerIngress(ip="172.29.0.1"),))
    service_map = service_map_of(
        replace(load_balancer, status=ServiceStatus(load_balancer=ingress)),
        slice_of("web", endpoint(HERE), endpoint(THERE)),
    )
    port = only_port(service_map)
    assert port.node_port == 30080
    assert port.external_ips == (IPv4Address("172.29.0.1"), IPv4Address("192.0.2.9"))
    assert (port.affinity_timeout_seconds, port.external_policy_local) == (30, True)
    assert port.external_endpoints == (backend(HERE),)
    assert port.cluster_endpoints == port.internal_endpoints == (backend(HERE), backend(THERE))
    state = service_map.states["red", "web"]
    assert (state.health_port, state.local_endpoint_count) == (31000, 1)


def test_internal_traffic_policy_local_selects_local_endpoints() -> None:
    port = only_port(
        service_map_of(service(internal_traffic_policy="Local"), slice_of("web", endpoint(HERE), endpoint(THERE)))
    )
    assert (port.internal_endpoints, port.external_endpoints) == ((backend(HERE),), (backend(HERE), backend(THERE)))


def test_external_traffic_policy_local_selects_no_endpoint_of_other_nodes_for_external_clients() -> None:
    node_port_service = service(
        type="NodePort",
        ports=(ServicePort(port=80, protocol="TCP", node_port=30080),),
        external_traffic_policy="Local",
    )
    service_map = service_map_of(node_port_service, slice_of("web", endpoint(THERE)))
    port = only_port(service_map)
    assert (port.external_endpoints, port.cluster_endpoints) == ((), (backend(THERE),))
    assert service_map.states["red", "web"].local_endpoint_count == 0


def test_session_affinity_defaults_to_three_hours() -> None:
    assert only_port(service_map_of(service(session_affinity="ClientIP"))).affinity_timeout_seconds == 10800


@pytest.mark.parametrize(
    "unproxied",
    [service(cluster_ip="None"), service(type="ExternalName", cluster_ip=""), service(cluster_ip="")],
)
def test_headless_and_external_name_services_have_no_ports(unproxied: Service) -> None:
    assert not service_map_of(unproxied, slice_of("web", endpoint(HERE))).ports


@pytest.mark.parametrize(
    ("endpoints", "chosen"),
    [
        ((endpoint(HERE), endpoint(THERE, LEAVING)), [HERE]),
        ((endpoint(HERE, WAITING), endpoint(THERE, LEAVING)), [THERE]),
        ((endpoint(HERE, WAITING), endpoint(THERE, ENDED)), []),
        ((endpoint(HERE, EndpointConditions()),), [HERE]),
        ((endpoint(HERE, EndpointConditions(ready=False, terminating=True)),), []),
        ((endpoint(HERE, EndpointConditions(ready=True, terminating=True)), endpoint(THERE)), [HERE, THERE]),
    ],
)
def test_endpoint_conditions_select_endpoints(endpoints: tuple[Endpoint, ...], chosen: list[str]) -> None:
    assert [
        str(endpoint_info.address)
        for endpoint_info in only_port(service_map_of(service(), slice_of("web", *endpoints))).internal_endpoints
    ] == chosen


def test_service_ports_are_matched_by_name_and_protocol() -> None:
    dns = service(
        ports=(
            ServicePort(port=53, name="dns", protocol="UDP"),
            ServicePort(port=53, name="dns-tcp", protocol="TCP"),
            ServicePort(port=9, name="none", protocol="TCP"),
        )
    )
    ports = (SlicePort(port=1053, name="dns", protocol="UDP"), SlicePort(port=2053, name="dns-tcp", protocol="TCP"))
    served = service_map_of(dns, slice_of("web", endpoint(HERE), ports=ports)).ports
    actual = {
        key.port_name: [endpoint_info.port for endpoint_info in port.internal_endpoints] for key, port in served.items()
    }
    assert actual == {"dns": [1053], "dns-tcp": [2053], "none": []}


def test_endpoint_in_two_slices_counts_once_and_ready_if_ready_in_either() -> None:
    slices = (slice_of("web", endpoint(HERE, WAITING)), slice_of("web", endpoint(HERE), name="web-2"))
    assert only_port(service_map_of(service(), *slices)).internal_endpoints == (backend(HERE),)


def test_service_port_endpoints_are_limited_by_the_openflow_message_size() -> None:
    """One message makes a group, and has 65,535 bytes."""
    endpoints = [endpoint(f"198.18.{number // 250}.{number % 250}") for number in range(MAX_ENDPOINTS + 1)]
    slices = [slice_of("web", *endpoints[:900], name="one"), slice_of("web", *endpoints[900:], name="other")]
    service_map = service_map_of(service(), *slices)
    port = only_port(service_map)
    assert [str(endpoint_info.address) for endpoint_info in port.cluster_endpoints] == [
        endpoint.addresses[0] for endpoint in endpoints[:-1]
    ]
    [left_out] = service_map.rejected["red", "web"]
    assert str(left_out) == "every endpoint after the first 1000 of port 80/TCP exceeds the maximum"
    [group] = service_port_flows(port, NODE, ProxyMode.NFTABLES, GroupIds(1, 1)).groups
    bundled = bundle_add(1, group_mod(GroupCommand.PUT, group, 1), 1)
    assert len(bundled) == int.from_bytes(bundled[2:4])


def test_slices_of_other_families_and_services_are_ignored() -> None:
    others = (slice_of("other", endpoint(HERE)), slice_of("web", endpoint(HERE), namespace="blue", name="x"))
    v6 = slice_of("web", endpoint("2001:db8::1"), family="IPv6", name="six")
    assert only_port(service_map_of(service(), *others, v6)).internal_endpoints == ()


@pytest.mark.parametrize(
    ("address", "port", "why"),
    [
        ("172.30.0.1", 443, "is an address of services"),
        ("10.128.3.200", 80, "no running pod has it"),
        ("10.128.0.1", 53, "no running pod has it"),
        ("10.128.2.8", 80, "is a pod of the project blue, which is not joined with red"),
        ("10.128.2.9", 80, "is a pod of the project default, which is not joined with red"),
        ("10.128.2.10", 80, "no running pod has it"),
        ("10.128.2.11", 80, "no running pod has it"),
        ("192.0.2.1", 80, "is an address of services"),
        ("10.245.2.4", 30080, "is a node port"),
    ],
)
def test_endpoint_of_another_project_is_rejected(address: str, port: int, why: str) -> None:
    pods = (
        *PODS,
        pod("10.128.2.8", "blue"),
        pod("10.128.2.9", "default"),
        pod("10.128.2.10", phase="Failed"),
        pod("10.128.2.11", host_network=True),
    )
    ports = (SlicePort(port=port, name="", protocol="TCP"),)
    service_map = service_map_of(service(), slice_of("web", endpoint(address), endpoint(HERE), ports=ports), pods=pods)
    other = service("other", "blue", cluster_ip="172.30.0.8", external_ips=("192.0.2.1",))
    fill(service_map, (other,), pods=()).apply_changes()
    served = service_map.states["red", "web"].ports[ServicePortName("red", "web", "", Protocol.TCP)]
    assert [str(endpoint_info.address) for endpoint_info in served.internal_endpoints] == [HERE]
    (sentence,) = rejections(service_map)
    assert sentence.startswith(f"endpoint {address}:{port} ")
    assert why in sentence


@pytest.mark.parametrize("address", ["10.128.2.7", "10.245.2.4", "198.51.100.7"])
def test_pods_of_joined_projects_nodes_and_external_hosts_are_accepted_endpoints(address: str) -> None:
    service_map = service_map_of(service(), slice_of("web", endpoint(address)), pods=(pod("10.128.2.7", "pink"),))
    assert [str(endpoint_info.address) for endpoint_info in only_port(service_map).internal_endpoints] == [address]
    assert not rejections(service_map)


def test_flat_network_accepts_pods_of_every_project_as_endpoints() -> None:
    flat = service_map_of(
        service(),
        slice_of("web", endpoint("10.128.2.8"), endpoint("10.128.3.200")),
        config=config_with(vnids=None),
        pods=(pod("10.128.2.8", "blue"),),
    )
    assert [str(endpoint_info.address) for endpoint_info in only_port(flat).internal_endpoints] == ["10.128.2.8"]
    assert only_port(flat).vnid == 0
    assert len(rejections(flat)) == 1


def test_services_of_a_project_without_a_vnid_have_no_ports() -> None:
    service_map = service_map_of(service(namespace="new"), slice_of("web", endpoint(HERE), namespace="new"))
    assert not service_map.ports
    assert rejections(service_map, namespace="new") == ["the service has no VNID: there is no NetNamespace new"]


@pytest.mark.parametrize("label", ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"])
def test_service_labelled_for_another_proxy_has_no_ports_until_the_label_is_removed(label: str) -> None:
    web = service()
    marked = replace(web, metadata=replace(web.metadata, labels={label: "other"}))
    service_map = service_map_of(marked, slice_of("web", endpoint(HERE)))
    assert not service_map.ports
    service_map.set_service(("red", "web"), web)
    assert len(service_map.apply_changes().added) == 1
    service_map.set_service(("red", "web"), marked)
    assert len(service_map.apply_changes().removed) == 1


def test_oldest_service_owns_a_shared_frontend() -> None:
    first = service("a", external_ips=("192.0.2.1",), created="2026-01-01T00:00:00Z")
    second = service("b", "blue", cluster_ip="172.30.0.8", external_ips=("192.0.2.1",), created="2026-01-02T00:00:00Z")
    service_map = fill(ServiceMap(), (second, first))
    service_map.set_config(CONFIG)
    service_map.apply_changes()
    by_name = {key.service: port.external_ips for key, port in service_map.ports.items()}
    assert by_name == {"a": (IPv4Address("192.0.2.1"),), "b": ()}
    assert rejections(service_map, "b", "blue") == ["192.0.2.1:80/TCP belongs to an older service"]
    service_map.set_service(("red", "a"), None)
    change = service_map.apply_changes()
    assert {port.key.service for port in change.removed} == {"a", "b"}
    assert [port.external_ips for port in change.added] == [(IPv4Address("192.0.2.1"),)]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (THERE, "is in the cluster network"),
        ("172.30.0.8", "is in the service network 172.30.0.0/16"),
        ("10.245.2.4", "is the address of a node"),
    ],
)
def test_external_ip_cannot_take_an_address_of_another_service_or_node(address: str, why: str) -> None:
    """Another API server may accept anything, and the thief may be the older one."""
    thief = service("thief", "blue", cluster_ip="172.30.0.9", external_ips=(address,), created="2025-01-01T00:00:00Z")
    web = service(cluster_ip="172.30.0.8")
    service_map = fill(ServiceMap(), (thief, web), (slice_of("web", endpoint(THERE), endpoint("10.245.2.4")),))
    service_map.set_config(CONFIG)
    service_map.apply_changes()
    ports = {key.service: port for key, port in service_map.ports.items()}
    assert rejections(service_map, "thief", "blue") == [f"external address {address} {why}"]
    assert ports["thief"].external_ips == ()
    assert ports["web"].cluster_ip == IPv4Address("172.30.0.8")
    assert {str(endpoint_info.address) for endpoint_info in ports["web"].internal_endpoints} == {THERE, "10.245.2.4"}


NODE_2 = "10.245.2.4"


@pytest.mark.parametrize(
    ("namespace", "pods", "vnids", "is_on_node"),
    [
        ("red", (pod(NODE_2, host_network=True),), CONFIG.vnids, True),
        ("red", (pod(NODE_2, "pink", host_network=True),), CONFIG.vnids, True),
        ("default", (), CONFIG.vnids, True),
        ("red", (), CONFIG.vnids, False),
        ("red", (pod(NODE_2, "blue", host_network=True),), CONFIG.vnids, False),
        ("red", (pod(NODE_2, "default", host_network=True),), CONFIG.vnids, False),
        ("red", (pod("10.245.2.3", host_network=True),), CONFIG.vnids, False),
        ("red", (pod(NODE_2, phase="Succeeded", host_network=True),), CONFIG.vnids, False),
        ("red", (pod(NODE_2, host_network=False),), CONFIG.vnids, False),
        ("red", (pod(NODE_2, host_network=True),), None, True),
        ("red", (pod(NODE_2, "blue", host_network=True),), None, False),
        ("default", (), None, True),
    ],
)
def test_endpoint_at_a_node_is_open_to_pods_if_its_project_has_a_pod_there(
    namespace: str, pods: tuple[PodAddress, ...], vnids: dict[str, int] | None, *, is_on_node: bool
) -> None:
    service_map = service_map_of(
        service(namespace=namespace),
        slice_of("web", endpoint(NODE_2), namespace=namespace),
        config=config_with(vnids=vnids),
        pods=pods,
    )
    [accepted] = only_port(service_map).cluster_endpoints
    assert accepted.is_on_node == is_on_node
    fill(service_map, pods=(pod(NODE_2, namespace, host_network=True),)).apply_changes()
    assert only_port(service_map).cluster_endpoints[0].is_on_node


@pytest.mark.parametrize(
    ("namespace", "address", "is_on_node"),
    [("red", "192.0.2.9", False), ("default", "192.0.2.9", True), ("default", HERE, False)],
)
def test_endpoint_at_an_unknown_address_is_open_to_pods_for_services_of_administrators(
    namespace: str, address: str, *, is_on_node: bool
) -> None:
    slices = slice_of("web", endpoint(address), namespace=namespace)
    pods = (pod(address, namespace, host_network=address != HERE),)
    port = only_port(service_map_of(service(namespace=namespace), slices, pods=pods))
    assert port.cluster_endpoints[0].is_on_node == is_on_node


def test_pods_reach_a_health_check_only_within_the_range_of_node_ports() -> None:
    """Another API server may accept anything; port 10250 is the node agent's."""
    for number, opened in ((30100, 30100), (10250, 0), (0, 0)):
        service_map = service_map_of(service(type="LoadBalancer", health_check_node_port=number))
        assert only_port(service_map).health_port == opened
        assert service_map.states["red", "web"].health_port == number


def test_oldest_service_owns_the_port_of_a_health_check() -> None:
    ports = (ServicePort(port=80, protocol="TCP", node_port=30100),)
    first = service("a", type="NodePort", ports=ports)
    second = service(
        "b", "blue", "2026-01-02T00:00:00Z", type="LoadBalancer", cluster_ip="172.30.0.8", health_check_node_port=30100
    )
    service_map = fill(ServiceMap(), (second, first))
    service_map.set_config(CONFIG)
    service_map.apply_changes()
    assert {key.service: port.health_port for key, port in service_map.ports.items()} == {"a": 0, "b": 0}
    assert rejections(service_map, "b", "blue") == ["healthCheckNodePort 30100 belongs to an older service"]
    assert not service_map.with_health_check
    service_map.set_service(("red", "a"), None)
    service_map.apply_changes()
    assert only_port(service_map).health_port == 30100
    assert service_map.with_health_check.keys() == {("blue", "b")}

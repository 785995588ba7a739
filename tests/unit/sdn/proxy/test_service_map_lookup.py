"""The service map: the service and endpoints for the address that a client connects to."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo, ServicePortName
from sdn.proxy.service_map import ClientConnection, FrontendLookup
from tests.unit.sdn.proxy.examples import CONFIG
from tests.unit.sdn.proxy.userspace.examples import CLUSTER_IP, HERE, NODE, OTHER_NODE, OUTSIDE_IP, POD, STRANGER, WEB


def lookup(*ports: ServicePortInfo) -> FrontendLookup:
    served = FrontendLookup(CONFIG)
    served.update(ServicePortChange(added=ports))
    return served


def call(address: IPv4Address, port: int, client: IPv4Address = POD, *, from_host: bool = False) -> ClientConnection:
    return ClientConnection((address, Protocol.TCP, port), client, from_host)


@pytest.mark.parametrize(
    ("connection", "backends"),
    [
        (call(CLUSTER_IP, 80), WEB.internal_endpoints),
        (call(CLUSTER_IP, 80, NODE, from_host=True), WEB.internal_endpoints),
        (call(OUTSIDE_IP, 80), WEB.cluster_endpoints),
        (call(NODE, 30080), WEB.cluster_endpoints),
        (call(OTHER_NODE, 30080), WEB.cluster_endpoints),
        (call(NODE, 30080, NODE, from_host=True), WEB.cluster_endpoints),
        (call(NODE, 30080, STRANGER), WEB.external_endpoints),
        (call(OUTSIDE_IP, 80, STRANGER), WEB.external_endpoints),
        (call(NODE, 30080, OTHER_NODE), WEB.external_endpoints),
        (call(CLUSTER_IP, 81), ()),
        (call(CLUSTER_IP, 30080), ()),
        (call(NODE, 80), ()),
        (call(POD, 30080), ()),
        (ClientConnection((CLUSTER_IP, Protocol.UDP, 80), POD, from_host=False), ()),
    ],
)
def test_lookup_selects_endpoints_by_frontend_and_client(
    connection: ClientConnection, backends: tuple[EndpointInfo, ...]
) -> None:
    assert lookup(WEB).endpoints(connection) == backends


def test_other_node_selects_the_endpoints_of_pods_with_external_traffic_policy_local() -> None:
    served = lookup(replace(WEB, external_policy_local=True))
    assert served.endpoints(call(OTHER_NODE, 30080)) == ()
    for connection in (call(NODE, 30080), call(OUTSIDE_IP, 80), call(NODE, 30080, NODE, from_host=True)):
        assert served.endpoints(connection) == WEB.cluster_endpoints


def test_lookup_never_returns_a_frontend_as_endpoint() -> None:
    rounds = (
        EndpointInfo(CLUSTER_IP, 80),
        EndpointInfo(OUTSIDE_IP, 80),
        EndpointInfo(NODE, 30080),
        EndpointInfo(OTHER_NODE, 30080),
    )
    harmless = (EndpointInfo(NODE, 80, is_on_node=True), EndpointInfo(STRANGER, 30080), HERE)
    served = lookup(replace(WEB, internal_endpoints=(*rounds, *harmless)))
    assert served.endpoints(call(CLUSTER_IP, 80)) == harmless


def test_lookup_finds_the_replacement_of_a_removed_service() -> None:
    served = lookup(WEB)
    moved = replace(WEB, cluster_ip=IPv4Address("172.30.0.10"), node_port=0)
    heir = replace(WEB, key=ServicePortName("red", "heir", "", Protocol.TCP), external_ips=())
    served.update(ServicePortChange(removed=(WEB,), added=(moved, heir)))
    assert served.find((CLUSTER_IP, Protocol.TCP, 80)) == heir
    assert served.find((NODE, Protocol.TCP, 30080)) == heir
    assert served.find((OUTSIDE_IP, Protocol.TCP, 80)) == moved
    served.update(served.difference([]))
    assert not served.ports
    assert served.find((CLUSTER_IP, Protocol.TCP, 80)) is served.find((NODE, Protocol.TCP, 30080)) is None


def test_service_map_difference_names_changed_ports_only() -> None:
    other = replace(
        WEB, key=ServicePortName("red", "other", "", Protocol.TCP), cluster_ip=None, external_ips=(), node_port=0
    )
    served = lookup(WEB, other)
    assert not served.difference([WEB, other])
    smaller = replace(WEB, internal_endpoints=(HERE,))
    assert served.difference([smaller, other]) == ServicePortChange(removed=(WEB,), added=(smaller,))


def test_pods_get_endpoints_at_nodes_only_where_the_firewall_lets_them() -> None:
    open_dns, closed = EndpointInfo(OTHER_NODE, 53), EndpointInfo(NODE, 10250)
    served = lookup(replace(WEB, internal_endpoints=(open_dns, closed, HERE)))
    assert served.endpoints(call(CLUSTER_IP, 80)) == (open_dns, HERE)
    assert served.endpoints(call(CLUSTER_IP, 80, NODE, from_host=True)) == (open_dns, closed, HERE)
    served.config = replace(CONFIG, node=replace(CONFIG.node, open_ports=None))
    assert served.endpoints(call(CLUSTER_IP, 80)) == (open_dns, closed, HERE)

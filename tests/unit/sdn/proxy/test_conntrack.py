"""Connections that are deleted because their endpoint was removed."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from sdn.model.host import ConntrackEntry
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo, ServicePortName
from sdn.pipeline.service import ServiceFlows, service_node_flows
from sdn.proxy.conntrack import (
    changed_udp_frontends,
    conntrack_filters,
    conntrack_filters_of_flows,
    conntrack_filters_to_flush,
    entries_without_frontend,
    stale_entries,
    udp_frontends,
)
from tests.unit.sdn.examples import CLUSTER, NODE, PROXY_CONFIG, web
from tests.unit.sdn.proxy.examples import CLUSTER_IPS


def test_udp_connections_to_removed_endpoints_are_stale() -> None:
    endpoint, other = (EndpointInfo(IPv4Address("10.128.0.2") + n, 53) for n in range(2))
    dns = ServicePortInfo(
        key=ServicePortName("kube-system", "dns", "", Protocol.UDP),
        vnid=0,
        cluster_ip=CLUSTER_IPS + 10,
        port=53,
        node_port=30053,
    )
    both = replace(
        dns,
        internal_endpoints=(endpoint, other),
        cluster_endpoints=(endpoint, other),
        external_endpoints=(endpoint, other),
    )
    few = replace(dns, internal_endpoints=(endpoint,), cluster_endpoints=(endpoint,), external_endpoints=(endpoint,))
    client = IPv4Address("10.245.2.99")

    def entry(frontend: IPv4Address, frontend_port: int, endpoint: IPv4Address, port: int = 53) -> ConntrackEntry:
        return ConntrackEntry(
            client=client,
            client_port=4000,
            frontend=frontend,
            frontend_port=frontend_port,
            endpoint=endpoint,
            endpoint_port=port,
        )

    good = [
        entry(CLUSTER_IPS + 10, 53, endpoint.address),
        entry(NODE.address, 30053, endpoint.address),
        entry(client, 53, other.address),
    ]
    bad = [
        entry(CLUSTER_IPS + 10, 53, other.address),
        entry(NODE.address, 30053, other.address),
        entry(NODE.address, 30053, NODE.address, 30053),
        entry(NODE.address, 30053, endpoint.address, 54),
    ]
    assert stale_entries(changed_udp_frontends(NODE.address, ServicePortChange((both,), (few,))), good + bad) == bad
    assert stale_entries(udp_frontends(NODE.address, [few]), good + bad) == bad
    removed = ServicePortChange((both,), ())
    assert stale_entries(changed_udp_frontends(NODE.address, removed), good + bad) == [*good[:2], *bad]
    assert stale_entries(changed_udp_frontends(NODE.address, ServicePortChange((), ())), good + bad) == []


@pytest.mark.parametrize(
    ("frontend", "port", "endpoint", "found"),
    [
        (CLUSTER_IPS + 9, 53, "10.128.0.2", True),
        (NODE.address, 30053, "10.128.0.2", True),
        (CLUSTER_IPS + 10, 53, "10.128.0.2", False),  # A service has this frontend.
        (CLUSTER_IPS + 9, 53, str(CLUSTER_IPS + 9), False),  # without DNAT
        (NODE.address, 29999, "10.128.0.2", False),  # not a node port, for example a host port
        (NODE.address + 1, 30053, "10.128.0.2", False),
        (IPv4Address("198.51.100.7"), 53, "10.128.0.2", False),
    ],
    ids=str,
)
def test_udp_connections_of_frontends_without_a_service_are_found(
    frontend: IPv4Address, port: int, endpoint: str, found: bool
) -> None:
    entry = ConntrackEntry(
        client=IPv4Address("10.245.2.99"),
        client_port=4000,
        frontend=frontend,
        frontend_port=port,
        endpoint=IPv4Address(endpoint),
        endpoint_port=port,
    )
    frontends = {(CLUSTER_IPS + 10, 53): frozenset({(IPv4Address("10.128.0.2"), 53)})}
    assert entries_without_frontend(PROXY_CONFIG, frontends, [entry]) == ([entry] if found else [])


def test_udp_connections_to_remote_endpoints_stay_after_a_change_to_external_traffic_policy_local() -> None:
    cluster = web("10.128.2.2", protocol=Protocol.UDP)
    local = replace(cluster, external_endpoints=(), external_policy_local=True)
    entry = ConntrackEntry(
        client=IPv4Address("10.245.2.99"),
        client_port=4000,
        frontend=NODE.address,
        frontend_port=30080,
        endpoint=IPv4Address("10.128.2.2"),
        endpoint_port=8080,
    )
    change = ServicePortChange((cluster,), (local,))
    assert stale_entries(changed_udp_frontends(NODE.address, change), [entry]) == []
    assert stale_entries(udp_frontends(NODE.address, [local]), [entry]) == []


def test_conntrack_flush_filters_match_removed_endpoints_only() -> None:
    before = web("10.128.0.2", "10.128.0.3", protocol=Protocol.UDP)
    after = web("10.128.0.3", protocol=Protocol.UDP)
    filters = conntrack_filters_to_flush(ServicePortChange((before,), (after,)))
    assert {
        (conntrack_filter.address, conntrack_filter.port, str(conntrack_filter.endpoint))
        for conntrack_filter in filters
    } == {
        (IPv4Address("172.30.0.1"), 80, "10.128.0.2"),
        (None, 30080, "10.128.0.2"),
    }
    assert not conntrack_filters_to_flush(ServicePortChange((web("10.128.0.2"),), ()))


def test_conntrack_flush_filters_of_a_deleted_udp_service_match_all_its_endpoints() -> None:
    before = web("10.128.0.2", "10.128.0.3", protocol=Protocol.UDP)
    filters = conntrack_filters_to_flush(ServicePortChange((before,), ()))
    assert {str(conntrack_filter.endpoint) for conntrack_filter in filters} == {"10.128.0.2", "10.128.0.3"}


def test_conntrack_flush_filters_match_no_endpoint_that_stays() -> None:
    before, after = web("10.128.0.2", protocol=Protocol.UDP), web("10.128.0.2", "10.128.0.3", protocol=Protocol.UDP)
    assert not conntrack_filters_to_flush(ServicePortChange((before,), (after,)))
    assert not conntrack_filters_to_flush(ServicePortChange((), (after,)))


@pytest.mark.parametrize("affinity_timeout_seconds", [0, 600])
@pytest.mark.parametrize("addresses", [(), ("10.128.0.2",), ("10.128.0.2", "10.128.2.3")])
@pytest.mark.parametrize("external_ips", [(), (IPv4Address("198.51.100.1"),)])
def test_conntrack_filters_of_flows_are_those_of_their_udp_ports(
    addresses: tuple[str, ...], external_ips: tuple[IPv4Address, ...], affinity_timeout_seconds: int
) -> None:
    port = replace(
        web(*addresses, protocol=Protocol.UDP),
        external_ips=external_ips,
        affinity_timeout_seconds=affinity_timeout_seconds,
    )
    other = replace(port, key=ServicePortName("red", "other", "", Protocol.TCP), cluster_ip=CLUSTER_IPS + 11)
    flows = ServiceFlows(NODE).sync([port, other]).flows | service_node_flows(CLUSTER, NODE)
    assert conntrack_filters_of_flows(flows) == conntrack_filters([port])
    assert len(conntrack_filters([port])) == len(addresses) * (2 + len(external_ips))

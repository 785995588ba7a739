"""A node, its cluster, peers and services for the tests of the sdn daemon."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

from hypothesis import strategies as st

from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.proxy.service_ports import ProxyConfig
from sdn.topology import VXLAN_PORT, Cluster, Node

CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, 4789, 1450)


NODE = Node("node-1", IPv4Address("10.245.2.3"), IPv4Network("10.128.0.0/23"))


PROXY_CONFIG = ProxyConfig(
    node=NODE,
    cluster_networks=CLUSTER.networks,
    service_network=CLUSTER.service_network,
    node_port_range=(30000, 32767),
    vnids=None,
    node_ips=frozenset({NODE.address}),
    vxlan_port=VXLAN_PORT,
)


peers = st.sets(st.integers(1, 500), max_size=20)


SMALL = replace(NODE, subnet=IPv4Network("10.128.0.0/29"))


def web(*addresses: str, protocol: Protocol = Protocol.TCP) -> ServicePortInfo:
    there = tuple(EndpointInfo(IPv4Address(address), 8080) for address in addresses)
    return ServicePortInfo(
        key=ServicePortName("red", "web", "", protocol),
        vnid=10,
        cluster_ip=IPv4Address("172.30.0.1"),
        port=80,
        node_port=30080,
        external_ips=(),
        internal_endpoints=there,
        cluster_endpoints=there,
        external_endpoints=there,
    )

"""The configuration of a node, and addresses that its services have."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from sdn.proxy.service_ports import ProxyConfig
from sdn.topology import Node

NODE_ADDRESS = IPv4Address("10.245.2.3")


CONFIG = ProxyConfig(
    node=Node("node-1", NODE_ADDRESS, IPv4Network("10.128.0.0/23")),
    cluster_networks=(IPv4Network("10.128.0.0/14"),),
    service_network=IPv4Network("172.30.0.0/16"),
    node_port_range=(30000, 32767),
    vnids=None,
    node_ips=frozenset({NODE_ADDRESS}),
)


CLUSTER_IPS, OUTSIDE_IPS = IPv4Address("172.30.0.0"), IPv4Address("198.51.100.0")

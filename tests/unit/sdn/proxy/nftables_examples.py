"""A host, and addresses that its services have."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from sdn.proxy.nftables import Host

NODE_ADDRESS = IPv4Address("10.245.2.3")


HOST = Host(
    NODE_ADDRESS, IPv4Network("10.128.0.0/23"), IPv4Network("172.30.0.0/16"), frozenset({NODE_ADDRESS}), (30000, 32767)
)


CLUSTER_IPS, OUTSIDE_IPS = IPv4Address("172.30.0.0"), IPv4Address("198.51.100.0")

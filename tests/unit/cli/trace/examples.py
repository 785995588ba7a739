"""Two pods and the topology in which they are."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from cli.trace.topology import ClusterTopology, Host

RED = Host(IPv4Address("10.128.0.2"), "red/a", "red", "node-1")


BLUE = Host(IPv4Address("10.128.2.3"), "blue/b", "blue", "node-2")


KNOWN = ClusterTopology(
    pods=(RED, BLUE),
    vnids={"red": 10, "blue": 11},
    subnets={"node-1": IPv4Network("10.128.0.0/23"), "node-2": IPv4Network("10.128.2.0/23")},
    addresses={"node-1": IPv4Address("10.245.2.3"), "node-2": IPv4Address("10.245.2.4")},
    nodes=frozenset({"node-1", "node-2", "node-3"}),
    networks=(IPv4Network("10.128.0.0/14"),),
    services=IPv4Network("172.30.0.0/16"),
    vxlan_port=4789,
    host_network_pods={"red/guest": "node-2"},
)

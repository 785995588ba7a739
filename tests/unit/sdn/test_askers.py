"""In which lane who asks for names is."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from nameserver.resolver import UNKNOWN_CLIENT
from sdn.cluster_dns.state import client_vnids
from sdn.topology import Cluster, DockerNetwork, Node, NodeNetwork, Pod

CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, 4789, 1450)
NODE = Node("node-1", IPv4Address("10.245.2.3"), IPv4Network("10.128.0.0/23"))
PODS = frozenset({Pod(16, IPv4Address("10.128.0.2"), 10), Pod(17, IPv4Address("10.128.0.3"), 0)})
DOCKER = DockerNetwork(IPv4Network("10.128.1.128/25"), 3, 7)
VIEW = NodeNetwork(CLUSTER, NODE, frozenset(), PODS, docker=DOCKER)


@pytest.mark.parametrize(
    ("address", "lane", "flat"),
    [
        ("10.128.0.2", 10, 10),
        ("10.128.0.3", 0, 0),
        ("10.128.0.1", 0, 0),
        ("10.245.2.3", 0, 0),
        ("127.0.0.1", 0, 0),
        ("10.128.1.200", 7, 7),
        ("10.128.0.4", UNKNOWN_CLIENT, 0),
        ("10.128.2.2", UNKNOWN_CLIENT, 0),
        ("10.128.2.1", UNKNOWN_CLIENT, 0),
        ("10.245.2.4", UNKNOWN_CLIENT, UNKNOWN_CLIENT),
        ("192.0.2.1", UNKNOWN_CLIENT, UNKNOWN_CLIENT),
    ],
)
def test_only_who_is_known_here_is_in_a_lane(address: str, lane: int, flat: int) -> None:
    assert client_vnids(VIEW).lane(address) == lane
    assert client_vnids(replace(VIEW, cluster=replace(CLUSTER, multitenant=False))).lane(address) == flat

"""What pods reach at the addresses of nodes: the firewall's tables with real packets."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from lab.process import run
from sdn.config import DNS_PORTS
from sdn.host.firewall import TABLE, masquerade_table
from sdn.model.match import mac_text
from sdn.pipeline.tables import NODE_ACCESS_MAC
from sdn.proxy.nftables import services_table
from sdn.proxy.service_ports import ProxyConfig
from sdn.topology import VXLAN_PORT, Cluster
from sdn.topology import Node as NodeConfig
from tests.testbed.namespaces import inside
from tests.testbed.netns.service_host import GATEWAY, NEAR, NODE, OUTSIDER, SUBNET, Node

DNS, NAMED, OTHER, NODE_PORT = 53, 9100, 9999, 30100
PORTS = (DNS, NAMED, OTHER)
AT_NODES = (NODE, GATEWAY, OUTSIDER)
"""The addresses of the pods' node, and that of another node."""

CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, VXLAN_PORT, 1450)
CONFIG = NodeConfig("node-1", NODE, SUBNET, open_ports=DNS_PORTS | {("tcp", NAMED), ("udp", NAMED)})


@pytest.fixture(scope="module")
def host() -> Iterator[Node]:
    """Yield a node with the firewall's tables. On it, on another node and in a pod, programs listen on 0.0.0.0."""
    node = Node()
    node.build()
    with contextlib.ExitStack() as listening:
        listening.callback(node.remove)
        for namespace in (node.node, node.outside, node.pods):
            with inside(namespace):
                for port in (*PORTS, NODE_PORT):
                    listening.enter_context(socket.create_server(("", port)))
        write_tables(node, CONFIG)
        yield node


def write_tables(host: Node, config: NodeConfig) -> None:
    proxy = ProxyConfig(
        node=config,
        cluster_networks=CLUSTER.networks,
        service_network=CLUSTER.service_network,
        node_port_range=CLUSTER.node_ports,
        vnids=None,
        node_ips=frozenset({NODE, OUTSIDER}),
        vxlan_port=VXLAN_PORT,
    )
    host.nft(masquerade_table(CLUSTER, config))
    host.nft(services_table(proxy, ()))


def connects(namespace: str, address: IPv4Address, port: int) -> bool:
    """Return whether a TCP connection is accepted; False if the firewall, or the table of services, rejects it."""
    with inside(namespace):
        caller = socket.socket()
    with caller:
        caller.settimeout(5)
        try:
            caller.connect((str(address), port))
        except OSError as error:
            if error.errno not in {errno.EHOSTUNREACH, errno.ECONNREFUSED}:
                raise
            return False
    return True


@pytest.mark.parametrize("address", AT_NODES)
def test_pod_reaches_only_open_ports_of_nodes(host: Node, address: IPv4Address) -> None:
    assert {port: connects(host.pods, address, port) for port in PORTS} == {DNS: True, NAMED: True, OTHER: False}
    assert all(connects(host.node, address, port) for port in PORTS)
    run("ip", "netns", "exec", host.pods, "ping", "-c1", "-W5", str(address))


def test_other_clients_and_replies_of_pods_are_not_concerned(host: Node) -> None:
    assert connects(host.outside, NODE, OTHER)
    assert connects(host.node, NEAR[0], OTHER)


@pytest.mark.parametrize("address", AT_NODES)
def test_datagrams_of_pods_are_rejected_too(host: Node, address: IPv4Address) -> None:
    assert receives_datagram(host, address, NAMED)
    assert not receives_datagram(host, address, OTHER)


def receives_datagram(host: Node, address: IPv4Address, port: int) -> bool:
    """Return whether a datagram of a pod arrives at a node. A rejection is an error at the sender at once."""
    with inside(host.outside if address == OUTSIDER else host.node):
        server = socket.socket(type=socket.SOCK_DGRAM)
    with inside(host.pods):
        caller = socket.socket(type=socket.SOCK_DGRAM)
    with server, caller:
        server.bind(("", port))
        server.settimeout(5)
        caller.connect((str(address), port))
        caller.send(b"who?")
        error = caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return error != errno.EHOSTUNREACH and server.recv(16) == b"who?"


def test_packets_that_the_switch_permits_reach_every_port(host: Node) -> None:
    own = run("ip", "netns", "exec", host.pods, "cat", "/sys/class/net/eth0/address").strip()
    for mac, reached in ((mac_text(NODE_ACCESS_MAC), True), (own, False)):
        run("ip", "-n", host.pods, "link", "set", "eth0", "address", mac)
        run("ip", "-n", host.node, "neigh", "flush", "dev", "tun0")
        assert {address: connects(host.pods, address, OTHER) for address in AT_NODES} == dict.fromkeys(
            AT_NODES, reached
        )
        # The switch permits health checks at every node, and node ports of other nodes (externalTrafficPolicy Local).
        for address in (NODE, OUTSIDER):
            assert connects(host.pods, address, NODE_PORT) == reached


def test_setting_opens_every_port(host: Node) -> None:
    write_tables(host, replace(CONFIG, open_ports=None))
    try:
        assert all(connects(host.pods, address, OTHER) for address in AT_NODES)
    finally:
        write_tables(host, CONFIG)
    assert not connects(host.pods, NODE, OTHER)
    assert "pods_to_nodes" in host.nft("list", "table", "ip", TABLE)

"""A pod that sends from the port of tunnels gets no tunnel packet of a peer: real nftables with real packets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest

from sdn.host.firewall import TABLE, masquerade_table
from sdn.topology import VXLAN_PORT
from sdn.topology import Node as NodeConfig
from tests.testbed.namespaces import inside
from tests.testbed.netns.service_host import NEAR, NODE, OUTSIDER, PATIENCE_SECONDS, SILENCE_SECONDS, SUBNET, Node
from tests.testbed.trace.trace_world import CLUSTER

PEER_PORT = 40_000
"""The source port of the peer's tunnel packets, which the peer derives from the inner packet."""

POD = NEAR[0]


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    try:
        made.build()
        made.nft(masquerade_table(CLUSTER, NodeConfig("node-1", NODE, SUBNET)))
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def udp_socket(namespace: str, address: IPv4Address | str, port: int) -> Iterator[socket.socket]:
    with inside(namespace):
        opened = socket.socket(type=socket.SOCK_DGRAM)
    with opened:
        opened.settimeout(PATIENCE_SECONDS)
        opened.bind((str(address), port))
        yield opened


def receivers_of_tunnel_packets(node: Node) -> list[str]:
    """Let a pod send from the port of tunnels to a peer, then the peer to the node. Return who receives the latter."""
    with (
        udp_socket(node.pods, POD, VXLAN_PORT) as pod,
        udp_socket(node.node, NODE, VXLAN_PORT) as tunnel,
        udp_socket(node.outside, OUTSIDER, PEER_PORT) as peer,
    ):
        pod.sendto(b"attack", (str(OUTSIDER), PEER_PORT))
        assert peer.recvfrom(100) == (b"attack", (str(NODE), VXLAN_PORT))
        peer.sendto(b"tunnel packet", (str(NODE), VXLAN_PORT))
        received = []
        for name, receiver in (("pod", pod), ("tunnel", tunnel)):
            receiver.settimeout(SILENCE_SECONDS)
            with contextlib.suppress(TimeoutError):
                assert receiver.recv(100) == b"tunnel packet"
                received.append(name)
        return received


def test_pod_that_sends_from_the_tunnel_port_receives_no_tunnel_packet(node: Node) -> None:
    assert receivers_of_tunnel_packets(node) == ["tunnel"]


def test_pod_would_receive_tunnel_packets_if_they_were_tracked(node: Node) -> None:
    node.nft("flush", "chain", "ip", TABLE, "prerouting")
    assert receivers_of_tunnel_packets(node) == ["pod"]

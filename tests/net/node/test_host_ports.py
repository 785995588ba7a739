"""Host ports with real packets."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest

from api.core.pod import Container, ContainerPort, Pod, PodSpec, PodStatus
from api.meta.types import ObjectMeta
from node_agent.network.host_ports import NodePorts, compile_host_ports
from tests.testbed.netns.service_host import NEAR, NODE, OUTSIDER, PORT, Node, answering, call


@pytest.fixture
def host() -> Iterator[Node]:
    node = Node()
    node.build()
    try:
        with answering(node.pods, NEAR[:1]), answering(node.outside, (OUTSIDER,)):
            yield node
    finally:
        node.remove()


def open_ports(host: Node, *ports: ContainerPort, addresses: tuple[IPv4Address, ...] = (NODE,)) -> None:
    """Write the table for a pod with these ports, on a node that has these addresses as far as it knows."""
    spec = PodSpec(containers=(Container(name="c", image="none", ports=ports),))
    pod = Pod(metadata=ObjectMeta(name="web", namespace="red"), spec=spec, status=PodStatus(pod_ip=str(NEAR[0])))
    text = compile_host_ports([pod], NodePorts(frozenset(addresses))).ruleset
    subprocess.run(("ip", "netns", "exec", host.node, "nft", "-f", "-"), input=text, text=True, check=True)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_pod_gets_packets_to_addresses_of_its_node_only(host: Node, kind: socket.SocketKind) -> None:
    protocol = {socket.SOCK_STREAM: "TCP", socket.SOCK_DGRAM: "UDP"}[kind]
    bound = [
        ContainerPort(container_port=PORT, host_port=9080, host_ip=ip, protocol=protocol)
        for ip in (str(NODE), "fd00::1", "127.0.0.1")
    ]
    taken_over = ContainerPort(container_port=PORT, host_port=PORT, host_ip=str(OUTSIDER), protocol=protocol)
    open_ports(host, *bound, taken_over)
    assert call(host.outside, NODE, 9080, kind).backend == NEAR[0]
    assert call(host.node, NODE, 9080, kind).backend == NEAR[0]
    assert call(host.node, OUTSIDER, PORT, kind).backend == OUTSIDER
    # Even if the node had this address when the table was written.
    open_ports(host, *bound, taken_over, addresses=(NODE, OUTSIDER))
    assert call(host.outside, NODE, 9080, kind).backend == NEAR[0]
    assert call(host.node, OUTSIDER, PORT, kind).backend == OUTSIDER
    assert call(host.pods, OUTSIDER, PORT, kind).backend == OUTSIDER


def test_port_at_all_addresses_reaches_the_pod(host: Node) -> None:
    open_ports(host, ContainerPort(container_port=PORT, host_port=9080))
    assert call(host.outside, NODE, 9080).backend == NEAR[0]
    with pytest.raises(OSError, match="refused"):
        call(host.node, IPv4Address("127.0.0.1"), 9080)

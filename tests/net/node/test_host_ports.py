"""Host ports with real packets."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network

import pytest

from api.core.pod import Container, ContainerPort, Pod, PodSpec, PodStatus
from api.meta.types import ObjectMeta
from lab.process import run
from node_agent.network.host_ports import Listener, NodePorts, compile_host_ports
from sdn.host.firewall import masquerade_table
from sdn.topology import VXLAN_PORT, Cluster
from sdn.topology import Node as NodeConfig
from tests.testbed.frames import IPV4, ethernet, udp
from tests.testbed.namespaces import inside
from tests.testbed.netns.service_host import (
    ANY,
    GATEWAY,
    NEAR,
    NODE,
    OUTSIDER,
    PORT,
    SUBNET,
    Node,
    ServiceReply,
    answering,
    call,
)
from tests.testbed.raw_socket import RawSocket

LOOPBACK = IPv4Address("127.0.0.1")
CLUSTER = Cluster((IPv4Network("10.128.0.0/14"),), IPv4Network("172.30.0.0/16"), True, VXLAN_PORT, 1450)
CONFIG = NodeConfig("node-1", NODE, SUBNET, open_ports=None)


@pytest.fixture
def host() -> Iterator[Node]:
    node = Node()
    node.build()
    run("ip", "netns", "exec", node.node, "sysctl", "-qw", "net.ipv4.conf.tun0.route_localnet=1")
    try:
        with answering(node.pods, NEAR[:1]), answering(node.outside, (OUTSIDER,)):
            yield node
    finally:
        node.remove()


def open_ports(
    host: Node,
    *ports: ContainerPort,
    addresses: tuple[IPv4Address, ...] = (NODE,),
    listeners: tuple[Listener, ...] = (),
) -> None:
    """Write the table for a pod with these ports, on a node with these addresses and listeners as far as it knows."""
    spec = PodSpec(containers=(Container(name="c", image="none", ports=ports),))
    pod = Pod(metadata=ObjectMeta(name="web", namespace="red"), spec=spec, status=PodStatus(pod_ip=str(NEAR[0])))
    text = compile_host_ports([pod], NodePorts(frozenset(addresses), listeners=frozenset(listeners))).ruleset
    subprocess.run(("ip", "netns", "exec", host.node, "nft", "-f", "-"), input=text, text=True, check=True)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_pod_gets_packets_to_addresses_of_its_node_only(host: Node, kind: socket.SocketKind) -> None:
    protocol = {socket.SOCK_STREAM: "TCP", socket.SOCK_DGRAM: "UDP"}[kind]
    bound = [
        ContainerPort(container_port=PORT, host_port=9080, host_ip=ip, protocol=protocol)
        for ip in (str(NODE), "fd00::1")
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
    assert call(host.node, NODE, 9080).backend == NEAR[0]


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize("host_ip", ["", str(LOOPBACK)])
def test_processes_of_the_node_reach_the_pod_at_a_loopback_address(
    host: Node, kind: socket.SocketKind, host_ip: str
) -> None:
    protocol = {socket.SOCK_STREAM: "TCP", socket.SOCK_DGRAM: "UDP"}[kind]
    open_ports(host, ContainerPort(container_port=PORT, host_port=9080, host_ip=host_ip, protocol=protocol))
    for own, seen in ((ANY, GATEWAY), (NODE, NODE)):
        assert call(host.node, LOOPBACK, 9080, kind, own) == ServiceReply(NEAR[0], seen)
    for address in (IPv4Address("127.0.0.2"), NODE):
        if host_ip:
            with pytest.raises(OSError, match="refused"):
                call(host.node, address, 9080, kind)
        else:
            assert call(host.node, address, 9080, kind).backend == NEAR[0]


def test_program_of_the_node_keeps_its_port_at_a_loopback_address(host: Node) -> None:
    with answering(host.node, (LOOPBACK,)):
        open_ports(
            host, ContainerPort(container_port=PORT, host_port=PORT), listeners=(Listener("tcp", LOOPBACK, PORT),)
        )
        assert call(host.node, LOOPBACK, PORT).backend == LOOPBACK
        assert call(host.outside, NODE, PORT).backend == NEAR[0]


def arriving(host: Node, neighbour: str) -> set[str]:
    """Send raw datagrams from a neighbour of the node. Return those that arrive, as `source to destination`.

    One program of the node is at a loopback address, another one at all addresses. The last datagram is one that always
    arrives.
    """
    sender, source, device, own = {
        "pods": (host.pods, NEAR[1], "tun0", GATEWAY),
        "outside": (host.outside, OUTSIDER, "eth0", NODE),
    }[neighbour]
    mac = int(run("ip", "netns", "exec", host.node, "cat", f"/sys/class/net/{device}/address").replace(":", ""), 16)
    wire = RawSocket(sender, "eth0")
    with inside(host.node):
        at_loopback, anywhere = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
    arrived: set[str] = set()
    with contextlib.closing(wire), at_loopback, anywhere:
        at_loopback.bind((str(LOOPBACK), 7777))
        anywhere.bind(("", 7778))
        anywhere.settimeout(5)
        for src, dst, port in (
            (source, LOOPBACK, 7777),
            (LOOPBACK, LOOPBACK, 7777),
            (source, LOOPBACK, 7778),
            (LOOPBACK, own, 7778),
            (source, own, 7778),
        ):
            wire.send(ethernet(mac, 0x020000000009, IPV4, udp(src, dst, f"{src} to {dst}".encode(), port)))
        while f"{source} to {own}" not in arrived:
            arrived.add(anywhere.recv(100).decode())
        with contextlib.suppress(BlockingIOError):
            while True:
                arrived.add(at_loopback.recv(100, socket.MSG_DONTWAIT).decode())
    return arrived - {f"{source} to {own}"}


@pytest.mark.parametrize("neighbour", ["pods", "outside"])
def test_packets_that_enter_the_node_do_not_reach_its_loopback_addresses(host: Node, neighbour: str) -> None:
    """The kernel lets them pass where route_localnet is set, as it is for tun0 (CVE-2020-8558). The firewall must not.

    The sysctl is set for all links here, as another program may do it.
    """
    assert bool(arriving(host, neighbour)) == (neighbour == "pods")
    run("ip", "netns", "exec", host.node, "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")
    assert arriving(host, neighbour), "the kernel itself drops them"
    for _ in range(2):
        host.nft(masquerade_table(CLUSTER, CONFIG))
        open_ports(host, ContainerPort(container_port=PORT, host_port=9080))
        assert arriving(host, neighbour) == set()
        assert call(host.node, LOOPBACK, 9080).backend == NEAR[0]
    host.nft("delete table ip podlane")
    assert arriving(host, neighbour)


@pytest.mark.parametrize("neighbour", ["pods", "outside"])
def test_host_port_at_a_loopback_address_is_closed_to_other_hosts_and_pods(host: Node, neighbour: str) -> None:
    sender, own = {"pods": (host.pods, GATEWAY), "outside": (host.outside, NODE)}[neighbour]
    open_ports(host, ContainerPort(container_port=PORT, host_port=9080, host_ip=str(LOOPBACK)))
    assert call(host.node, LOOPBACK, 9080).backend == NEAR[0]
    with pytest.raises(OSError, match="refused"):
        call(sender, own, 9080)

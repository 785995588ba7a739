"""Packets of pods to loopback addresses reach no program of the node, although tun0 has route_localnet (CVE-2020-8558).

The switch drops them, and so does the firewall.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest

from lab.process import run
from sdn.topology import mac_of
from tests.testbed import frames
from tests.testbed.namespaces import inside
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.wait import wait_until

LOOPBACK = IPv4Address("127.0.0.1")
PRIVATE_PORT, FENCE_PORT = 7777, 7778
CALLERS = ("red-a", "blue-a", "admin-a")


class Programs:
    """Programs of node-1: one at a loopback address, and one at all addresses, which pods of VNID 0 may reach."""

    def __init__(self, world: PacketWorld) -> None:
        self._world = world
        with inside(world.nodes["node-1"].namespace):
            self._private, self._fence = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
        self._private.bind((str(LOOPBACK), PRIVATE_PORT))
        self._fence.bind(("", FENCE_PORT))
        self._fence.settimeout(5)

    def callers_that_reach_loopback(self) -> set[str]:
        """Let each pod send a datagram to the program at the loopback address. Return the pods whose datagrams arrive.

        A switch polls its ports in turn. When the second of two datagrams has arrived that are sent afterwards, all
        others have.
        """
        for caller in CALLERS:
            self._send(caller, LOOPBACK, PRIVATE_PORT, caller.encode())
        for number in range(2):
            fence = f"fence {number}".encode()
            self._send("admin-a", self._world.node_address("node-1"), FENCE_PORT, fence)
            while self._fence.recv(100) != fence:
                pass
        arrived = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                arrived.add(self._private.recv(100, socket.MSG_DONTWAIT).decode())
        return arrived

    def _send(self, caller: str, target: IPv4Address, port: int, payload: bytes) -> None:
        pod = self._world.pods[caller]
        body = frames.udp(pod.address, target, payload, port)
        frame = frames.ethernet(mac_of(self._world.gateway("node-1")), pod.mac, frames.IPV4, body)
        self._world.wire(caller).send(frame)

    def close(self) -> None:
        """Close the sockets of the programs."""
        self._private.close()
        self._fence.close()


@pytest.fixture
def programs(world: PacketWorld) -> Iterator[Programs]:
    with contextlib.closing(Programs(world)) as running:
        yield running


def test_packets_of_pods_to_loopback_addresses_are_dropped_twice(world: PacketWorld, programs: Programs) -> None:
    """Without the rules of the firewall the switch alone drops them. `tests/net/node` has the firewall alone."""
    switch = str(world.nodes["node-1"].ovs / "br0.mgmt")
    assert world.in_node("node-1", "cat", "/proc/sys/net/ipv4/conf/tun0/route_localnet").strip() == "1"
    assert programs.callers_that_reach_loopback() == set()
    world.kill("node-1 sdn")
    try:
        assert programs.callers_that_reach_loopback() == set()
        for chain in ("prerouting", "input"):
            world.in_node("node-1", "nft", "flush", "chain", "ip", "podlane", chain)
        assert programs.callers_that_reach_loopback() == set()
        run("ovs-ofctl", "-O", "OpenFlow14", "del-flows", switch, f"table=40,ip,nw_dst={LOOPBACK}/8")
        wait_until(lambda: programs.callers_that_reach_loopback() == set(CALLERS), "datagrams that nothing drops")
    finally:
        world.start("node-1 sdn")
    wait_until(lambda: not programs.callers_that_reach_loopback(), "the firewall and the flow as they were")

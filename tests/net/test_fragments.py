"""Packets in parts: the switch sees no ports in them, the node's firewall puts them together."""

from __future__ import annotations

import struct

from sdn.view import mac_of
from tests import packets
from tests.net.cluster import NetCluster

MORE_FRAGMENTS = 0x2000
CUT = 1208
"""Bytes of the datagram in the first fragment; a multiple of 8. Open vSwitch tracks no connection of smaller ones."""


def leaves_in_parts(world: NetCluster, port: int) -> bool:
    """Whether a datagram in two fragments, from a pod to a port of the other node, leaves the sender's node."""
    pod, target, mark = world.pods["red-a"], world.pods["blue-b"], packets.cookie()
    inner = packets.ethernet(
        target.mac, pod.mac, packets.IPV4, packets.udp(pod.address, target.address, bytes(CUT) + mark)
    )
    body = packets.vxlan(0, inner)
    datagram = struct.pack("!HHHH", 40000, port, 8 + len(body), 0) + body
    peer, gateway = world.node_address(target.node), mac_of(world.gateway(pod.node))
    first, last = (
        packets.ethernet(gateway, pod.mac, packets.IPV4, packets.ipv4(pod.address, peer, 17, part, offset))
        for part, offset in ((datagram[:CUT], MORE_FRAGMENTS), (datagram[CUT:], CUT // 8))
    )
    world.wire(pod.name).send(first)
    return world.leaves(pod.name, last, mark)


def test_vxlan_by_hand_does_not_leave_in_fragments_either(world: NetCluster) -> None:
    assert leaves_in_parts(world, 4790)
    assert not leaves_in_parts(world, 4789)

"""Fragmented packets: the switch sees no ports in them, and the node's firewall reassembles them."""

from __future__ import annotations

import struct

from sdn.pipeline.tables import Table
from sdn.topology import mac_of
from tests.testbed import frames
from tests.testbed.frames import CUT, MORE_FRAGMENTS
from tests.testbed.isolation.world import arrives_fragmented
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.netns.services import TARGET_PORT, create_service, register
from tests.testbed.wait import wait_until


def leaves_in_parts(world: PacketWorld, name: str, port: int) -> bool:
    """Return whether a datagram in two fragments, from a pod to a port of the other node, leaves the sender's node."""
    pod, target, marker = world.pods[name], world.pods["blue-b"], frames.new_marker()
    inner = frames.ethernet(
        target.mac, pod.mac, frames.IPV4, frames.udp(pod.address, target.address, bytes(CUT) + marker)
    )
    body = frames.vxlan(0, inner)
    datagram = struct.pack("!HHHH", 40000, port, 8 + len(body), 0) + body
    peer, gateway = world.node_address(target.node), mac_of(world.gateway(pod.node))
    first, last = (
        frames.ethernet(gateway, pod.mac, frames.IPV4, frames.ipv4(pod.address, peer, 17, part, offset))
        for part, offset in ((datagram[:CUT], MORE_FRAGMENTS), (datagram[CUT:], CUT // 8))
    )
    world.wire(pod.name).send(first)
    return world.leaves_cluster(pod.name, last, marker)


def test_fragmented_vxlan_packet_of_a_pod_does_not_leave_the_node(world: PacketWorld) -> None:
    for name, port in (("red-a", 53), ("admin-a", 4790)):
        assert leaves_in_parts(world, name, port)
        assert not leaves_in_parts(world, name, 4789)


def tracks_fragments(world: PacketWorld) -> bool:
    """Return whether the switches of both nodes treat UDP fragments as possible answers of a backend."""
    held = (world.flows(node) for node in world.nodes)
    return all(
        any(f"table={int(Table.SERVICE_UNDNAT)}," in flow and "nw_frag" in flow for flow in flows) for flows in held
    )


def test_fragmented_datagrams_arrive_when_a_service_uses_their_port(world: PacketWorld) -> None:
    register(world, "red-b")
    create_service(world, "in-parts", "red", {"app": "red-b"})
    wait_until(lambda: tracks_fragments(world), "the service")
    for port, source_port in ((TARGET_PORT, 40000), (40000, TARGET_PORT)):
        for source, friend, foe in (("red-a", "red-b", "blue-a"), ("red-b", "red-c", "blue-b")):
            assert arrives_fragmented(world, source, friend, port, source_port)
            assert not arrives_fragmented(world, source, foe, port, source_port)

"""Isolation between projects, written once; every tier that has a `world` runs these tests.

Every test has a positive control: a world in which nothing arrives passes none of them.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from tests.testbed import frames
from tests.testbed.frames import MORE_FRAGMENTS
from tests.testbed.isolation.world import World, arrives, arrives_fragmented, reaches

SECOND_FRAGMENT = 0x0010
STRANGER = IPv4Address("10.245.9.9")


def test_project_reaches_only_itself(world: World) -> None:
    for source in world.pods.values():
        for target in world.pods.values():
            if source == target:
                continue
            wanted = source.project == target.project or "default" in {source.project, target.project}
            assert reaches(world, source.name, target.name) == wanted, f"{source.name} to {target.name}"


def test_spoofed_source_address_reaches_no_other_project(world: World) -> None:
    red = world.pods["red-a"]
    for target in ("red-b", "red-c"):
        assert reaches(world, "red-a", target)
        assert not arrives(world, "blue-a", target, ip_src=red.address)
        assert not arrives(world, "blue-a", target, ip_src=red.address, eth_src=red.mac)
        assert not arrives(world, "blue-a", target, ip_src=world.gateway("node-1"))
        assert not arrives(world, "blue-a", target, ip_src=world.pods["admin-a"].address)


def test_spoofed_source_address_is_dropped_within_a_project(world: World) -> None:
    assert reaches(world, "red-b", "red-c")
    assert not arrives(world, "red-b", "red-c", ip_src=world.pods["red-a"].address)
    assert not arrives(world, "red-b", "red-c", eth_src=world.pods["red-a"].mac)


def test_forged_target_mac_does_not_change_delivery(world: World) -> None:
    for node, source, friend, foe in (("node-1", "red-a", "red-b", "blue-a"), ("node-1", "red-a", "red-c", "blue-b")):
        gateway = 0x0A58 << 32 | int(world.gateway(node))
        assert arrives(world, source, friend, eth_dst=gateway)
        for mac in (gateway, frames.BROADCAST_MAC, world.pods[friend].mac):
            assert not arrives(world, source, foe, eth_dst=mac)


def test_vlan_tagged_frames_are_dropped(world: World) -> None:
    for target in ("red-b", "red-c"):
        assert arrives(world, "red-a", target)
        for vlan in (0, 1, 10):
            assert not arrives(world, "red-a", target, vlan=vlan)


def test_fragments_of_another_project_are_dropped(world: World) -> None:
    """Sends fragments alone and as a whole packet. From friends only the whole packet is checked, because a switch that
    tracks fragments holds single ones back.
    """
    for friend, foe in (("red-b", "blue-a"), ("red-c", "blue-b")):
        assert arrives_fragmented(world, "red-a", friend)
        assert not arrives_fragmented(world, "red-a", foe)
        for fragment in (MORE_FRAGMENTS, SECOND_FRAGMENT):
            assert not arrives(world, "red-a", foe, fragment=fragment)


def test_broadcast_and_multicast_reach_no_pod(world: World) -> None:
    for target in ("red-b", "red-c", "blue-a", "blue-b", "admin-a"):
        assert reaches(world, "admin-b", target) or target == "admin-b"
        for address in ("255.255.255.255", "224.0.0.1", "10.128.1.255", "10.131.255.255"):
            assert not arrives(world, "red-a", target, ip_dst=IPv4Address(address), eth_dst=frames.BROADCAST_MAC)


def test_ipv6_and_unknown_protocols_are_dropped(world: World) -> None:
    red, other = world.pods["red-a"], world.pods["red-b"]
    assert reaches(world, "red-a", "red-b")
    for kind, make in ((frames.IPV6, frames.ipv6), (0x88CC, bytes), (0x8863, bytes)):
        marker = frames.new_marker()
        for mac in (other.mac, frames.BROADCAST_MAC):
            frame = frames.ethernet(mac, red.mac, kind, make(marker))
            assert not world.delivers("red-a", "red-b", frame, marker)


def test_arp_requests_never_reach_a_pod(world: World) -> None:
    red = world.pods["red-a"]
    for target in ("red-b", "red-c", "blue-a", "blue-b", "admin-a"):
        assert reaches(world, "admin-b", target) or target == "admin-b"
        for op in (1, 2):
            marker = frames.new_marker()
            body = frames.arp(op, red.mac, red.address, world.pods[target].address, marker)
            for mac in (frames.BROADCAST_MAC, world.pods[target].mac):
                frame = frames.ethernet(mac, red.mac, frames.ARP, body)
                assert not world.delivers("red-a", target, frame, marker)


def test_pod_cannot_send_vxlan_packets(world: World) -> None:
    """Pods of VNID 0 may send to every other port of nodes, other pods to port 53."""
    red, outside = world.pods["red-c"], world.node_address("node-2")
    for name, port, leaves in (
        ("blue-a", 53, True),
        ("blue-a", 4789, False),
        ("admin-a", 9999, True),
        ("admin-a", 4789, False),
    ):
        spy, marker = world.pods[name], frames.new_marker()
        inner = frames.ethernet(red.mac, red.mac - 1, frames.IPV4, frames.udp(spy.address, red.address, marker))
        body = frames.udp(spy.address, outside, frames.vxlan(world.vnid("red"), inner), port=port)
        frame = frames.ethernet(0x0A58 << 32 | int(world.gateway("node-1")), spy.mac, frames.IPV4, body)
        assert world.leaves_cluster(name, frame, marker) == leaves, f"UDP port {port} from {name}"


def test_vxlan_packets_are_accepted_only_from_the_node_that_owns_the_subnet(world: World) -> None:
    red, remote = world.pods["red-a"], world.pods["red-c"]
    peer = world.node_address("node-2")
    for sender, source, vnid, wanted in (
        (peer, remote.address, world.vnid("red"), True),
        (peer, remote.address, world.vnid("blue"), False),
        (STRANGER, remote.address, world.vnid("red"), False),
        (STRANGER, remote.address, 0, False),
        (peer, world.pods["red-b"].address, world.vnid("red"), False),
        (peer, IPv4Address("198.51.100.1"), 0, False),
    ):
        marker = frames.new_marker()
        frame = frames.ethernet(red.mac, remote.mac, frames.IPV4, frames.udp(source, red.address, marker))
        got = world.delivers_from_tunnel(sender, "node-1", vnid, "red-a", frame, marker)
        assert got == wanted, f"from {sender} as {source} with VNID {vnid}"


def test_service_network_without_services_reaches_nothing(world: World) -> None:
    spy = world.pods["red-a"]
    for address, leaves in (("198.51.100.7", True), ("172.30.0.1", False), ("10.131.0.9", False)):
        marker = frames.new_marker()
        body = frames.udp(spy.address, IPv4Address(address), marker)
        frame = frames.ethernet(0x0A58 << 32 | int(world.gateway("node-1")), spy.mac, frames.IPV4, body)
        assert world.leaves_cluster("red-a", frame, marker) == leaves, address


def test_pod_addresses_are_in_their_nodes_subnet(world: World) -> None:
    for pod in world.pods.values():
        assert pod.address in IPv4Network((int(world.gateway(pod.node)) - 1, 23))
    assert len({pod.address for pod in world.pods.values()}) == len(world.pods)

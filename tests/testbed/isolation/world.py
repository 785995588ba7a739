"""The vocabulary of isolation tests: projects, nodes, pods, and which frames arrive.

A world is implemented by traces on real switches and by real packets between namespaces. A test is written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Protocol

from sdn.topology import mac_of
from tests.testbed import frames

NODES = ("node-1", "node-2")


@dataclass(frozen=True, slots=True)
class PlannedPod:
    """A pod before it runs."""

    name: str
    project: str
    node: str


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A pod that runs."""

    name: str
    project: str
    node: str
    address: IPv4Address

    @property
    def mac(self) -> int:
        """Its MAC."""
        return mac_of(self.address)


PODS = (
    PlannedPod("red-a", "red", "node-1"),
    PlannedPod("red-b", "red", "node-1"),
    PlannedPod("red-c", "red", "node-2"),
    PlannedPod("blue-a", "blue", "node-1"),
    PlannedPod("blue-b", "blue", "node-2"),
    PlannedPod("admin-a", "default", "node-1"),
    PlannedPod("admin-b", "default", "node-2"),
)


class World(Protocol):
    """Seven pods of three projects on two nodes."""

    @property
    def pods(self) -> Mapping[str, RunningPod]:
        """By name."""

    def vnid(self, project: str) -> int:
        """Return the VNID of a project."""

    def node_address(self, node: str) -> IPv4Address:
        """Under the tunnels."""

    def gateway(self, node: str) -> IPv4Address:
        """Address of tun0."""

    def delivers(self, source: str, target: str, frame: bytes, marker: bytes) -> bool:
        """Return whether a frame of `source` arrives at `target`. The marker is part of the frame."""

    def leaves_cluster(self, source: str, frame: bytes, marker: bytes) -> bool:
        """Return whether a frame of `source` leaves the cluster network."""

    def delivers_from_tunnel(
        self, sender: IPv4Address, node: str, vnid: int, target: str, frame: bytes, marker: bytes
    ) -> bool:
        """Return whether a frame that reaches a node in a VXLAN packet from `sender` arrives at a pod."""


def reaches(world: World, source: str, target: str) -> bool:
    """Return whether UDP, TCP and ICMP from one pod arrive at the other: all three, or none."""
    answers = set()
    for make in (frames.udp, frames.tcp_syn, frames.icmp_echo):
        marker = frames.new_marker()
        running_pod, other = world.pods[source], world.pods[target]
        frame = frames.ethernet(
            other.mac, running_pod.mac, frames.IPV4, make(running_pod.address, other.address, marker)
        )
        answers.add(world.delivers(source, target, frame, marker))
    assert len(answers) == 1, f"{source} to {target}: not all protocols fare alike"
    return answers.pop()


def arrives_fragmented(world: World, source: str, target: str, port: int = 9999, source_port: int = 40000) -> bool:
    """Return whether an honest UDP packet in two fragments arrives as a whole.

    A switch may hold the first until it has the last: connection tracking does.
    """
    running_pod, other, marker = world.pods[source], world.pods[target], frames.new_marker()
    parts = frames.fragmented_udp(running_pod.address, other.address, marker, port, source_port)
    first, last = (frames.ethernet(other.mac, running_pod.mac, frames.IPV4, part) for part in parts)
    world.delivers(source, target, first, marker)
    return world.delivers(source, target, last, marker)


def arrives(world: World, source: str, target: str, **forged: object) -> bool:
    """Return whether a UDP packet arrives with the fields in `forged` changed: ip_src, eth_dst, vlan, ..."""
    running_pod, other = world.pods[source], world.pods[target]
    marker = frames.new_marker()
    body = frames.udp(
        forged.get("ip_src", running_pod.address),  # type: ignore[arg-type]
        forged.get("ip_dst", other.address),  # type: ignore[arg-type]
        marker,
        fragment=int(forged.get("fragment", 0)),  # type: ignore[call-overload]
    )
    frame = frames.ethernet(
        int(forged.get("eth_dst", other.mac)),  # type: ignore[call-overload]
        int(forged.get("eth_src", running_pod.mac)),  # type: ignore[call-overload]
        frames.IPV4,
        body,
        forged.get("vlan"),  # type: ignore[arg-type]
    )
    return world.delivers(source, target, frame, marker)

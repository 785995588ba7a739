"""Every packet that one pod may send to reach another, and a model of ten lines that knows which arrive.

Written once: the model check traces them on real switches, the attacker sends them as packets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from sdn.topology import mac_of
from tests.testbed import frames
from tests.testbed.isolation.world import RunningPod

STRANGER = IPv4Address("10.245.9.9")
SERVICE = IPv4Address("172.30.0.10")
UNUSED_VNID = 0xFFFF0A


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """A cluster as an attacker may know it.

    `vnids` has the VNID of each project; `addresses` (under the tunnels) and `gateways` are by node; `outside` is an
    address beyond the cluster network.
    """

    pods: Mapping[str, RunningPod]
    vnids: Mapping[str, int]
    addresses: Mapping[str, IPv4Address]
    gateways: Mapping[str, IPv4Address]
    outside: IPv4Address

    def vnid(self, pod: RunningPod) -> int:
        """Return the VNID of a pod."""
        return self.vnids[pod.project]


@dataclass(frozen=True, slots=True)
class Tunnel:
    """The frame reaches the target's node in a VXLAN packet from `sender`, rather than from the pod's port."""

    sender: IPv4Address
    vnid: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """A frame that one pod sends to another.

    `arrives` is True if the target receives the frame, or with `outside`, if it leaves the cluster network. The marker
    is part of the frame. `first` is sent before it if the packet has two fragments.
    """

    name: str
    source: RunningPod
    target: RunningPod
    arrives: bool
    frame: bytes = field(repr=False)
    marker: bytes
    outside: bool = False
    tunnel: Tunnel | None = None
    first: bytes = field(default=b"", repr=False)

    @property
    def frames(self) -> tuple[bytes, ...]:
        """The frames to send, in order."""
        return (self.first, self.frame) if self.first else (self.frame,)

    def describe(self, actual: str) -> str:
        """Return a line for people with the attempt and its outcome."""
        running_pod, other = self.source, self.target
        return f"{self.name}, {running_pod.name} ({running_pod.node}) to {other.name} ({other.node}): {actual}"


def may_reach(source_vnid: int, target_vnid: int) -> bool:
    """Return whether a pod receives an honest frame of another one: the model. No forged frame arrives."""
    return source_vnid == target_vnid or 0 in {source_vnid, target_vnid}


def attempts(
    layout: ClusterLayout, source: RunningPod, target: RunningPod, *, with_forged: bool = True
) -> Iterator[Attempt]:
    """Yield all attempts of a pod on another one, in no particular order. Every frame has its own marker.

    `with_forged` includes forged frames and other protocols, which never arrive, whatever the VNIDs are.
    """
    yield from _honest(layout, source, target)
    yield from _outward(layout, source, target)
    yield from _tunnelled(layout, source, target)
    if with_forged:
        yield from _forged(layout, source, target)
        yield from _other_protocols(source, target)


def permitted_frame(source: RunningPod, target: RunningPod) -> Attempt:
    """Return an unforged frame between two pods that may reach each other."""
    return _packet("UDP", source, target, True)


def frame_for_tunnel(source: RunningPod, target: RunningPod, name: str, arrives: bool, tunnel: Tunnel) -> Attempt:
    """Return an unforged frame that is sent through a tunnel to the target's node."""
    frame, marker = _frame(source, target, {})
    return Attempt(name, source, target, arrives, frame, marker, tunnel=tunnel)


def _packet(name: str, source: RunningPod, target: RunningPod, arrives: bool, **forged: object) -> Attempt:
    frame, marker = _frame(source, target, forged)
    return Attempt(name, source, target, arrives, frame, marker)


def _honest(layout: ClusterLayout, source: RunningPod, target: RunningPod) -> Iterator[Attempt]:
    friends = may_reach(layout.vnid(source), layout.vnid(target))
    gateway = mac_of(layout.gateways[source.node])
    yield _packet("UDP", source, target, friends)
    yield _packet("TCP", source, target, friends, make=frames.tcp_syn)
    yield _packet("ICMP", source, target, friends, make=frames.icmp_echo)
    yield _packet("to the gateway's MAC", source, target, friends, eth_dst=gateway)
    yield _packet("to everybody's MAC", source, target, friends, eth_dst=frames.BROADCAST_MAC)
    marker = frames.new_marker()
    parts = frames.fragmented_udp(source.address, target.address, marker)
    first, last = (frames.ethernet(target.mac, source.mac, frames.IPV4, part) for part in parts)
    yield Attempt("in fragments", source, target, friends, last, marker, first=first)


def _forged(layout: ClusterLayout, source: RunningPod, target: RunningPod) -> Iterator[Attempt]:
    for vlan in (0, 10):
        yield _packet(f"tagged {vlan}", source, target, False, vlan=vlan)
    gateways = layout.gateways[source.node], layout.gateways[target.node]
    others = {pod.address for pod in layout.pods.values()} - {source.address}
    for address in sorted(others | {*gateways, STRANGER, SERVICE}):
        yield _packet(f"from the address {address}", source, target, False, ip_src=address)
        borrowed = {"ip_src": address, "eth_src": mac_of(address)}
        yield _packet(f"from the MAC and address of {address}", source, target, False, **borrowed)
    yield _packet("from a foreign MAC", source, target, False, eth_src=target.mac)
    for name in ("255.255.255.255", "224.0.0.1", "127.0.0.1", "10.131.255.255", str(SERVICE), str(gateways[1])):
        yield _packet(f"to {name}", source, target, False, ip_dst=IPv4Address(name))


def _frame(source: RunningPod, target: RunningPod, forged: Mapping[str, object]) -> tuple[bytes, bytes]:
    """Return a frame with these forged fields, and its marker."""
    marker = frames.new_marker()
    make: Callable[..., bytes] = forged.get("make", frames.udp)  # type: ignore[assignment]
    more = {name: forged[name] for name in ("port", "source_port") if name in forged}
    addresses = forged.get("ip_src", source.address), forged.get("ip_dst", target.address)
    dst, src = forged.get("eth_dst", target.mac), forged.get("eth_src", source.mac)
    body = make(*addresses, marker, **more)
    return frames.ethernet(dst, src, frames.IPV4, body, forged.get("vlan")), marker  # type: ignore[arg-type]


def _other_protocols(source: RunningPod, target: RunningPod) -> Iterator[Attempt]:
    for name, kind, body in (
        ("IPv6", frames.IPV6, frames.ipv6),
        ("LLDP", 0x88CC, bytes),
        (
            "an ARP question",
            frames.ARP,
            lambda marker: frames.arp(1, source.mac, source.address, target.address, marker),
        ),
        ("an ARP lie", frames.ARP, lambda marker: frames.arp(2, source.mac, target.address, target.address, marker)),
    ):
        for mac in (target.mac, frames.BROADCAST_MAC):
            marker = frames.new_marker()
            frame = frames.ethernet(mac, source.mac, kind, body(marker))
            to = "all" if mac == frames.BROADCAST_MAC else "it"
            yield Attempt(f"{name} to {to}", source, target, False, frame, marker)


def _outward(layout: ClusterLayout, source: RunningPod, target: RunningPod) -> Iterator[Attempt]:
    """Yield a packet that may leave the cluster network, and a forged tunnel packet, which may not."""
    inner, marker = _frame(source, target, {})
    by_hand = frames.udp(source.address, layout.addresses[target.node], frames.vxlan(0, inner), 4789)
    outer = frames.ethernet(mac_of(layout.gateways[source.node]), source.mac, frames.IPV4, by_hand)
    yield Attempt("VXLAN by hand", source, target, False, outer, marker, outside=True)
    frame, known = _frame(source, target, {"ip_dst": layout.outside})
    yield Attempt("to the outside", source, target, True, frame, known, outside=True)


def _tunnelled(layout: ClusterLayout, source: RunningPod, target: RunningPod) -> Iterator[Attempt]:
    """Yield frames in tunnels. They arrive with any VNID from the node of the source, and from no other host."""
    source_vnid, target_vnid = layout.vnid(source), layout.vnid(target)
    for name, address in {**layout.addresses, "a stranger": STRANGER}.items():
        if name == target.node:
            continue
        is_own_node = name == source.node
        for vnid in dict.fromkeys((source_vnid, target_vnid, UNUSED_VNID) if is_own_node else (source_vnid, 0)):
            text = f"through a tunnel from {name} as VNID {vnid}"
            arrives = is_own_node and may_reach(vnid, target_vnid)
            yield frame_for_tunnel(source, target, text, arrives, Tunnel(address, vnid))

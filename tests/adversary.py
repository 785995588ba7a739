"""Everything that one pod may try to get through to another one, and a model of ten lines that knows what arrives.

Written once: the prover asks real switches by trace, the packet adversary sends the frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from sdn.topology import mac_of
from tests import packets
from tests.world import Inhabitant

STRANGER = IPv4Address("10.245.9.9")
SERVICE = IPv4Address("172.30.0.10")
NOBODYS_VNID = 0xFFFF0A


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster as an attacker may know it.

    `lanes` is the VNID of each project; `addresses` (under the tunnels) and `gateways` are by node; `outside` is an
    address beyond the cluster network.
    """

    pods: Mapping[str, Inhabitant]
    lanes: Mapping[str, int]
    addresses: Mapping[str, IPv4Address]
    gateways: Mapping[str, IPv4Address]
    outside: IPv4Address

    def lane(self, pod: Inhabitant) -> int:
        """The VNID of a pod."""
        return self.lanes[pod.project]


@dataclass(frozen=True, slots=True)
class Tunnel:
    """The frame reaches the target's node in a VXLAN packet from `sender`, rather than from the pod's port."""

    sender: IPv4Address
    vnid: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """`arrives` says whether the target sees the frame, or with `outside`, whether it leaves the cluster network.

    The mark is part of the frame; `first` goes before it where a packet comes in two.
    """

    name: str
    source: Inhabitant
    target: Inhabitant
    arrives: bool
    frame: bytes = field(repr=False)
    mark: bytes
    outside: bool = False
    tunnel: Tunnel | None = None
    first: bytes = field(default=b"", repr=False)

    @property
    def frames(self) -> tuple[bytes, ...]:
        """What is sent, in order."""
        return (self.first, self.frame) if self.first else (self.frame,)

    def tells(self, found: str) -> str:
        """A line for people: who tried what, and what became of it."""
        one, other = self.source, self.target
        return f"{self.name}, {one.name} ({one.node}) to {other.name} ({other.node}): {found}"


def opens(vnid: int, lane: int) -> bool:
    """The model: whether a pod of `lane` hears a sender of `vnid`. Everything that is forged arrives nowhere."""
    return vnid == lane or 0 in {vnid, lane}


def attempts(layout: Layout, source: Inhabitant, target: Inhabitant) -> Iterator[Attempt]:
    """Everything, in no particular order; every frame has a mark of its own."""
    yield from _honest(layout, source, target)
    yield from _forged(layout, source, target)
    yield from _other_protocols(source, target)
    yield from _outward(layout, source, target)
    yield from _tunnelled(layout, source, target)


def greeting(source: Inhabitant, target: Inhabitant) -> Attempt:
    """An honest frame between two pods that may talk."""
    return _packet("UDP", source, target, True)


def relayed(source: Inhabitant, target: Inhabitant, name: str, arrives: bool, tunnel: Tunnel) -> Attempt:
    """An honest frame that somebody puts into a tunnel to the target's node."""
    frame, mark = _frame(source, target, {})
    return Attempt(name, source, target, arrives, frame, mark, tunnel=tunnel)


def _packet(name: str, source: Inhabitant, target: Inhabitant, arrives: bool, **forged: object) -> Attempt:
    frame, mark = _frame(source, target, forged)
    return Attempt(name, source, target, arrives, frame, mark)


def _honest(layout: Layout, source: Inhabitant, target: Inhabitant) -> Iterator[Attempt]:
    friends = opens(layout.lane(source), layout.lane(target))
    gateway = mac_of(layout.gateways[source.node])
    yield _packet("UDP", source, target, friends)
    yield _packet("TCP", source, target, friends, make=packets.tcp_syn)
    yield _packet("ICMP", source, target, friends, make=packets.icmp_echo)
    yield _packet("to the gateway's MAC", source, target, friends, eth_dst=gateway)
    yield _packet("to everybody's MAC", source, target, friends, eth_dst=packets.BROADCAST_MAC)
    mark = packets.cookie()
    parts = packets.udp_in_parts(source.address, target.address, mark)
    first, last = (packets.ethernet(target.mac, source.mac, packets.IPV4, part) for part in parts)
    yield Attempt("in fragments", source, target, friends, last, mark, first=first)


def _forged(layout: Layout, source: Inhabitant, target: Inhabitant) -> Iterator[Attempt]:
    for vlan in (0, 10):
        yield _packet(f"tagged {vlan}", source, target, False, vlan=vlan)
    gateways = layout.gateways[source.node], layout.gateways[target.node]
    others = {one.address for one in layout.pods.values()} - {source.address}
    for address in sorted(others | {*gateways, STRANGER, SERVICE}):
        yield _packet(f"from the address {address}", source, target, False, ip_src=address)
        borrowed = {"ip_src": address, "eth_src": mac_of(address)}
        yield _packet(f"from the MAC and address of {address}", source, target, False, **borrowed)
    yield _packet("from a foreign MAC", source, target, False, eth_src=target.mac)
    for name in ("255.255.255.255", "224.0.0.1", "10.131.255.255", str(SERVICE), str(gateways[1])):
        yield _packet(f"to {name}", source, target, False, ip_dst=IPv4Address(name))


def _frame(source: Inhabitant, target: Inhabitant, forged: Mapping[str, object]) -> tuple[bytes, bytes]:
    """A frame that is honest but for what is forged, and its mark."""
    mark = packets.cookie()
    make: Callable[..., bytes] = forged.get("make", packets.udp)  # type: ignore[assignment]
    more = {name: forged[name] for name in ("port", "source_port") if name in forged}
    addresses = forged.get("ip_src", source.address), forged.get("ip_dst", target.address)
    dst, src = forged.get("eth_dst", target.mac), forged.get("eth_src", source.mac)
    body = make(*addresses, mark, **more)
    return packets.ethernet(dst, src, packets.IPV4, body, forged.get("vlan")), mark  # type: ignore[arg-type]


def _other_protocols(source: Inhabitant, target: Inhabitant) -> Iterator[Attempt]:
    for name, kind, body in (
        ("IPv6", packets.IPV6, packets.ipv6),
        ("LLDP", 0x88CC, bytes),
        ("an ARP question", packets.ARP, lambda mark: packets.arp(1, source.mac, source.address, target.address, mark)),
        ("an ARP lie", packets.ARP, lambda mark: packets.arp(2, source.mac, target.address, target.address, mark)),
    ):
        for mac in (target.mac, packets.BROADCAST_MAC):
            mark = packets.cookie()
            frame = packets.ethernet(mac, source.mac, kind, body(mark))
            to = "all" if mac == packets.BROADCAST_MAC else "it"
            yield Attempt(f"{name} to {to}", source, target, False, frame, mark)


def _outward(layout: Layout, source: Inhabitant, target: Inhabitant) -> Iterator[Attempt]:
    """What may leave the cluster network, and a tunnel packet made by hand, which may not."""
    inner, mark = _frame(source, target, {})
    by_hand = packets.udp(source.address, layout.addresses[target.node], packets.vxlan(0, inner), 4789)
    outer = packets.ethernet(mac_of(layout.gateways[source.node]), source.mac, packets.IPV4, by_hand)
    yield Attempt("VXLAN by hand", source, target, False, outer, mark, outside=True)
    frame, known = _frame(source, target, {"ip_dst": layout.outside})
    yield Attempt("to the outside", source, target, True, frame, known, outside=True)


def _tunnelled(layout: Layout, source: Inhabitant, target: Inhabitant) -> Iterator[Attempt]:
    """A node is believed whatever VNID it names, but only for pods of its own subnet; nobody else is."""
    lane = layout.lane(target)
    own = layout.lane(source)
    for name, address in {**layout.addresses, "a stranger": STRANGER}.items():
        if name == target.node:
            continue
        home = name == source.node
        for vnid in dict.fromkeys((own, lane, NOBODYS_VNID) if home else (own, 0)):
            text = f"through a tunnel from {name} as VNID {vnid}"
            yield relayed(source, target, text, home and opens(vnid, lane), Tunnel(address, vnid))

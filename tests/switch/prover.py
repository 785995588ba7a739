"""Any cluster, every question an attacker may ask of it, and a model of ten lines that knows the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network

from sdn.flow import Flow
from sdn.flows import compile_flows
from sdn.pipeline import FIRST_POD_PORT, TUN0, VXLAN0
from sdn.view import Node, View, mac_of
from tests import packets
from tests.switch.switch import DummySwitch, TraceWorld, views_of
from tests.world import Inhabitant, Place

MOST_PODS = 6
STRANGER = IPv4Address("10.245.9.9")
SERVICE = IPv4Address("172.30.0.10")
SECOND_FRAGMENT = 0x0010
Compile = Callable[[View], frozenset[Flow]]


@dataclass(frozen=True)
class Plan:
    """A cluster: how many nodes, which project has which VNID, and where its pods are."""

    nodes: int
    lanes: tuple[tuple[str, int], ...]
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Question:
    """`arrives` says whether the target is to see what the source sends."""

    name: str
    arrives: bool
    ask: Callable[[], bool]


def node_names(plan: Plan) -> list[str]:
    """node-1, node-2, ..."""
    return [f"node-{number + 1}" for number in range(plan.nodes)]


def add_ports(switch: DummySwitch) -> None:
    """As many as any plan needs, so that one switch serves them all."""
    pods = {f"pod{number}": FIRST_POD_PORT + number for number in range(MOST_PODS)}
    switch.add_ports({"vxlan0": VXLAN0, "tun0": TUN0, **pods})


def load(plan: Plan, switches: dict[str, DummySwitch], compiled: Compile = compile_flows) -> TraceWorld:
    """The cluster on real switches."""
    lanes = dict(plan.lanes)
    nodes = {
        name: Node(name, IPv4Address("10.245.2.3") + number, IPv4Network((0x0A800000 + 512 * number, 23)))
        for number, name in enumerate(node_names(plan))
    }
    pods: dict[str, Inhabitant] = {}
    ports: dict[str, int] = {}
    for number, place in enumerate(plan.places):
        address = nodes[place.node].subnet.network_address + 2 + number
        pods[place.name] = Inhabitant(place.name, place.project, place.node, address)
        ports[place.name] = FIRST_POD_PORT + number
    views = views_of(nodes, pods, ports, lanes)
    for name, view in views.items():
        switches[name].replace(compiled(view))
    return TraceWorld({name: switches[name] for name in views}, views, lanes, pods, ports)


def together(world: TraceWorld, source: Inhabitant, target: Inhabitant) -> bool:
    """The model: who may talk to whom. Everything that is forged arrives nowhere."""
    one, other = world.lanes[source.project], world.lanes[target.project]
    return one == other or 0 in {one, other}


def questions(world: TraceWorld, source: Inhabitant, target: Inhabitant) -> Iterator[Question]:
    """Everything that one pod may try to get through to another one."""
    friends = together(world, source, target)
    gateway = mac_of(world.gateway(source.node))

    def seen(name: str, arrives: bool, frame: bytes, mark: bytes) -> Question:
        return Question(name, arrives, lambda: world.sees(source.name, target.name, frame, mark))

    def packet(name: str, arrives: bool, **forged: object) -> Question:
        frame, mark = _frame(source, target, forged)
        return seen(name, arrives, frame, mark)

    yield packet("UDP", friends)
    yield packet("TCP", friends, make=packets.tcp_syn)
    yield packet("ICMP", friends, make=packets.icmp_echo)
    yield packet("to the gateway's MAC", friends, eth_dst=gateway)
    yield packet("to everybody's MAC", friends, eth_dst=packets.BROADCAST_MAC)
    yield packet("a later fragment", friends, fragment=SECOND_FRAGMENT)
    for vlan in (0, 10):
        yield packet(f"tagged {vlan}", False, vlan=vlan)
    others = {one.address for one in world.pods.values()} - {source.address}
    for address in sorted(others | {world.gateway(source.node), world.gateway(target.node), STRANGER, SERVICE}):
        yield packet(f"from the address {address}", False, ip_src=address)
        yield packet(f"from the MAC and address of {address}", False, ip_src=address, eth_src=mac_of(address))
    yield packet("from a foreign MAC", False, eth_src=target.mac)
    for name in ("255.255.255.255", "224.0.0.1", "10.131.255.255", str(SERVICE), str(world.gateway(target.node))):
        yield packet(f"to {name}", False, ip_dst=IPv4Address(name))
    yield from _other_protocols(seen, source, target)
    yield from _tunnels(world, source, target)


def _frame(source: Inhabitant, target: Inhabitant, forged: dict[str, object]) -> tuple[bytes, bytes]:
    """A frame that is honest but for what is forged, and its mark."""
    mark = packets.cookie()
    make: Callable[..., bytes] = forged.get("make", packets.udp)  # type: ignore[assignment]
    more = {"fragment": forged["fragment"]} if "fragment" in forged else {}
    addresses = forged.get("ip_src", source.address), forged.get("ip_dst", target.address)
    dst, src = forged.get("eth_dst", target.mac), forged.get("eth_src", source.mac)
    body = make(*addresses, mark, **more)
    return packets.ethernet(dst, src, packets.IPV4, body, forged.get("vlan")), mark  # type: ignore[arg-type]


def _other_protocols(
    seen: Callable[[str, bool, bytes, bytes], Question], source: Inhabitant, target: Inhabitant
) -> Iterator[Question]:
    for name, kind, body in (
        ("IPv6", packets.IPV6, packets.ipv6),
        ("LLDP", 0x88CC, bytes),
        ("an ARP question", packets.ARP, lambda mark: packets.arp(1, source.mac, source.address, target.address, mark)),
        ("an ARP lie", packets.ARP, lambda mark: packets.arp(2, source.mac, target.address, target.address, mark)),
    ):
        for mac in (target.mac, packets.BROADCAST_MAC):
            mark = packets.cookie()
            frame = packets.ethernet(mac, source.mac, kind, body(mark))
            yield seen(f"{name} to {'all' if mac == packets.BROADCAST_MAC else 'it'}", False, frame, mark)


def _tunnels(world: TraceWorld, source: Inhabitant, target: Inhabitant) -> Iterator[Question]:
    """What comes out of a tunnel, or is to go into one by hand."""
    mark = packets.cookie()
    inner = packets.ethernet(target.mac, source.mac, packets.IPV4, packets.udp(source.address, target.address, mark))
    hand_made = packets.udp(source.address, world.node_address(target.node), packets.vxlan(0, inner), 4789)
    outer = packets.ethernet(mac_of(world.gateway(source.node)), source.mac, packets.IPV4, hand_made)
    yield Question("VXLAN by hand", False, lambda: world.leaves(source.name, outer, mark))
    honest, known = _frame(source, target, {"ip_dst": STRANGER})
    yield Question("to the outside", True, lambda: world.leaves(source.name, honest, known))
    vnid = world.lanes[source.project]
    senders = {name: world.node_address(name) for name in world.views}
    for name, address in {**senders, "a stranger": STRANGER}.items():
        if name == target.node:
            continue
        arrives = name == source.node and together(world, source, target)
        ask = _tunnelled(world, address, target, vnid, inner, mark)
        yield Question(f"through a tunnel from {name}", arrives, ask)
        if name != source.node:
            ask = _tunnelled(world, address, target, 0, inner, mark)
            yield Question(f"through a tunnel from {name} as VNID 0", False, ask)


def _tunnelled(
    world: TraceWorld, sender: IPv4Address, target: Inhabitant, vnid: int, inner: bytes, mark: bytes
) -> Callable[[], bool]:
    return lambda: world.tunnelled(sender, target.node, vnid, target.name, inner, mark)


def differences(world: TraceWorld) -> Iterator[str]:
    """Where the switches answer otherwise than the model."""
    for source in world.pods.values():
        for target in world.pods.values():
            if source != target:
                yield from (_told(source, target, one) for one in questions(world, source, target) if _differs(one))


def _differs(question: Question) -> bool:
    return question.ask() != question.arrives


def _told(source: Inhabitant, target: Inhabitant, question: Question) -> str:
    found = "is lost" if question.arrives else "gets through"
    return f"{question.name}, {source.name} ({source.node}) to {target.name} ({target.node}): {found}"


def without(flows: Iterable[Flow], table: int, *fields: str) -> frozenset[Flow]:
    """The same flows, but those of one table no longer look at these fields; at no field: they are not there."""
    changed: dict[object, Flow] = {}
    for flow in flows:
        if flow.table != table:
            changed[flow.row] = flow
        elif fields:
            kept = tuple(one for one in flow.match.fields if one.field.name not in fields)
            less = replace(flow, match=replace(flow.match, fields=kept))
            changed.setdefault(less.row, less)
    return frozenset(changed.values())

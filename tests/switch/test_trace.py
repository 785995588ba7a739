"""What the real switch says of a packet, with our own names, and the sentence that follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address

import pytest

from api.queries import TraceAnswer, TraceQuestion
from cli.verdict import End, Hop, Map, sentence
from sdn.drivers.unixctl import Control
from sdn.trace import Unaskable, answer, question
from tests.switch.switch import CLUSTER, DummySwitch, TraceWorld, populate
from tests.world import NODES


@pytest.fixture(scope="module")
def world() -> Iterator[TraceWorld]:
    with ExitStack() as stack:
        yield populate({name: stack.enter_context(DummySwitch()) for name in NODES}, multitenant=True)


def asked(world: TraceWorld, node: str, packet: TraceQuestion) -> TraceAnswer:
    control = Control(world.switches[node].rundir)
    text = asyncio.run(control.trace("br0", question(packet, world.views[node])))
    return answer(text, world.views[node])


def end(world: TraceWorld, name: str) -> End:
    if name not in world.pods:
        return End(IPv4Address(name))
    pod = world.pods[name]
    return End(pod.address, f"{pod.project}/{name}", pod.project, pod.node)


def told(world: TraceWorld, source: End, target: End, packet: TraceQuestion, node: str) -> str:
    """The sentence about a packet, followed through the tunnel."""
    hops = [Hop(node, packet, asked(world, node, packet))]
    for name in hops[0].answer.outputs:
        kind, _, address = name.partition(" ")
        if kind == "tunnel":
            far = next(one for one in world.views if str(world.node_address(one)) == address)
            onward = TraceQuestion(
                enters="tunnel",
                source=packet.source,
                target=packet.target,
                tunnel_source=str(world.node_address(node)),
                vnid=hops[0].answer.vnid,
                protocol=packet.protocol,
                port=packet.port,
            )
            hops.append(Hop(far, onward, asked(world, far, onward)))
    subnets = {name: view.node.subnet for name, view in world.views.items()}
    return sentence(source, target, hops, Map(world.lanes, subnets, CLUSTER.networks, CLUSTER.service_network))


def from_pod(
    world: TraceWorld, source: str, target: str, claimed: str = "", protocol: str = "icmp", port: int = 0
) -> str:
    one, other = end(world, source), end(world, target)
    packet = TraceQuestion(
        enters="pod",
        pod=str(one.address),
        source=claimed or str(one.address),
        target=str(other.address),
        protocol=protocol,
        port=port,
    )
    return told(world, one, other, packet, one.node)


SENTENCES = [
    (("red-a", "red-b"), "delivered: red/red-a reaches red/red-b on node-1"),
    (("red-a", "red-c"), "delivered: red/red-a reaches red/red-c on node-2"),
    (("admin-a", "blue-b"), "delivered: default/admin-a reaches blue/blue-b on node-2"),
    (("red-a", "blue-a"), "dropped because red (VNID 10) may not reach blue (VNID 11)"),
    (("red-c", "blue-a"), "dropped because red (VNID 10) may not reach blue (VNID 11)"),
    (("red-a", "8.8.8.8"), "delivered: red/red-a reaches the outside, with the address of node-1"),
    (("red-a", "10.128.0.1"), "delivered: red/red-a reaches node-1 itself"),
    (("red-a", "10.131.0.9"), "dropped because 10.131.0.9 belongs to no node's subnet"),
    (("red-a", "172.30.0.1"), "dropped because 172.30.0.1 is a service address, and there are no services"),
    (("red-a", "224.0.0.5"), "dropped because multicast is switched off for red"),
    (("red-a", "10.128.0.200"), "dropped because no pod of node-1 that may be reached has the address 10.128.0.200"),
    (("red-a", "red-b", "10.128.0.9"), "dropped because 10.128.0.9 is not red/red-a's address"),
    (
        ("red-a", "10.245.2.4", "", "udp", 4789),
        "dropped because pods may not send VXLAN to the outside: it would be believed as a node's",
    ),
]


@pytest.mark.parametrize(("packet", "expected"), SENTENCES)
def test_one_sentence_says_what_becomes_of_a_packet(world: TraceWorld, packet: tuple[str, str], expected: str) -> None:
    assert from_pod(world, *packet) == expected


def test_packets_from_outside_and_from_strangers(world: TraceWorld) -> None:
    outside, red = end(world, "8.8.8.8"), end(world, "red-a")
    packet = TraceQuestion(enters="node", source="8.8.8.8", target=str(red.address), protocol="tcp", port=80)
    assert told(world, outside, red, packet, "node-1") == "delivered: 8.8.8.8 reaches red/red-a on node-1"
    liar = TraceQuestion(enters="node", source="10.128.2.9", target=str(red.address))
    assert told(world, outside, red, liar, "node-1").endswith(
        "is an address of the cluster, and does not come from outside"
    )
    stranger = TraceQuestion(
        enters="tunnel", source="10.128.2.4", target=str(red.address), tunnel_source="10.9.9.9", vnid=10
    )
    assert told(world, outside, red, stranger, "node-1") == (
        "dropped because node-1 does not believe 10.128.2.4 from a tunnel of 10.9.9.9"
    )


def test_every_table_has_its_name_and_its_owner(world: TraceWorld) -> None:
    red, other = world.pods["red-a"], world.pods["red-c"]
    packet = TraceQuestion(enters="pod", pod=str(red.address), source=str(red.address), target=str(other.address))
    found = asked(world, "node-1", packet)
    assert [(step.table, step.owner) for step in found.steps] == [
        ("source", f"pod {red.address}"),
        ("route", "node node-2"),
    ]
    assert (found.outputs, found.vnid) == (("tunnel 10.245.2.4",), 10)


def test_a_pod_that_is_not_here_cannot_be_asked(world: TraceWorld) -> None:
    packet = TraceQuestion(enters="pod", pod="10.128.0.77", source="10.128.0.77", target="10.128.0.2")
    with pytest.raises(Unaskable, match=r"no pod with a lane has the address 10\.128\.0\.77 on node-1"):
        question(packet, world.views["node-1"])

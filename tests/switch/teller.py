"""`podlane network trace` without a cluster: its words, asked of the dummy switches of a world."""

from __future__ import annotations

import argparse
import asyncio

from api.queries import TraceQuestion
from cli.packet import add_arguments, packet
from cli.verdict import sentence
from cli.walk import End, Hop, Map, onward
from sdn.drivers.unixctl import Control
from sdn.trace import answer, question
from sdn.view import Node, Peer
from tests.switch.switch import CLUSTER, TraceWorld
from tests.world import Inhabitant


def map_of(world: TraceWorld) -> Map:
    """What the API would say of it; hosts that are no nodes are the peers without a switch."""
    views = world.views.values()
    hosts: dict[str, Node | Peer] = {peer.name: peer for view in views for peer in view.peers}
    hosts |= {view.node.name: view.node for view in views}
    return Map(
        pods=tuple(End(pod.address, full_name(pod), pod.project, pod.node) for pod in world.pods.values()),
        vnids=world.lanes,
        subnets={name: host.subnet for name, host in hosts.items()},
        addresses={name: host.address for name, host in hosts.items()},
        nodes=frozenset(world.views),
        networks=CLUSTER.networks,
        services=CLUSTER.service_network,
        vxlan_port=CLUSTER.vxlan_port,
    )


def full_name(pod: Inhabitant) -> str:
    """PROJECT/POD."""
    return f"{pod.project}/{pod.name}"


def hops(world: TraceWorld, words: str) -> list[Hop]:
    """Every switch that the packet meets, and what it says."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments, known = parser.parse_args(words.split()), map_of(world)
    source, target = known.end(arguments.source), known.end(arguments.target)
    assert source is not None
    assert target is not None
    first = _hop(world, *packet(arguments, source, target, known))
    return [first, *(_hop(world, *next_one) for next_one in onward(first, known))]


def told(world: TraceWorld, words: str) -> str:
    """The last line of the command."""
    known = map_of(world)
    source, target = (known.end(word) for word in words.split()[:2])
    assert source is not None
    assert target is not None
    return sentence(source, target, hops(world, words), known)


def _hop(world: TraceWorld, node: str, asked: TraceQuestion) -> Hop:
    control, view = Control(world.switches[node].rundir), world.views[node]
    return Hop(node, asked, answer(asyncio.run(control.trace("br0", question(asked, view))), view))

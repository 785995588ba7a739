"""`podlane network trace` without a cluster: its words, asked of the dummy switches of a world."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping

from api.network.queries import TraceAnswer, TraceQuestion
from cli.packet import add_arguments, packet
from cli.verdict import sentence
from cli.walk import End, Front, Hop, Map, onward
from sdn.drivers.unixctl import Control
from sdn.services.served_port import ServedPort
from sdn.services.serving import Served, Vantage
from sdn.services.tracing import called, follow
from sdn.trace import answer, question
from sdn.view import Node, Peer, View
from tests.switch.switch import CLUSTER, TraceWorld
from tests.world import Inhabitant

Ports = Mapping[str, tuple[ServedPort, ...]]
"""By node, what it serves."""


def map_of(world: TraceWorld, ports: Ports) -> Map:
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
        fronts=tuple(front for port in ports.get("node-1", ()) for front in _fronts(port)),
    )


def _fronts(port: ServedPort) -> list[Front]:
    name, protocol = f"{port.key.namespace}/{port.key.service}", port.key.protocol.name.lower()
    addresses = [*filter(None, (port.cluster_ip,)), *port.outside_ips]
    return [Front(name, address, protocol, port.port) for address in addresses]


def full_name(pod: Inhabitant) -> str:
    """PROJECT/POD."""
    return f"{pod.project}/{pod.name}"


def hops(world: TraceWorld, words: str, ports: Ports | None = None) -> list[Hop]:
    """Every switch that the packet meets, and what it says."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    served = ports or {}
    arguments, known = parser.parse_args(words.split()), map_of(world, served)
    source, target = known.end(arguments.source), known.end(arguments.target)
    assert source is not None
    assert target is not None
    first = _hop(world, served, *packet(arguments, source, target, known))
    return [first, *(_hop(world, served, *next_one) for next_one in onward(first, known))]


def told(world: TraceWorld, words: str, ports: Ports | None = None) -> str:
    """The last line of the command."""
    known = map_of(world, ports or {})
    source, target = (known.end(word) for word in words.split()[:2])
    assert source is not None
    assert target is not None
    return sentence(source, target, hops(world, words, ports), known)


def _hop(world: TraceWorld, ports: Ports, node: str, asked: TraceQuestion) -> Hop:
    control, view = Control(world.switches[node].rundir), world.views[node]

    async def ask(one: TraceQuestion) -> TraceAnswer:
        return answer(await control.trace("br0", question(one, view)), view)

    here = ports.get(node, ())
    served = {(port.key.namespace, port.key.service): Served() for port in here}
    found = called(asked, view.node, _vantage(view), here, served)
    return Hop(node, asked, asyncio.run(ask(asked) if found is None else follow(asked, view, found, ask)))


def _vantage(view: View) -> Vantage:
    node, cluster = view.node, view.cluster
    nodes = frozenset(peer.address for peer in view.peers) | {node.address}
    networks = cluster.networks, cluster.service_network
    return Vantage(node.name, node.address, node.subnet, *networks, None, nodes, cluster.node_ports)

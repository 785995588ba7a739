"""Any cluster on real switches, and where they differ from the model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from sdn.pipeline.compiler import compile_flows
from sdn.topology import FIRST_POD_OFPORT, GATEWAY_OFPORT, VXLAN_OFPORT, Node
from tests.testbed.isolation.attempts import STRANGER, Attempt, ClusterLayout, attempts
from tests.testbed.isolation.mutants import Compile
from tests.testbed.isolation.world import PlannedPod, RunningPod
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.trace.trace_world import TraceWorld, networks_of

MOST_PODS = 6


@dataclass(frozen=True)
class GeneratedCluster:
    """A cluster: how many nodes, which project has which VNID, and where its pods are."""

    nodes: int
    vnids: tuple[tuple[str, int], ...]
    places: tuple[PlannedPod, ...]


def node_names(plan: GeneratedCluster) -> list[str]:
    """node-1, node-2, ..."""
    return [f"node-{number + 1}" for number in range(plan.nodes)]


def add_ports(switch: DummySwitch) -> None:
    """Add as many ports as any generated cluster needs, so that one switch serves all of them."""
    pods = {f"pod{number}": FIRST_POD_OFPORT + number for number in range(MOST_PODS)}
    switch.add_ports({"vxlan0": VXLAN_OFPORT, "tun0": GATEWAY_OFPORT, **pods})


def load(plan: GeneratedCluster, switches: dict[str, DummySwitch], compiled: Compile = compile_flows) -> TraceWorld:
    """Install a generated cluster on real switches."""
    vnids = dict(plan.vnids)
    nodes = {
        name: Node(name, IPv4Address("10.245.2.3") + number, IPv4Network((0x0A800000 + 512 * number, 23)))
        for number, name in enumerate(node_names(plan))
    }
    pods: dict[str, RunningPod] = {}
    ports: dict[str, int] = {}
    for number, planned_pod in enumerate(plan.places):
        address = nodes[planned_pod.node].subnet.network_address + 2 + number
        pods[planned_pod.name] = RunningPod(planned_pod.name, planned_pod.project, planned_pod.node, address)
        ports[planned_pod.name] = FIRST_POD_OFPORT + number
    networks = networks_of(nodes, pods, ports, vnids)
    for name, network in networks.items():
        switches[name].replace(compiled(network))
    return TraceWorld({name: switches[name] for name in networks}, networks, vnids, pods, ports)


def layout_of(world: TraceWorld) -> ClusterLayout:
    """Return the layout that an attacker may know."""
    nodes = {name: network.node for name, network in world.networks.items()}
    addresses = {name: node.address for name, node in nodes.items()}
    gateways = {name: node.gateway for name, node in nodes.items()}
    return ClusterLayout(world.pods, world.vnids, addresses, gateways, STRANGER)


def find_differences(world: TraceWorld) -> Iterator[str]:
    """Yield the attempts for which the switches differ from the model."""
    layout = layout_of(world)
    for source, target in itertools.permutations(world.pods.values(), 2):
        for attempt in attempts(layout, source, target):
            if _arrives(world, attempt) != attempt.arrives:
                yield attempt.describe("is lost" if attempt.arrives else "gets through")


def _arrives(world: TraceWorld, attempt: Attempt) -> bool:
    source, target = attempt.source.name, attempt.target
    if attempt.outside:
        return world.leaves_cluster(source, attempt.frame, attempt.marker)
    if attempt.tunnel is None:
        return any(world.delivers(source, target.name, frame, attempt.marker) for frame in attempt.frames)
    sender, vnid = attempt.tunnel.sender, attempt.tunnel.vnid
    return world.delivers_from_tunnel(sender, target.node, vnid, target.name, attempt.frame, attempt.marker)

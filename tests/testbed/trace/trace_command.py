"""`podlane network trace` without a cluster: its arguments, answered by the dummy switches of a world."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping

from api.network.queries import TraceRequest, TraceResult
from cli.trace.explain import explain
from cli.trace.packet import add_arguments, build_request
from cli.trace.topology import ClusterTopology, Frontend, Hop, Host, next_hops
from sdn.drivers.diagnostics import OvsAppctl
from sdn.model.service_port import ServicePortInfo
from sdn.proxy.service_ports import ProxyConfig, ServiceState
from sdn.query.trace import parse_trace, service_connection, trace_request, trace_service_connection
from sdn.topology import Node, NodeNetwork, Peer
from tests.testbed.isolation.world import RunningPod
from tests.testbed.trace.trace_world import CLUSTER, TraceWorld

Ports = Mapping[str, tuple[ServicePortInfo, ...]]
"""By node, what it serves."""


def topology_of(world: TraceWorld, ports: Ports) -> ClusterTopology:
    """Return the topology that the API would give. Peers without a switch are hosts that are no nodes."""
    networks = world.networks.values()
    hosts: dict[str, Node | Peer] = {peer.name: peer for network in networks for peer in network.peers}
    hosts |= {network.node.name: network.node for network in networks}
    return ClusterTopology(
        pods=tuple(Host(pod.address, full_name(pod), pod.project, pod.node) for pod in world.pods.values()),
        vnids=world.vnids,
        subnets={name: host.subnet for name, host in hosts.items()},
        addresses={name: host.address for name, host in hosts.items()},
        nodes=frozenset(world.networks),
        networks=CLUSTER.networks,
        services=CLUSTER.service_network,
        vxlan_port=CLUSTER.vxlan_port,
        frontends=tuple(frontend for port in ports.get("node-1", ()) for frontend in _fronts(port)),
    )


def _fronts(port: ServicePortInfo) -> list[Frontend]:
    name, protocol = f"{port.key.namespace}/{port.key.service}", port.key.protocol.name.lower()
    addresses = [*filter(None, (port.cluster_ip,)), *port.external_ips]
    return [Frontend(name, address, protocol, port.port) for address in addresses]


def full_name(pod: RunningPod) -> str:
    """PROJECT/POD."""
    return f"{pod.project}/{pod.name}"


def hops(world: TraceWorld, words: str, ports: Ports | None = None) -> list[Hop]:
    """Return the hop at every switch on the packet's path."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    served = ports or {}
    arguments, topology = parser.parse_args(words.split()), topology_of(world, served)
    source, target = topology.find_host(arguments.source), topology.find_host(arguments.target)
    assert source is not None
    assert target is not None
    first = _hop(world, served, *build_request(arguments, source, target, topology))
    return [first, *(_hop(world, served, *next_one) for next_one in next_hops(first, topology))]


def sentence_for(world: TraceWorld, words: str, ports: Ports | None = None) -> str:
    """Return the last line of the command's output."""
    topology = topology_of(world, ports or {})
    source, target = (topology.find_host(word) for word in words.split()[:2])
    assert source is not None
    assert target is not None
    return explain(source, target, hops(world, words, ports), topology)


def _hop(world: TraceWorld, ports: Ports, node: str, request: TraceRequest) -> Hop:
    appctl, network = OvsAppctl(world.switches[node].rundir), world.networks[node]

    async def trace_packet(packet: TraceRequest) -> TraceResult:
        return parse_trace(await appctl.trace("br0", trace_request(packet, network)), packet, network)

    node_ports = ports.get(node, ())
    states = {(port.key.namespace, port.key.service): ServiceState() for port in node_ports}
    connection = service_connection(request, _proxy_config(network), node_ports, states)
    if connection is None:
        return Hop(node, request, asyncio.run(trace_packet(request)))
    return Hop(node, request, asyncio.run(trace_service_connection(request, network, connection, trace_packet)))


def _proxy_config(network: NodeNetwork) -> ProxyConfig:
    return ProxyConfig(
        node=network.node,
        cluster_networks=network.cluster.networks,
        service_network=network.cluster.service_network,
        node_port_range=network.cluster.node_ports,
        vnids=None,
        node_ips=frozenset(peer.address for peer in network.peers) | {network.node.address},
        vxlan_port=network.cluster.vxlan_port,
    )

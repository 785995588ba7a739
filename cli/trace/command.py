"""`podlane network trace`: asks the switches of the nodes what becomes of a packet."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network

from api.client.client import Client
from api.core.node import Node
from api.core.pod import FINAL_PHASES, Pod
from api.core.services import Service
from api.network.queries import NodeQuerySpec, TraceRequest, TraceResult
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from api.validation.network import PORT_PROTOCOLS
from cli.node_query import QueryFailed, query_node
from cli.trace.explain import endpoint_lines, explain
from cli.trace.packet import build_question
from cli.trace.topology import ClusterTopology, Frontend, Hop, Host, next_hops
from reconcile.terminal import BOLD, GREEN, RED, colored, table

VXLAN_PORT = 4789


async def run(client: Client, arguments: argparse.Namespace) -> None:
    """Print every table that the packet meets, and what comes of it."""
    known = await load_topology(client)
    source, target = _end(arguments.source, known), _end(arguments.target, known)
    hops = await _follow(client, *build_question(arguments, source, target, known), known)
    for line in endpoint_lines(hops[0], known):
        print(line)
    for hop in hops:
        print(colored(f"{hop.node}, from {_entry(hop.asked)}", BOLD))
        print(table(("TABLE", "WHOSE", "ROW", "DOES"), _rows(hop.answer)) + "\n")
    end = explain(source, target, hops, known)
    print(colored(end, RED if end.startswith("dropped") else GREEN))


def _end(text: str, known: ClusterTopology) -> Host:
    found = known.end(text)
    if found is None:
        with_address = "PROJECT/POD of a pod or PROJECT/SERVICE of a service that has one"
        raise QueryFailed(f"{text!r} is neither an address nor {with_address}, nor a node")
    return found


async def load_topology(client: Client) -> ClusterTopology:
    """Read hosts, pods and services of the cluster from the API."""
    cluster = await client.get(ClusterNetwork, "default")
    entries = [entry.cidr for entry in cluster.cluster_networks] or [cluster.network]
    hosts = [one for one in (await client.list(HostSubnet)).items if one.subnet]
    pods = (await client.list(Pod)).items
    return ClusterTopology(
        pods=pods_with_addresses(pods),
        vnids={lane.netname: lane.netid for lane in (await client.list(NetNamespace)).items},
        subnets={one.host: IPv4Network(one.subnet) for one in hosts},
        addresses={one.host: IPv4Address(one.host_ip) for one in hosts},
        nodes=frozenset(node.metadata.name for node in (await client.list(Node)).items),
        networks=tuple(map(IPv4Network, entries)),
        services=IPv4Network(cluster.service_network),
        vxlan_port=cluster.vxlan_port or VXLAN_PORT,
        fronts=fronts_of((await client.list(Service)).items),
        guests={_name(pod): pod.spec.node_name for pod in pods if pod.spec.host_network},
    )


def pods_with_addresses(pods: Iterable[Pod]) -> tuple[Host, ...]:
    """Pods as ends of a packet's way: not those in their host's network, nor those that have ended."""
    return tuple(
        Host(IPv4Address(pod.status.pod_ip), _name(pod), pod.metadata.namespace, pod.spec.node_name)
        for pod in pods
        if pod.spec.node_name
        and pod.status.pod_ip
        and not pod.spec.host_network
        and pod.status.phase not in FINAL_PHASES
    )


def fronts_of(services: Iterable[Service]) -> tuple[Frontend, ...]:
    """Where services are called, but for node ports: those are ports of every node."""
    return tuple(
        Frontend(f"{service.metadata.namespace}/{service.metadata.name}", IPv4Address(text), protocol, port.port)
        for service in services
        for text in _addresses(service)
        for port in service.spec.ports
        if (protocol := (port.protocol or "TCP").lower()) in PORT_PROTOCOLS
    )


def _addresses(service: Service) -> Iterator[str]:
    ingress = (one.ip for one in service.status.load_balancer.ingress)
    for text in (service.spec.cluster_ip, *service.spec.external_ips, *ingress):
        with contextlib.suppress(ValueError):
            yield str(IPv4Address(text))


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


async def _follow(client: Client, node: str, asked: TraceRequest, known: ClusterTopology) -> list[Hop]:
    """The first switch, and those at the other ends of the tunnels."""
    first = await _hop(client, node, asked)
    return [first, *[await _hop(client, far, next_one) for far, next_one in next_hops(first, known)]]


async def _hop(client: Client, node: str, asked: TraceRequest) -> Hop:
    status = await query_node(client, NodeQuerySpec(node_name=node, trace=asked))
    return Hop(node, asked, status.trace or TraceResult())


def _entry(asked: TraceRequest) -> str:
    if asked.enters == "tunnel":
        return f"the tunnel of {asked.tunnel_source} with VNID {asked.vnid}"
    if asked.enters == "docker":
        return f"Docker's bridge, {asked.sender}"
    return f"the pod {asked.sender}" if asked.enters == "pod" else "the node's own network stack"


def _rows(answer: TraceResult) -> list[tuple[str, ...]]:
    return [
        (step.table, step.owner or "-", step.flow or "no row matches", ", ".join(step.actions) or "drop")
        for step in answer.steps
    ]

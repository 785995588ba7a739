"""`podlane network trace`: traces a packet through the switches of the nodes."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network

from api.client.client import Client
from api.core.node import Node
from api.core.pod import FINAL_PHASES, Pod
from api.core.services import Service
from api.network.queries import NodeQuerySpec, TraceRequest, TraceResult, TraceStep
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from api.validation.network import PORT_PROTOCOLS
from cli.node_query import QueryFailed, query_node
from cli.project import check_project_of
from cli.trace.explain import endpoint_lines, explain
from cli.trace.packet import build_request
from cli.trace.topology import ClusterTopology, Frontend, Hop, Host, next_hops
from reconcile.terminal import BOLD, GREEN, RED, colored, table

VXLAN_PORT = 4789


async def run(client: Client, arguments: argparse.Namespace) -> None:
    """Print each table that the packet passes, and the outcome."""
    topology = await load_topology(client)
    for name in (arguments.source, arguments.target):
        if topology.find_host(name) is None:
            await check_project_of(client, name)
    source, target = find_host(arguments.source, topology), find_host(arguments.target, topology)
    hops = await follow(client, *build_request(arguments, source, target, topology), topology)
    for line in endpoint_lines(hops[0], topology):
        print(line)
    for hop in hops:
        print(colored(f"{hop.node}, from {_entry(hop.request)}", BOLD))
        print(table(("TABLE", "OWNER", "FLOW", "ACTIONS"), _rows(hop.result)) + "\n")
    outcome = explain(source, target, hops, topology)
    print(colored(outcome, RED if outcome.startswith("dropped") else GREEN))


def find_host(text: str, topology: ClusterTopology) -> Host:
    """Return the host of this name or address. Raises QueryFailed."""
    host = topology.find_host(text)
    if host is None:
        accepted = "an address, a node, PROJECT/POD, or PROJECT/SERVICE of a service with a cluster IP is accepted"
        raise QueryFailed(f"no pod with an address, service or node has the name {text!r}; {accepted}")
    return host


async def load_topology(client: Client) -> ClusterTopology:
    """Read hosts, pods and services from the API."""
    cluster = await client.get(ClusterNetwork, "default")
    entries = [entry.cidr for entry in cluster.cluster_networks] or [cluster.network]
    hosts = [host for host in (await client.list(HostSubnet)).items if host.subnet]
    pods = (await client.list(Pod)).items
    return ClusterTopology(
        pods=pods_with_addresses(pods),
        vnids={net_namespace.netname: net_namespace.netid for net_namespace in (await client.list(NetNamespace)).items},
        subnets={host.host: IPv4Network(host.subnet) for host in hosts},
        addresses={host.host: IPv4Address(host.host_ip) for host in hosts},
        nodes=frozenset(node.metadata.name for node in (await client.list(Node)).items),
        networks=tuple(map(IPv4Network, entries)),
        services=IPv4Network(cluster.service_network),
        vxlan_port=cluster.vxlan_port or VXLAN_PORT,
        frontends=frontends_of((await client.list(Service)).items),
        host_network_pods={_name(pod): pod.spec.node_name for pod in pods if pod.spec.host_network},
    )


def pods_with_addresses(pods: Iterable[Pod]) -> tuple[Host, ...]:
    """Return the pods that have an address of their own and have not ended."""
    return tuple(
        Host(IPv4Address(pod.status.pod_ip), _name(pod), pod.metadata.namespace, pod.spec.node_name)
        for pod in pods
        if pod.spec.node_name
        and pod.status.pod_ip
        and not pod.spec.host_network
        and pod.status.phase not in FINAL_PHASES
    )


def frontends_of(services: Iterable[Service]) -> tuple[Frontend, ...]:
    """Return the frontends of services, except for node ports, which have no address of their own."""
    return tuple(
        Frontend(f"{service.metadata.namespace}/{service.metadata.name}", IPv4Address(text), protocol, port.port)
        for service in services
        for text in _addresses(service)
        for port in service.spec.ports
        if (protocol := (port.protocol or "TCP").lower()) in PORT_PROTOCOLS
    )


def _addresses(service: Service) -> Iterator[str]:
    ingress = (entry.ip for entry in service.status.load_balancer.ingress)
    for text in (service.spec.cluster_ip, *service.spec.external_ips, *ingress):
        with contextlib.suppress(ValueError):
            yield str(IPv4Address(text))


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


async def follow(client: Client, node: str, request: TraceRequest, topology: ClusterTopology) -> list[Hop]:
    """Trace the packet at the first node, and at each node to which it goes through a tunnel."""
    first = await _hop(client, node, request)
    return [first, *[await _hop(client, next_node, packet) for next_node, packet in next_hops(first, topology)]]


async def _hop(client: Client, node: str, request: TraceRequest) -> Hop:
    status = await query_node(client, NodeQuerySpec(node_name=node, trace=request))
    return Hop(node, request, status.trace or TraceResult())


def _entry(request: TraceRequest) -> str:
    if request.enters == "tunnel":
        return f"the tunnel of {request.tunnel_source} with VNID {request.vnid}"
    if request.enters == "docker":
        return f"Docker's bridge, {request.sender}"
    return f"the pod {request.sender}" if request.enters == "pod" else "the node's own network stack"


def _rows(result: TraceResult) -> list[tuple[str, ...]]:
    return [
        (step.table, step.owner or "-", step.flow or "no flow matches", _actions_text(step)) for step in result.steps
    ]


def _actions_text(step: TraceStep) -> str:
    return f"drop ({step.drop_reason})" if step.drop_reason else ", ".join(step.actions) or "drop"

"""`podlane network trace`: asks the real switches what becomes of a packet."""

from __future__ import annotations

import argparse
from ipaddress import IPv4Address, IPv4Network

from api.client import Client
from api.objects import ClusterNetwork, HostSubnet, NetNamespace, Pod
from api.queries import NodeQuerySpec, TraceAnswer, TraceQuestion
from cli.questions import Unanswered, ask
from cli.verdict import End, Hop, Map, sentence
from lab.tables import BOLD, GREEN, RED, coloured, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be said about the packet."""
    parser.add_argument("source", metavar="SRC", help="PROJECT/POD or an address")
    parser.add_argument("target", metavar="DST", help="PROJECT/POD or an address")
    parser.add_argument("--proto", choices=("icmp", "tcp", "udp"), default="icmp", help="protocol (icmp)")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="target port of tcp and udp")
    parser.add_argument("--from-outside", action="store_true", help="SRC is an address outside the cluster")
    parser.add_argument("--source-address", metavar="ADDRESS", help="the address that the packet claims to be from")


async def show(client: Client, arguments: argparse.Namespace) -> None:
    """Print every table that the packet meets, and what comes of it."""
    pods = (await client.list(Pod)).items
    source, target = end_of(arguments.source, pods), end_of(arguments.target, pods)
    known = await _map(client)
    first = _enters(source, target, arguments)
    hops = await _follow(client, first[0], first[1], known)
    for hop in hops:
        print(coloured(f"{hop.node}, from {_entry(hop.asked)}", BOLD))
        print(table(("TABLE", "WHOSE", "ROW", "DOES"), _rows(hop.answer)) + "\n")
    end = sentence(source, target, hops, known)
    print(coloured(end, RED if end.startswith("dropped") else GREEN))


def end_of(text: str, pods: tuple[Pod, ...]) -> End:
    """Who that is. Raises Unanswered when there is no such pod."""
    project, slash, name = text.rpartition("/")
    for pod in pods:
        named = slash and (pod.metadata.namespace, pod.metadata.name) == (project, name)
        if pod.status.pod_ip and (named or pod.status.pod_ip == text):
            full = f"{pod.metadata.namespace}/{pod.metadata.name}"
            return End(IPv4Address(pod.status.pod_ip), full, pod.metadata.namespace, pod.spec.node_name)
    try:
        return End(IPv4Address(text))
    except ValueError:
        raise Unanswered(f"{text!r} is neither an address nor PROJECT/POD of a pod that has one") from None


def _enters(source: End, target: End, arguments: argparse.Namespace) -> tuple[str, TraceQuestion]:
    """Where the packet begins, and as what."""
    claimed = arguments.source_address or str(source.address)
    enters = "node" if arguments.from_outside else "pod"
    node = target.node if arguments.from_outside else source.node
    if not node:
        whose = f"{target}: traced from outside it must be" if arguments.from_outside else f"{source} is not"
        raise Unanswered(f"{whose} a pod; where it comes from decides which switch is asked")
    asked = TraceQuestion(
        enters=enters,
        source=claimed,
        target=str(target.address),
        pod=str(source.address) if enters == "pod" else "",
        protocol=arguments.proto,
        port=arguments.port,
    )
    return node, asked


async def _map(client: Client) -> Map:
    cluster = await client.get(ClusterNetwork, "default")
    entries = [entry.cidr for entry in cluster.cluster_networks] or [cluster.network]
    return Map(
        vnids={lane.netname: lane.netid for lane in (await client.list(NetNamespace)).items},
        subnets={one.host: IPv4Network(one.subnet) for one in (await client.list(HostSubnet)).items},
        networks=tuple(map(IPv4Network, entries)),
        services=IPv4Network(cluster.service_network),
    )


async def _follow(client: Client, node: str, asked: TraceQuestion, known: Map) -> list[Hop]:
    """The first switch, and the one at the other end of the tunnel."""
    hops = [await _hop(client, node, asked)]
    tunnels = [name.partition(" ")[2] for name in hops[0].answer.outputs if name.startswith("tunnel ")]
    if tunnels:
        subnets = (await client.list(HostSubnet)).items
        addresses = {one.host: one.host_ip for one in subnets}
        far = next((host for host, address in addresses.items() if address == tunnels[0]), "")
        if far:
            onward = TraceQuestion(
                enters="tunnel",
                source=asked.source,
                target=asked.target,
                tunnel_source=addresses[node],
                vnid=hops[0].answer.vnid,
                protocol=asked.protocol,
                port=asked.port,
            )
            hops.append(await _hop(client, far, onward))
    return hops


async def _hop(client: Client, node: str, asked: TraceQuestion) -> Hop:
    status = await ask(client, NodeQuerySpec(node_name=node, trace=asked))
    return Hop(node, asked, status.trace or TraceAnswer())


def _entry(asked: TraceQuestion) -> str:
    if asked.enters == "tunnel":
        return f"the tunnel of {asked.tunnel_source} with VNID {asked.vnid}"
    return f"the pod {asked.pod}" if asked.enters == "pod" else "the node's own network stack"


def _rows(answer: TraceAnswer) -> list[tuple[str, ...]]:
    return [
        (step.table, step.owner or "-", step.row or "no row matches", ", ".join(step.actions) or "drop")
        for step in answer.steps
    ]

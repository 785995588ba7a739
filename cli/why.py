"""`podlane why`: says in one sentence why packets pass or are dropped, and what would change it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator

from api.client.client import Client, ClientError, NotFound
from api.core.pod import Pod
from api.core.services import Service
from cli import kubeconfig, object_names
from cli.command import FAILED, NOT_JUDGED, UsageError
from cli.node_query import QueryFailed
from cli.project import check_project_of
from cli.trace import packet
from cli.trace.command import follow, load_topology
from cli.trace.topology import ClusterTopology, Host
from cli.trace.verdict import (
    OUTSIDE,
    Verdict,
    not_judged,
    outside_to_cluster_ip,
    outside_to_node,
    outside_to_other_port,
    outside_to_pod,
    sender_problem,
    verdict,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `podlane why`."""
    parser.add_argument(
        "source", metavar="SRC", type=object_names.endpoint, help="PROJECT/POD, a node, an address, or outside"
    )
    parser.add_argument(
        "target",
        metavar="DST",
        type=object_names.endpoint,
        help="also PROJECT/SERVICE, or the name of a service as a pod says it (web, web.blue)",
    )
    parser.add_argument(
        "-p",
        "--port",
        metavar="PORT[/PROTOCOL]",
        default="",
        help="target port (the first one of a service), tcp or udp",
    )
    kubeconfig.add_argument(parser)


def why(arguments: argparse.Namespace) -> int:
    """Print the verdict. Returns 0 if packets pass, 1 if they are dropped, 3 if there is no answer.

    Raises UsageError and BadKubeconfig.
    """
    port, protocol = _port(arguments.port)
    try:
        found = asyncio.run(_verdict(arguments, port, protocol))
    except ClientError as error:
        sys.stderr.write(f"podlane: {kubeconfig.sentence(error)}\n")
        return NOT_JUDGED
    print(found.sentence)
    if found.advice:
        print(found.advice)
    return 0 if found.passes else FAILED


def _port(text: str) -> tuple[int, str]:
    """Return port and protocol; 0 and an empty text if none is given. Raises UsageError."""
    number, _, protocol = text.lower().partition("/")
    if not text:
        return 0, ""
    if not number.isdecimal() or len(number) > 5 or not 1 <= int(number) <= 65535 or protocol not in ("", "tcp", "udp"):
        raise UsageError(f"--port is {text!r}; 1 to 65535 is accepted, with /tcp or /udp")
    return int(number), protocol or "tcp"


async def _verdict(arguments: argparse.Namespace, port: int, protocol: str) -> Verdict:
    async with kubeconfig.connect(kubeconfig.load(arguments.kubeconfig)) as client:
        topology = await load_topology(client)
        source = await _host(client, arguments.source, "", topology)
        if problem := sender_problem(source, topology):
            raise UsageError(problem)
        target = await _host(client, arguments.target, source.project, topology)
        if reason := not_judged(source, target):
            raise QueryFailed(f"not judged: {reason}")
        words = []
        if source == OUTSIDE:
            entrance = await _entrance(client, target, port, topology)
            if isinstance(entrance, Verdict):
                return entrance
            target, port, node = entrance
            words = ["--from-outside", "--on", node]
        if port:
            words += ["--port", str(port), "--proto", protocol or "tcp"]
        trace = packet.parse([str(source.address), str(target.address), *words])
        first = packet.build_request(trace, source, target, topology)
        return verdict(source, target, await follow(client, *first, topology), topology)


async def _host(client: Client, text: str, project: str, topology: ClusterTopology) -> Host:
    """Return the host of a name; short names of services are those of `project`. Raises ClientError."""
    for name in (text, *_service_names(text, project)):
        host = topology.find_host(name)
        if host is not None:
            return host
    if text == OUTSIDE.name:
        return OUTSIDE
    await check_project_of(client, text)
    raise QueryFailed(await _without_address(client, text))


def _service_names(text: str, project: str) -> Iterator[str]:
    """Yield PROJECT/SERVICE of the names by which pods call a service: NAME, NAME.PROJECT and NAME.PROJECT.svc..."""
    name, *labels = text.rstrip(".").split(".")
    if not labels and project:
        yield f"{project}/{name}"
    elif len(labels) == 1 or labels[1:2] == ["svc"]:
        yield f"{labels[0]}/{name}"


async def _without_address(client: Client, text: str) -> str:
    """Return why a name has no address."""
    project, slash, name = text.partition("/")
    if slash:
        try:
            pod = await client.get(Pod, name, project)
        except NotFound:
            pass
        else:
            return f"the pod {text} has no address: its phase is {pod.status.phase or 'Pending'}"
        try:
            service = await client.get(Service, name, project)
        except NotFound:
            pass
        else:
            kind = f"type {service.spec.type}" if service.spec.type == "ExternalName" else "no cluster IP"
            return f"the service {text} has {kind}: name one of its pods or its address"
    accepted = "PROJECT/POD, PROJECT/SERVICE, the DNS name of a service, a node, an address or outside is accepted"
    return f"no pod, service or node has the name {text!r}; {accepted}"


async def _entrance(
    client: Client, target: Host, port: int, topology: ClusterTopology
) -> tuple[Host, int, str] | Verdict:
    """Return the address, the port and the node at which outside connects to a target, or the verdict if there is none.

    Raises UsageError.
    """
    if target.project:
        return outside_to_pod(target)
    node = target.node or topology.node_at(target.address)
    if node:
        return await _entrance_of_node(client, node, port, topology)
    frontend = topology.frontend(target.address, port) or topology.frontend(target.address)
    if frontend is None:
        raise UsageError(f"{target} is outside, too; for SRC outside, a pod, a service or a node is accepted as DST")
    return await _entrance_of_service(client, Host(target.address, frontend.name), port, topology)


async def _entrance_of_node(
    client: Client, node: str, port: int, topology: ClusterTopology
) -> tuple[Host, int, str] | Verdict:
    for service in (await client.list(Service)).items:
        if port and port in (each.node_port for each in service.spec.ports):
            return _node_port(service, node, topology), port, node
    return outside_to_node(node)


async def _entrance_of_service(
    client: Client, target: Host, port: int, topology: ClusterTopology
) -> tuple[Host, int, str] | Verdict:
    node = min(topology.nodes & topology.subnets.keys())
    for other in topology.frontends:
        if other.name == target.name and other.address not in topology.services and port in {0, other.port}:
            return Host(other.address, other.name), other.port, node
    project, name = target.name.split("/")
    service = await client.get(Service, name, project)
    for service_port in service.spec.ports:
        if service_port.node_port and port in {0, service_port.port, service_port.node_port}:
            return _node_port(service, node, topology), service_port.node_port, node
    if port and port not in (each.port for each in service.spec.ports):
        return outside_to_other_port(target, port)
    return outside_to_cluster_ip(target)


def _node_port(service: Service, node: str, topology: ClusterTopology) -> Host:
    return Host(topology.addresses[node], f"{service.metadata.namespace}/{service.metadata.name}", node=node)

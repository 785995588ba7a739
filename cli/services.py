"""`podlane network services`: lists service frontends, endpoints, and rejected endpoints with the reason."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable

from api.client.client import Client
from api.core.node import Node
from api.core.services import Service
from api.network.queries import NodeQuerySpec, ServicePortReport, ServicesRequest, ServicesResult
from api.network.types import HostSubnet
from cli import object_names
from cli.node_query import QueryFailed, query_node
from cli.project import check_projects
from reconcile.terminal import BOLD, RED, colored, table

HEADS = ("SERVICE", "PORT", "VNID", "FRONTENDS", "ENDPOINTS", "NOTES")
MAX_SHOWN = 4
"""Maximum number of endpoints in a cell; all endpoints are shown of a service that is given by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select services and nodes."""
    parser.add_argument(
        "services",
        metavar="NAMESPACE[/NAME]",
        type=object_names.project_or_service,
        nargs="?",
        help="services of one project, or one service",
    )
    parser.add_argument("--node", metavar="NODE", type=object_names.node, help="query this node only (all nodes)")


async def show(client: Client, arguments: argparse.Namespace) -> None:
    """Print the service ports of the nodes. Nodes with the same ports are grouped."""
    namespace, _, name = (arguments.services or "").partition("/")
    if namespace:
        await check_projects(client, [namespace])
    if name:
        await client.get(Service, name, namespace)
    nodes = [arguments.node] if arguments.node else await _nodes(client)
    request = ServicesRequest(namespace=namespace, name=name)
    answers = await asyncio.gather(*(_query(client, node, request) for node in nodes))
    by_answer: dict[str | ServicesResult, list[str]] = {}
    for node, answer in zip(nodes, answers, strict=True):
        by_answer.setdefault(answer, []).append(node)
    for answer, same in by_answer.items():
        print(colored(", ".join(same), BOLD))
        print(colored(answer, RED) if isinstance(answer, str) else text(answer, bool(name)))
        print()
    if all(isinstance(answer, str) for answer in by_answer):
        raise QueryFailed("no node has answered")


async def _nodes(client: Client) -> list[str]:
    known = {node.metadata.name for node in (await client.list(Node)).items}
    return sorted(subnet.host for subnet in (await client.list(HostSubnet)).items if subnet.host in known)


async def _query(client: Client, node: str, request: ServicesRequest) -> ServicesResult | str:
    try:
        status = await query_node(client, NodeQuerySpec(node_name=node, services=request))
    except QueryFailed as error:
        return str(error)
    return status.services or ServicesResult()


def text(answer: ServicesResult, all_endpoints: bool) -> str:
    """Return the ports as a table, then the number of omitted ports and a line for each rejection."""
    rows = [_cells(port, len(port.cluster_endpoints) if all_endpoints else MAX_SHOWN) for port in answer.ports]
    lines = [table(HEADS, rows) if rows else "no services"]
    if answer.omitted_ports:
        lines.append(f"and {answer.omitted_ports} ports more: name a project")
    lines += [
        f"rejected in {rejection.service}: {rejection.subject} {rejection.reason}" for rejection in answer.rejected
    ]
    return "\n".join(lines)


def _cells(port: ServicePortReport, max_shown: int) -> tuple[str, ...]:
    name = f"{port.name} " if port.name else ""
    return (
        port.service,
        f"{name}{port.port}",
        str(port.vnid),
        " ".join(port.frontends) or "-",
        _some(port.cluster_endpoints, max_shown),
        "; ".join(_notes(port)) or "-",
    )


def _some(endpoints: tuple[str, ...], max_shown: int) -> str:
    more = len(endpoints) - max_shown
    return (
        " ".join(endpoints[:max_shown]) + (f" and {more} more" if more > 0 else "") or "none: connections are refused"
    )


def _notes(port: ServicePortReport) -> Iterable[str]:
    if port.affinity_seconds:
        yield f"a client keeps its endpoint for {port.affinity_seconds} s"
    for clients, endpoints in (
        ("at the cluster IP", port.internal_endpoints),
        ("for external clients", port.external_endpoints),
    ):
        if not endpoints and port.cluster_endpoints:
            yield f"{clients} none: this node has no endpoint"
        elif endpoints != port.cluster_endpoints:
            yield f"{clients} only {' '.join(endpoints)}, of this node"

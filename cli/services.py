"""`podlane network services`: which services the nodes program, where they lead, and what is left out and why."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable

from api.client.client import Client
from api.core.node import Node
from api.network.queries import NodeQuerySpec, ServicePortReport, ServicesRequest, ServicesResult
from api.network.types import HostSubnet
from cli.node_query import QueryFailed, query_node
from reconcile.terminal import BOLD, RED, colored, table

HEADS = ("SERVICE", "PORT", "VNID", "CALLED AT", "ENDPOINTS", "NOTES")
MAX_SHOWN = 4
"""Endpoints in a cell; of one service that is asked for by name, all are shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of which services, and of which node."""
    parser.add_argument(
        "services", metavar="NAMESPACE[/NAME]", nargs="?", default="", help="of one project, or one service of it"
    )
    parser.add_argument("--node", metavar="NODE", default="", help="as that node has it; all nodes by default")


async def show(client: Client, arguments: argparse.Namespace) -> None:
    """Print what nodes program; nodes that have the same stand together."""
    namespace, _, name = arguments.services.partition("/")
    nodes = [arguments.node] if arguments.node else await _nodes(client)
    asked = ServicesRequest(namespace=namespace, name=name)
    found = await asyncio.gather(*(_answer(client, node, asked) for node in nodes))
    by_answer: dict[str | ServicesResult, list[str]] = {}
    for node, answer in zip(nodes, found, strict=True):
        by_answer.setdefault(answer, []).append(node)
    for answer, same in by_answer.items():
        print(colored(", ".join(same), BOLD))
        print(colored(answer, RED) if isinstance(answer, str) else text(answer, bool(name)))
        print()
    if all(isinstance(answer, str) for answer in by_answer):
        raise QueryFailed("no node has answered")


async def _nodes(client: Client) -> list[str]:
    known = {node.metadata.name for node in (await client.list(Node)).items}
    return sorted(one.host for one in (await client.list(HostSubnet)).items if one.host in known)


async def _answer(client: Client, node: str, asked: ServicesRequest) -> ServicesResult | str:
    try:
        status = await query_node(client, NodeQuerySpec(node_name=node, services=asked))
    except QueryFailed as error:
        return str(error)
    return status.services or ServicesResult()


def text(answer: ServicesResult, all_endpoints: bool) -> str:
    """The ports as a table, then a line for each thing that is left out."""
    rows = [_row(port, len(port.cluster_endpoints) if all_endpoints else MAX_SHOWN) for port in answer.ports]
    lines = [table(HEADS, rows) if rows else "no services"]
    if answer.omitted_ports:
        lines.append(f"and {answer.omitted_ports} ports more: name a project")
    lines += [f"left out of {one.service}: {one.subject} {one.reason}" for one in answer.rejected]
    return "\n".join(lines)


def _row(port: ServicePortReport, most: int) -> tuple[str, ...]:
    name = f"{port.name} " if port.name else ""
    return (
        port.service,
        f"{name}{port.port}",
        str(port.vnid),
        " ".join(port.frontends) or "-",
        _some(port.cluster_endpoints, most),
        "; ".join(_notes(port)) or "-",
    )


def _some(endpoints: tuple[str, ...], most: int) -> str:
    more = len(endpoints) - most
    return " ".join(endpoints[:most]) + (f" and {more} more" if more > 0 else "") or "none: callers are refused"


def _notes(port: ServicePortReport) -> Iterable[str]:
    if port.affinity_seconds:
        yield f"a client keeps its endpoint for {port.affinity_seconds} s"
    for who, endpoints in (("at the cluster IP", port.internal_endpoints), ("from outside", port.external_endpoints)):
        if endpoints != port.cluster_endpoints:
            yield f"{who} only {' '.join(endpoints) or 'nothing'}, of this node"

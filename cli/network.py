"""`podlane network`: shows the pod network, and joins or isolates projects."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping

from api.client.client import Client
from api.core.node import Node
from api.network.queries import NetworkReport, NodeQuerySpec
from api.network.types import CHANGE_NETWORK_ANNOTATION, ChangeNetworkRequest, ClusterNetwork, HostSubnet, NetNamespace
from cli import capture, kubeconfig, object_names, services
from cli.command import UsageError, add_command
from cli.kubeconfig import with_client
from cli.node_query import QueryFailed, query_node
from cli.project import check_projects
from cli.trace import command as trace_command
from cli.trace import packet
from reconcile.terminal import table

DEFAULT, GLOBAL_VNID = "default", 0
TIMEOUT_SECONDS = 15.0
POLL_SECONDS = 0.05


STATUS_HEADS = ("HOST", "HOST IP", "SUBNET", "PODS", "FREE", "FLOWS", "DRIFT", "RECONCILE MS", "PEERS, MS", "STATE")
MAX_PEERS_SHOWN = 8


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands under `podlane network`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    status = add_command(commands, "status", "show the cluster network, subnets and VNIDs", with_client(_status))
    join = add_command(commands, "join", "give projects the VNID of another project", with_client(_join))
    join.add_argument(
        "--to", metavar="PROJECT", type=object_names.project, required=True, help="project whose VNID the projects get"
    )
    isolate = add_command(commands, "isolate", "give each project a VNID of its own", with_client(_isolate))
    make_global = add_command(
        commands, "global", "give projects VNID 0, which reaches all projects", with_client(_global)
    )
    for command in (join, isolate, make_global):
        command.add_argument("projects", metavar="PROJECT", type=object_names.project, nargs="+")
        command.add_argument(
            "--yes", action="store_true", help="also if a project loses VNID 0, or gets it by joining another one"
        )
    trace = add_command(commands, "trace", "trace a packet through the switches", with_client(trace_command.run))
    packet.add_arguments(trace)
    capture_packets = add_command(
        commands, "capture", "capture the packets at the port of a pod", with_client(capture.take)
    )
    capture.add_arguments(capture_packets)
    list_services = add_command(
        commands, "services", "list service frontends, endpoints and rejected endpoints", with_client(services.show)
    )
    services.add_arguments(list_services)
    for command in (status, list_services, join, isolate, make_global, trace, capture_packets):
        kubeconfig.add_argument(command)


async def _status(client: Client, _: argparse.Namespace) -> None:
    cluster = await client.get(ClusterNetwork, "default")
    rows = [(cluster.plugin_name, cluster.network, cluster.service_network)]
    print(table(("PLUGIN", "CLUSTER NETWORK", "SERVICE NETWORK"), rows))
    subnets = (await client.list(HostSubnet)).items
    nodes = {node.metadata.name for node in (await client.list(Node)).items}
    reports = await asyncio.gather(*(_report(client, subnet.host) for subnet in subnets if subnet.host in nodes))
    by_node = dict(zip([subnet.host for subnet in subnets if subnet.host in nodes], reports, strict=True))
    print("\n" + table(STATUS_HEADS, [_status_row(subnet, by_node.get(subnet.host)) for subnet in subnets]))
    print()
    _show((await client.list(NetNamespace)).items)


async def _report(client: Client, node: str) -> NetworkReport:
    try:
        status = await query_node(client, NodeQuerySpec(node_name=node, report=True))
    except QueryFailed as error:
        return NetworkReport(error=str(error))
    return status.report or NetworkReport()


def _status_row(subnet: HostSubnet, report: NetworkReport | None) -> tuple[str, ...]:
    fixed = subnet.host, subnet.host_ip, subnet.subnet
    if report is None:
        return (*fixed, *["-"] * 6, "is no node")
    counts = (report.pods, report.free_addresses, report.flows, report.drift)
    pace = f"{report.pass_milliseconds:.1f}"
    return (*fixed, *map(str, counts), pace, _peers(report.round_trips), report.error or "ready")


def _peers(times: dict[str, float]) -> str:
    """Return the round trip times by node. Lost ones come first, because they need attention."""
    ordered = sorted(times.items(), key=lambda peer: (peer[1] >= 0, peer[0]))
    words = [f"{name} {'lost' if took < 0 else f'{took:.1f}'}" for name, took in ordered]
    more = len(words) - MAX_PEERS_SHOWN
    return " ".join(words[:MAX_PEERS_SHOWN] + [f"and {more} more"] * (more > 0)) or "-"


def _show(net_namespaces: tuple[NetNamespace, ...]) -> None:
    print(
        table(
            ("PROJECT", "VNID"), [(net_namespace.netname, str(net_namespace.netid)) for net_namespace in net_namespaces]
        )
    )


async def _join(client: Client, arguments: argparse.Namespace) -> None:
    await _change(client, arguments, ChangeNetworkRequest("join", arguments.to))


async def _isolate(client: Client, arguments: argparse.Namespace) -> None:
    await _change(client, arguments, ChangeNetworkRequest("isolate"))


async def _global(client: Client, arguments: argparse.Namespace) -> None:
    await _change(client, arguments, ChangeNetworkRequest("global"))


async def _change(client: Client, arguments: argparse.Namespace, request: ChangeNetworkRequest) -> None:
    """Request the change for all projects, or for none if a name is wrong. Wait until the master has made it."""
    projects = list(dict.fromkeys(arguments.projects))
    await check_projects(client, [*projects, *filter(None, [request.target])])
    vnids = {net_namespace.netname: net_namespace.netid for net_namespace in (await client.list(NetNamespace)).items}
    if not vnids:
        raise QueryFailed("this cluster has no VNIDs: its plugin is ovs-subnet, where every pod reaches every pod")
    without = [project for project in [*projects, request.target] if project and project not in vnids]
    if without:
        raise QueryFailed(f"{', '.join(without)} has no VNID yet; the master gives one to each project")
    if not arguments.yes:
        _refuse_unconfirmed(projects, request, vnids)
    for project in projects:
        patch = {"metadata": {"annotations": {CHANGE_NETWORK_ANNOTATION: str(request)}}}
        await client.patch(NetNamespace, project, "", patch)
    _show(tuple([await _changed(client, project) for project in projects]))


def _refuse_unconfirmed(projects: list[str], request: ChangeNetworkRequest, vnids: Mapping[str, int]) -> None:
    """Raise UsageError if a project loses VNID 0, or gets it by joining another. The text says what would change.

    The project default keeps VNID 0: the master refuses the change.
    """
    is_global = request.action == "global" or (bool(request.target) and vnids[request.target] == GLOBAL_VNID)
    losing = [name for name in projects if vnids[name] == GLOBAL_VNID and name != DEFAULT and not is_global]
    gaining = [name for name in projects if vnids[name] != GLOBAL_VNID and request.action == "join" and is_global]
    if losing:
        others = f"{request.target} and VNID 0" if request.target else "VNID 0"
        raise UsageError(
            f"{', '.join(losing)} has VNID 0: its pods and those of all projects reach each other. After "
            f"{request.action}, they reach only the pods of {others}, and all other pods lose what it serves; "
            "--yes does it"
        )
    if gaining:
        raise UsageError(
            f"{request.target} has VNID 0. After {request.action}, {', '.join(gaining)} has VNID 0, too: its pods and "
            "those of all projects reach each other; --yes does it"
        )


async def _changed(client: Client, project: str) -> NetNamespace:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        net_namespace = await client.get(NetNamespace, project)
        if CHANGE_NETWORK_ANNOTATION not in net_namespace.metadata.annotations:
            return net_namespace
        if time.monotonic() > deadline:
            sys.stdout.flush()
            requested = net_namespace.metadata.annotations[CHANGE_NETWORK_ANNOTATION]
            raise QueryFailed(
                f"the master has not carried out {requested!r} for {project} within "
                f"{TIMEOUT_SECONDS:.0f} s; its log says why"
            )
        await asyncio.sleep(POLL_SECONDS)

"""Changes the VNIDs of projects as `podlane network` does, until they are in force on every node."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from api.client.client import Client
from api.network.types import CHANGE_NETWORK_ANNOTATION, ChangeNetworkRequest, NetNamespace
from lab.process import run
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.netns.services import OfferedServices
from tests.testbed.wait import wait_until

POLL_SECONDS = 0.005
_SOURCE_FLOW = re.compile(r"nw_src=([0-9.]+) actions=set_field:(\w+)->reg0")


def assign_vnids(
    cluster: PacketWorld, numbers: Mapping[str, int], offers: OfferedServices | None = None
) -> dict[str, int]:
    """Give projects of the same number one VNID, and those of number 0 the VNID 0. Return the VNID of each project.

    Other projects keep theirs. When this returns, all switches have the flows of these VNIDs, also those of services.
    """
    vnids = cluster.call_api_often(lambda client: _request(client, numbers))
    for project, number in numbers.items():
        for other in numbers:
            assert (vnids[project] == vnids[other]) == (number == numbers[other]), f"{project} and {other}: {vnids}"
        assert (vnids[project] == 0) == (number == 0), f"{project}: {vnids}"
    for name in cluster.nodes:
        pods = (pod for pod in cluster.pods.values() if pod.node == name)
        wanted = {str(pod.address): vnids[pod.project] for pod in pods}
        wait_until(lambda name=name, wanted=wanted: _has_vnids(cluster, name, wanted), f"VNIDs on {name}")  # type: ignore[misc]
        if offers is not None:
            wait_until(lambda name=name: offers.in_force(name, vnids), f"services on {name}", pause=POLL_SECONDS)  # type: ignore[misc]
    revalidate_flows(cluster)
    return vnids


def revalidate_flows(cluster: PacketWorld) -> None:
    """Revalidate the datapath flows of all switches now, instead of some milliseconds after a change."""
    for node in cluster.nodes.values():
        run("ovs-appctl", "-t", f"{node.ovs}/ovs-vswitchd.ctl", "revalidator/purge")


async def _request(client: Client, numbers: Mapping[str, int]) -> dict[str, int]:
    """Request the VNIDs: the first project of each number is isolated before the others join it."""
    firsts = {number: name for name, number in sorted(numbers.items(), reverse=True)}
    alone = {name: ChangeNetworkRequest("isolate" if number else "global") for number, name in firsts.items()}
    others = sorted(numbers.keys() - alone.keys())
    joining = {name: ChangeNetworkRequest("join", firsts[numbers[name]]) for name in others}
    for requests in (alone, joining):
        await asyncio.gather(*(_annotate(client, name, request) for name, request in requests.items()))
    while True:
        net_namespaces = (await client.list(NetNamespace)).items
        if not any(CHANGE_NETWORK_ANNOTATION in net_namespace.metadata.annotations for net_namespace in net_namespaces):
            return {net_namespace.netname: net_namespace.netid for net_namespace in net_namespaces}
        await asyncio.sleep(POLL_SECONDS)


async def _annotate(client: Client, project: str, request: ChangeNetworkRequest) -> None:
    patch = {"metadata": {"annotations": {CHANGE_NETWORK_ANNOTATION: str(request)}}}
    await client.patch(NetNamespace, project, "", patch)


def _has_vnids(cluster: PacketWorld, node: str, wanted: Mapping[str, int]) -> bool:
    """Return whether the switch has these VNIDs for these pods. The flows of a node change all at once."""
    matches = (_SOURCE_FLOW.search(line) for line in cluster.flows(node))
    vnids = {match[1]: int(match[2], 0) for match in matches if match}
    return wanted.items() <= vnids.items()

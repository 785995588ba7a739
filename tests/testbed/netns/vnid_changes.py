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
_SOURCE_ROW = re.compile(r"nw_src=([0-9.]+) actions=set_field:(\w+)->reg0")


def assign_vnids(
    cluster: PacketWorld, wishes: Mapping[str, int], offers: OfferedServices | None = None
) -> dict[str, int]:
    """Let projects of the same number share a lane, and those of number 0 be global. Returns the VNID of each project.

    The others keep theirs. When it returns, every switch goes by them alone, also for what services offer.
    """
    lanes = cluster.call_api(lambda client: _request(client, wishes))
    for one, number in wishes.items():
        for other in wishes:
            assert (lanes[one] == lanes[other]) == (number == wishes[other]), f"{one} and {other}: {lanes}"
        assert (lanes[one] == 0) == (number == 0), f"{one}: {lanes}"
    for name in cluster.nodes:
        pods = (pod for pod in cluster.pods.values() if pod.node == name)
        wanted = {str(pod.address): lanes[pod.project] for pod in pods}
        wait_until(lambda name=name, wanted=wanted: _lanes_on(cluster, name, wanted), f"lanes on {name}")  # type: ignore[misc]
        if offers is not None:
            wait_until(lambda name=name: offers.in_force(name, lanes), f"services on {name}", pause=POLL_SECONDS)  # type: ignore[misc]
    revalidate_flows(cluster)
    return lanes


def revalidate_flows(cluster: PacketWorld) -> None:
    """Let the switches ask their flows anew; of themselves they do so some milliseconds after a change."""
    for node in cluster.nodes.values():
        run("ovs-appctl", "-t", f"{node.ovs}/ovs-vswitchd.ctl", "revalidator/purge")


async def _request(client: Client, wishes: Mapping[str, int]) -> dict[str, int]:
    """The first project of each number is alone when the others join it."""
    firsts = {number: name for name, number in sorted(wishes.items(), reverse=True)}
    alone = {name: ChangeNetworkRequest("isolate" if number else "global") for number, name in firsts.items()}
    others = sorted(wishes.keys() - alone.keys())
    joining = {name: ChangeNetworkRequest("join", firsts[wishes[name]]) for name in others}
    for requests in (alone, joining):
        await asyncio.gather(*(_annotate(client, name, request) for name, request in requests.items()))
    while True:
        found = (await client.list(NetNamespace)).items
        if not any(CHANGE_NETWORK_ANNOTATION in lane.metadata.annotations for lane in found):
            return {lane.netname: lane.netid for lane in found}
        await asyncio.sleep(POLL_SECONDS)


async def _annotate(client: Client, project: str, request: ChangeNetworkRequest) -> None:
    asked = {"metadata": {"annotations": {CHANGE_NETWORK_ANNOTATION: str(request)}}}
    await client.patch(NetNamespace, project, "", asked)


def _lanes_on(cluster: PacketWorld, node: str, wanted: Mapping[str, int]) -> bool:
    """Whether the switch counts these pods among these lanes; a node's flows change all at once."""
    found = (_SOURCE_ROW.search(line) for line in cluster.flows(node))
    lanes = {row[1]: int(row[2], 0) for row in found if row}
    return wanted.items() <= lanes.items()

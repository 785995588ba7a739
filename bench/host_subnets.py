"""Many HostSubnets, which arrive at once or are there at the start, until the last flow is in the switch."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from api.client.client import Client
from api.meta.types import ObjectMeta
from api.network.types import HostSubnet
from bench.measurement import Budget, Measure, Measurement, Progress
from lab.topology import LabNode
from sdn.pipeline.compiler import flows_of_peer
from sdn.pipeline.cookies import CookieCategory, make_cookie, peer_cookie
from sdn.topology import Peer
from tests.testbed.netns.cluster import NetnsCluster, bench_lab
from tests.testbed.wait import wait_until

CREATES_IN_FLIGHT = 32
FLAGS = ("--cluster-network", "10.128.0.0/10", "--host-subnet-length", "8")
PEER_FLOWS = f"cookie={make_cookie(CookieCategory.PEER):#x}/0xff00000000"
HOST_ROUTES = IPv4Network("10.32.0.0/16")


@dataclass(frozen=True, slots=True)
class Size:
    """How many HostSubnets are created at once, how many are there at a start, and how often."""

    at_once: int
    at_start: int
    rounds: int


FULL = Size(at_once=500, at_start=5000, rounds=5)
SMALLEST = Size(at_once=2, at_start=3, rounds=1)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Stop the daemon while the objects are created, so that they arrive at once. Then start it among many objects."""
    with NetnsCluster(bench_lab(1), master_flags=FLAGS) as cluster:
        (node,) = cluster.lab.nodes
        arriving, leaving = [], []
        for number in range(size.rounds):
            progress(f"{size.at_once} HostSubnets at once, {number + 1} of {size.rounds}")
            arriving.append(
                _seconds_until_flows(cluster, node, lambda client: _create(client, size.at_once), _rows(size.at_once))
            )
            leaving.append(_seconds_until_flows(cluster, node, lambda client: _delete(client, size.at_once), 0))
        progress(f"{size.at_start} HostSubnets at start")
        cluster.call_api(lambda client: _create(client, size.at_start))
        wait_until(lambda: _flows(node) == _rows(size.at_start), "all peers")
        starting, restarting = [], []
        for number in range(size.rounds):
            progress(f"start among {size.at_start}, {number + 1} of {size.rounds}")
            restarting.append(_seconds_until_restarted(cluster, node, _rows(size.at_start), emptied=False))
            starting.append(_seconds_until_restarted(cluster, node, _rows(size.at_start), emptied=True))
        memory = cluster.process(f"{node.name} sdn").memory_info().rss / 1e6
    return [
        Measurement(f"{size.at_once} HostSubnets at once, last flow in", "s", tuple(arriving), Budget(0.05)),
        Measurement(f"{size.at_once} HostSubnets gone at once, last flow out", "s", tuple(leaving)),
        Measurement(f"start among {size.at_start} HostSubnets, empty switch", "s", tuple(starting), Budget(1)),
        Measurement(f"restart among {size.at_start} HostSubnets, flows in place", "s", tuple(restarting)),
        Measurement(f"resident, {size.at_start} HostSubnets", "MB", (memory,)),
    ]


MEASURE = Measure(
    "HostSubnets that arrive at once or are there at a start, until the switch has all flows",
    measure,
    FULL,
    SMALLEST,
)


def _rows(peers: int) -> int:
    """Return how many flows with the cookie of a peer so many peers have."""
    peer = Peer("peer", IPv4Address("10.32.0.1"), IPv4Network("10.140.0.0/24"))
    return peers * sum(flow.cookie == peer_cookie(peer) for flow in flows_of_peer(peer))


def _flows(node: LabNode) -> int:
    """Return the number of flows with cookies of peers in the switch. Other flows may change meanwhile."""
    answer = subprocess.run(
        ["ovs-ofctl", "-O", "OpenFlow14", "dump-aggregate", str(node.ovs / "br0.mgmt"), PEER_FLOWS],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(re.findall(r"flow_count=(\d+)", answer.stdout)[0])


def _seconds_until_flows(
    cluster: NetnsCluster, node: LabNode, change: Callable[[Client], Awaitable[None]], wanted: int
) -> float:
    """Return the seconds from when the daemon can see the change until the switch has all flows."""
    cluster.signal(f"{node.name} sdn", signal.SIGSTOP)
    cluster.call_api(change)
    begin = time.perf_counter()
    cluster.signal(f"{node.name} sdn", signal.SIGCONT)
    wait_until(lambda: _flows(node) == wanted, "the flows", pause=0.002)
    return time.perf_counter() - begin


def _seconds_until_restarted(cluster: NetnsCluster, node: LabNode, wanted: int, emptied: bool) -> float:
    """Return the seconds from the start of the process until it is ready and the switch has all flows."""
    cluster.kill(f"{node.name} sdn")
    if emptied:
        subprocess.run(["ovs-ofctl", "-O", "OpenFlow14", "del-flows", str(node.ovs / "br0.mgmt")], check=True)
    begin = time.perf_counter()
    cluster.start(f"{node.name} sdn")
    wait_until(lambda: cluster.network_ready(node.name) and _flows(node) == wanted, "the flows", pause=0.01)
    return time.perf_counter() - begin


async def _create(client: Client, count: int) -> None:
    await _await_all([client.create(_peer(number)) for number in range(count)])


async def _delete(client: Client, count: int) -> None:
    await _await_all([client.delete(HostSubnet, _peer(number).host) for number in range(count)])


async def _await_all(requests: Sequence[Awaitable[object]]) -> None:
    gate = asyncio.Semaphore(CREATES_IN_FLIGHT)

    async def limited(request: Awaitable[object]) -> None:
        async with gate:
            await request

    await asyncio.gather(*map(limited, requests))


def _peer(number: int) -> HostSubnet:
    """Return the HostSubnet of a host that is no node."""
    name = f"peer-{number}"
    address = HOST_ROUTES.network_address + 1 + number
    subnet = IPv4Network((IPv4Address("10.140.0.0") + 256 * number, 24))
    return HostSubnet(metadata=ObjectMeta(name=name), host=name, host_ip=str(address), subnet=str(subnet))

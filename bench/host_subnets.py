"""Many nodes: HostSubnets that arrive at once or are there at the start, until the last flow is in the switch."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network

from api.client.client import Client
from api.meta.types import ObjectMeta
from api.network.types import HostSubnet
from bench.measurement import Measurement
from lab.topology import LabNode
from sdn.pipeline.compiler import flows_of_peer
from sdn.topology import Peer
from tests.testbed.netns.cluster import NetnsCluster, bench_lab
from tests.testbed.wait import wait_until

AT_ONCE, AT_START, ROUNDS = 500, 5000, 5
CREATES_IN_FLIGHT = 32
FLAGS = ("--cluster-network", "10.128.0.0/10", "--host-subnet-length", "8")
HOST_ROUTES = IPv4Network("10.32.0.0/16")


def measure(say: Callable[[str], None]) -> list[Measurement]:
    """Stop the daemon while the objects are created, so that they arrive at once. Then start it among many objects."""
    with NetnsCluster(bench_lab(1), master_flags=FLAGS) as cluster:
        (node,) = cluster.lab.nodes
        base = _flows(node)
        arriving, leaving = [], []
        for number in range(ROUNDS):
            say(f"{AT_ONCE} HostSubnets at once, {number + 1} of {ROUNDS}")
            arriving.append(_woken(cluster, node, lambda client: _make(client, AT_ONCE), base + _rows(AT_ONCE)))
            leaving.append(_woken(cluster, node, lambda client: _drop(client, AT_ONCE), base))
        say(f"{AT_START} HostSubnets at start")
        cluster.call_api(lambda client: _make(client, AT_START))
        wait_until(lambda: _flows(node) == base + _rows(AT_START), "all peers")
        starting, restarting = [], []
        for number in range(ROUNDS):
            say(f"start among {AT_START}, {number + 1} of {ROUNDS}")
            restarting.append(_restarted(cluster, node, base + _rows(AT_START), emptied=False))
            starting.append(_restarted(cluster, node, base + _rows(AT_START), emptied=True))
        memory = cluster.process(f"{node.name} sdn").memory_info().rss / 1e6
    return [
        Measurement(f"{AT_ONCE} HostSubnets at once, last flow in", "s", tuple(arriving), "0.5 s"),
        Measurement(f"{AT_ONCE} HostSubnets gone at once, last flow out", "s", tuple(leaving)),
        Measurement(f"start among {AT_START} HostSubnets, empty switch", "s", tuple(starting), "3 s"),
        Measurement(f"restart among {AT_START} HostSubnets, flows in place", "s", tuple(restarting)),
        Measurement(f"resident, {AT_START} HostSubnets", "MB", (memory,)),
    ]


def _rows(peers: int) -> int:
    return peers * len(flows_of_peer(Peer("peer", IPv4Address("10.32.0.1"), IPv4Network("10.140.0.0/24"))))


def _flows(node: LabNode) -> int:
    answer = subprocess.run(
        ["ovs-ofctl", "-O", "OpenFlow14", "dump-aggregate", str(node.ovs / "br0.mgmt")],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(re.findall(r"flow_count=(\d+)", answer.stdout)[0])


def _woken(cluster: NetnsCluster, node: LabNode, change: Callable[[Client], Awaitable[None]], wanted: int) -> float:
    """Seconds from when the daemon can see the change until the switch has all flows."""
    cluster.signal(f"{node.name} sdn", signal.SIGSTOP)
    cluster.call_api(change)
    begin = time.perf_counter()
    cluster.signal(f"{node.name} sdn", signal.SIGCONT)
    wait_until(lambda: _flows(node) == wanted, "the flows", pause=0.002)
    return time.perf_counter() - begin


def _restarted(cluster: NetnsCluster, node: LabNode, wanted: int, emptied: bool) -> float:
    """Seconds from the start of the process until it is ready and the switch has all flows."""
    cluster.kill(f"{node.name} sdn")
    if emptied:
        subprocess.run(["ovs-ofctl", "-O", "OpenFlow14", "del-flows", str(node.ovs / "br0.mgmt")], check=True)
    begin = time.perf_counter()
    cluster.start(f"{node.name} sdn")
    wait_until(lambda: cluster.network_ready(node.name) and _flows(node) == wanted, "the flows", pause=0.01)
    return time.perf_counter() - begin


async def _make(client: Client, count: int) -> None:
    await _all([client.create(_peer(number)) for number in range(count)])


async def _drop(client: Client, count: int) -> None:
    await _all([client.delete(HostSubnet, _peer(number).host) for number in range(count)])


async def _all(requests: Sequence[Awaitable[object]]) -> None:
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

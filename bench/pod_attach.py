"""Attaching of pods through sdn.sock, compared with a bare veth and Open vSwitch port on another node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface

from pyroute2 import AsyncIPRoute

from api.network.attach import CNI, AttachRequest
from bench.measurement import Measurement
from lab.topology import LabNode
from node_agent.network.sdn import SdnNetwork
from sdn.drivers.ovsdb import Ovsdb, PutBridge, RemovePort
from sdn.model.host import Bridge, Port
from tests.testbed.namespaces import inside
from tests.testbed.netns.cluster import NetnsCluster, bench_lab

ROUNDS, BURSTS, IN_FLIGHT, CROWD = 20, 5, 20, 100
IDLE_SECONDS = 30
PING_SECONDS = 0.005
UP = 1  # IFF_UP
FLOOR_BRIDGE = Bridge("floor", datapath_type="netdev", fail_mode="secure")
FLOOR = "veth + port, bare"


def measure(say: Callable[[str], None]) -> list[Measurement]:
    """Measure one at a time and many in flight, on an empty node and on a full one."""
    with NetnsCluster(bench_lab(2), with_sdn=1) as cluster:
        names = [f"one{number}" for number in range(IN_FLIGHT)] + [f"crowd{number}" for number in range(CROWD)]
        say(f"{len(names)} network namespaces")
        spaces = cluster.add_namespaces(names)
        lab_node, bare = cluster.lab.nodes
        figures = asyncio.run(_measure(lab_node, bare, spaces[:IN_FLIGHT], spaces[IN_FLIGHT:], say))
        say(f"{IDLE_SECONDS} s of idleness with {CROWD} pods")
        daemon = cluster.process(f"{cluster.lab.nodes[0].name} sdn")
        before = daemon.cpu_times()
        time.sleep(IDLE_SECONDS)
        after = daemon.cpu_times()
        busy = (after.user + after.system - before.user - before.system) / IDLE_SECONDS * 100
        return [
            *figures,
            Measurement(f"podlane-sdn, resident, {CROWD} pods", "MB", (daemon.memory_info().rss / 1e6,), "60 MB"),
            Measurement(f"podlane-sdn, idle, {CROWD} pods", "% of a core", (busy,), "0.5 %"),
        ]


async def _measure(
    lab_node: LabNode, bare: LabNode, spaces: list[str], crowd: list[str], say: Callable[[str], None]
) -> list[Measurement]:
    async with SdnNetwork(f"{lab_node.root}/sdn.sock") as network, _floor(bare) as floor:
        pods = Pods(network)
        target = await pods.attach(crowd[0])
        await floor.attach([crowd[0]])
        say(f"{ROUNDS} attachments in turn, {BURSTS} bursts of {IN_FLIGHT}, empty node")
        figures = await _rounds(pods, floor, spaces, target, "empty node", ("12 ms", "150/s"))
        await floor.attach(crowd[1:])
        for begin in range(1, CROWD, IN_FLIGHT):
            await asyncio.gather(*(pods.attach(space) for space in crowd[begin : begin + IN_FLIGHT]))
        say(f"the same with {CROWD} pods")
        figures += await _rounds(pods, floor, spaces, target, f"{CROWD} pods", ("25 ms", "100/s"))
    return figures


class Pods:
    """Network namespaces as sandboxes of one node."""

    def __init__(self, network: SdnNetwork) -> None:
        self._network = network

    async def attach(self, space: str) -> IPv4Address:
        request = AttachRequest(
            sandbox=space, netns=f"/run/netns/{space}", namespace="default", name=space, runtime=CNI
        )
        return IPv4Interface((await self._network.attach(request)).ip).ip

    async def detach(self, space: str) -> None:
        await self._network.detach(space)

    @staticmethod
    def attach_all(node: LabNode, spaces: list[str]) -> list[IPv4Address]:
        """Attach these namespaces to a node, and return their addresses."""

        async def attaching() -> list[IPv4Address]:
            async with SdnNetwork(f"{node.root}/sdn.sock") as network:
                return [await Pods(network).attach(space) for space in spaces]

        return asyncio.run(attaching())


class Floor:
    """The minimal cost of a port: one request to the kernel, and one transaction of the database."""

    def __init__(self, kernel: AsyncIPRoute, database: Ovsdb) -> None:
        self._kernel = kernel
        self._database = database

    async def attach(self, spaces: list[str]) -> None:
        await asyncio.gather(*(self._link(space) for space in spaces))
        ports = tuple(Port(device_in(space)) for space in spaces)
        await self._database.apply((PutBridge(Bridge("floor", "netdev", "secure", ports=ports)),))

    async def _link(self, space: str) -> None:
        netns = os.open(f"/run/netns/{space}", os.O_RDONLY)
        try:
            inside_pod = {"ifname": "floor0", "net_ns_fd": netns}
            await self._kernel.link("add", ifname=device_in(space), kind="veth", flags=UP, change=UP, peer=inside_pod)
        finally:
            os.close(netns)

    async def detach(self, spaces: list[str]) -> None:
        await self._database.apply(tuple(RemovePort("floor", device_in(space)) for space in spaces))
        for space in spaces:
            await self._kernel.link("del", ifname=device_in(space))


def device_in(space: str) -> str:
    """Return a name for the host's end of a namespace's veth pair."""
    return "v" + space.rpartition("-")[2]


@contextlib.asynccontextmanager
async def _floor(node: LabNode) -> AsyncIterator[Floor]:
    with inside(node.namespace):
        endpoint = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    database = Ovsdb(node.ovs / "db.sock", lambda: None)
    try:
        async with AsyncIPRoute(use_socket=endpoint) as kernel:
            await database.apply((PutBridge(FLOOR_BRIDGE),))
            yield Floor(kernel, database)
    finally:
        await database.close()


@dataclass(slots=True)
class Times:
    """In milliseconds, but for the rates of bursts, in pods a second."""

    answered: list[float]
    pinged: list[float]
    detached: list[float]
    floor: list[float]
    floor_detached: list[float]
    rate: list[float]
    floor_rate: list[float]


async def _rounds(
    pods: Pods, floor: Floor, spaces: list[str], target: IPv4Address, where: str, budgets: tuple[str, str]
) -> list[Measurement]:
    times = Times([], [], [], [], [], [], [])
    for number in range(ROUNDS):
        await _measure_pod(pods, floor, spaces[number % len(spaces)], target, times)
    for _ in range(BURSTS):
        await _burst(pods, floor, spaces, times)
    single, many = budgets
    answered, pinged, detached = tuple(times.answered), tuple(times.pinged), tuple(times.detached)
    flight = f"attach, {len(spaces)} in flight, {where}"
    return [
        Measurement(f"attach, {where}: answered", "ms", answered, single, FLOOR, tuple(times.floor)),
        Measurement(f"attach, {where}: first ping answered", "ms", pinged, single, FLOOR, tuple(times.floor)),
        Measurement(f"detach, {where}", "ms", detached, "", FLOOR, tuple(times.floor_detached)),
        Measurement(flight, "pods/s", tuple(times.rate), many, FLOOR, tuple(times.floor_rate)),
    ]


async def _measure_pod(pods: Pods, floor: Floor, space: str, target: IPv4Address, times: Times) -> None:
    with _echo_socket(space) as wire:
        begin = time.perf_counter()
        await pods.attach(space)
        times.answered.append(_since(begin))
        await _ping(wire, target)
        times.pinged.append(_since(begin))
    begin = time.perf_counter()
    await pods.detach(space)
    times.detached.append(_since(begin))
    begin = time.perf_counter()
    await floor.attach([space])
    times.floor.append(_since(begin))
    begin = time.perf_counter()
    await floor.detach([space])
    times.floor_detached.append(_since(begin))


async def _burst(pods: Pods, floor: Floor, spaces: list[str], times: Times) -> None:
    begin = time.perf_counter()
    await asyncio.gather(*map(pods.attach, spaces))
    times.rate.append(len(spaces) / _since(begin) * 1000)
    await asyncio.gather(*map(pods.detach, spaces))
    begin = time.perf_counter()
    await floor.attach(spaces)
    times.floor_rate.append(len(spaces) / _since(begin) * 1000)
    await floor.detach(spaces)


def _since(begin: float) -> float:
    return (time.perf_counter() - begin) * 1000


def _echo_socket(space: str) -> socket.socket:
    with inside(space):
        wire = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    wire.setblocking(False)
    return wire


async def _ping(wire: socket.socket, target: IPv4Address) -> None:
    """Send pings until the target answers."""
    loop = asyncio.get_running_loop()
    while True:
        wire.sendto(echo_request(), (str(target), 0))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PING_SECONDS):
                while (await loop.sock_recv(wire, 256))[20] != 0:  # the type behind the IP header: 0 is a reply
                    pass
                return


def echo_request(number: int = 1) -> bytes:
    """Return an echo request with this sequence number."""
    identifier = os.getpid() & 0xFFFF
    total = sum(struct.unpack("!4H", struct.pack("!BBHHH", 8, 0, 0, identifier, number)))
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!BBHHH", 8, 0, ~total & 0xFFFF, identifier, number)

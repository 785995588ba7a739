"""Attaching of pods through sdn.sock, compared with a bare veth and Open vSwitch port on another node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface

from pyroute2 import AsyncIPRoute

from api.network.attach import CNI, AttachRequest
from bench.measurement import Measure, Measurement, Progress, at_floor
from lab.topology import LabNode
from node_agent.network.sdn import SdnNetwork
from sdn.drivers.ovsdb import Ovsdb, PutBridge, RemovePort
from sdn.model.host import Bridge, Port
from tests.testbed.namespaces import inside
from tests.testbed.netns.cluster import NetnsCluster, bench_lab

PING_SECONDS = 0.005
UP = 1  # IFF_UP
FLOOR_BRIDGE = Bridge("floor", datapath_type="netdev", fail_mode="secure")
FLOOR = "veth + port, bare"


@dataclass(frozen=True, slots=True)
class Size:
    """How many pods the node has in turn (at least 1, which answers pings), how many pods are then attached one at a
    time, and how many bursts of so many in flight.
    """

    crowds: tuple[int, ...]
    rounds: int
    bursts: int
    in_flight: int


# 480 pods and 20 in flight: a node has 509 addresses.
FULL = Size(crowds=(1, 100, 480), rounds=20, bursts=5, in_flight=20)
SMALLEST = Size(crowds=(1, 3), rounds=1, bursts=1, in_flight=2)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Measure one pod at a time and many in flight, on a node with an increasing number of pods."""
    with NetnsCluster(bench_lab(2), with_sdn=1) as cluster:
        single = [f"one{number}" for number in range(size.in_flight)]
        crowd = [f"crowd{number}" for number in range(size.crowds[-1])]
        progress(f"{len(single) + len(crowd)} network namespaces")
        namespaces = cluster.add_namespaces([*single, *crowd])
        lab_node, bare = cluster.lab.nodes
        return asyncio.run(
            _measure(size, lab_node, bare, namespaces[: len(single)], namespaces[len(single) :], progress)
        )


MEASURE = Measure("pods attached through sdn.sock, beside a bare veth and Open vSwitch port", measure, FULL, SMALLEST)


async def _measure(
    size: Size, lab_node: LabNode, bare: LabNode, spaces: list[str], crowd: list[str], progress: Progress
) -> list[Measurement]:
    figures: list[Measurement] = []
    async with SdnNetwork(f"{lab_node.root}/sdn.sock") as network, _floor(bare) as floor:
        pods = Pods(network)
        target = await pods.attach(crowd[0])
        await floor.attach([crowd[0]])
        attached = 1
        for count in size.crowds:
            for begin in range(attached, count, size.in_flight):
                new = crowd[begin : min(begin + size.in_flight, count)]
                await floor.attach(new)  # No more at once: the answers of the kernel must fit into the socket.
                await asyncio.gather(*map(pods.attach, new))
            attached = count
            progress(f"{count} pods: {size.rounds} in turn, {size.bursts} bursts of {size.in_flight}")
            figures += await _rounds(size, pods, floor, spaces, target, "empty node" if count == 1 else f"{count} pods")
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
    size: Size, pods: Pods, floor: Floor, spaces: list[str], target: IPv4Address, where: str
) -> list[Measurement]:
    times = Times([], [], [], [], [], [], [])
    for number in range(size.rounds):
        await _measure_pod(pods, floor, spaces[number % len(spaces)], target, times)
    for _ in range(size.bursts):
        await _burst(pods, floor, spaces, times)
    answered, pinged, detached = tuple(times.answered), tuple(times.pinged), tuple(times.detached)
    flight = f"attach, {len(spaces)} in flight, {where}"
    return [
        Measurement(f"attach, {where}: answered", "ms", answered, at_floor(1.6), FLOOR, tuple(times.floor)),
        Measurement(f"attach, {where}: first ping answered", "ms", pinged, None, FLOOR, tuple(times.floor)),
        Measurement(f"detach, {where}", "ms", detached, at_floor(1.1), FLOOR, tuple(times.floor_detached)),
        Measurement(flight, "pods/s", tuple(times.rate), at_floor(0.5), FLOOR, tuple(times.floor_rate)),
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

"""Services for callers outside of pods: all at once, one changed, a first packet; beside kube-proxy's way.

Everything happens in a network namespace of its own, where the backends' addresses are the namespace's own, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

from bench import kube_proxy
from bench.bare import inside
from bench.figures import Figure
from lab.command import run
from sdn.drivers.nft import Nft
from sdn.services.host import HostServices
from sdn.services.maps import TABLE, Host
from sdn.services.served_port import Backend, PortChange, PortKey, Protocol, ServedPort

ENDPOINTS = 10
PORT = 8080
CHANGES, PACKETS = 50, 2000
NODE = IPv4Address("10.245.2.3")
SERVICES, PODS = IPv4Network("172.30.0.0/16"), IPv4Network("10.128.0.0/14")
HOST = Host(NODE, IPv4Network("10.128.0.0/23"), SERVICES, frozenset({NODE}), (30000, 32767))
_GONE = f"add table ip {TABLE}\ndelete table ip {TABLE}\n"
RIVALS = {1000: 3, 10000: 0}
"""How often kube-proxy's rules are loaded for so many services: for 10,000 it took them minutes."""


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Load 1,000 and 10,000 services of 10 endpoints, change one of them, and send first packets to some."""
    figures: list[Figure] = []
    packets: dict[int, tuple[float, ...]] = {}
    with _namespace() as namespace:
        for count in (1, *RIVALS):
            say(f"{count:,} services of {ENDPOINTS} endpoints")
            ports = [_port(number) for number in range(count)]
            with inside(namespace):
                found, packets[count] = asyncio.run(_ours(ports, namespace))
            rivals = _theirs(ports, namespace, RIVALS.get(count, 0), say)
            if count > 1:
                figures += _beside(count, found, rivals)
            if rivals.packets:
                figures.append(
                    Figure(
                        f"first packet to one of {count:,} services",
                        "µs",
                        packets[count],
                        floor="kube-proxy's iptables rules",
                        floor_samples=rivals.packets,
                    )
                )
    largest = max(packets)
    figures.append(
        Figure(
            f"first packet to one of {largest:,} services",
            "µs",
            packets[largest],
            "flat",
            "with 1 service",
            packets[1],
        )
    )
    return figures


def _beside(count: int, found: _Samples, rivals: _Samples) -> list[Figure]:
    floor = "iptables-restore as kube-proxy" if rivals.loads else ""
    name = f"{count:,} services of {ENDPOINTS} endpoints in the firewall"
    few = "3" if count == max(RIVALS) else ""
    return [
        Figure(name, "s", found.loads, few and "3 s", floor, rivals.loads),
        Figure(f"{name}: one changed", "ms", found.changes, few and "10 ms", floor, rivals.changes),
    ]


class _Samples:
    """Seconds to load all, milliseconds to change one, microseconds until the answer to a first packet."""

    def __init__(self) -> None:
        self.loads: tuple[float, ...] = ()
        self.changes: tuple[float, ...] = ()
        self.packets: tuple[float, ...] = ()


async def _ours(ports: list[ServedPort], namespace: str) -> tuple[_Samples, tuple[float, ...]]:
    found = _Samples()
    services = HostServices(nft := Nft(), lambda: None)
    await services.open()
    try:
        loads, changes = [], []
        for _ in range(3):
            await nft.apply(_GONE)
            begin = time.perf_counter()
            await services.replace(HOST, ports)
            loads.append(time.perf_counter() - begin)
        for _ in range(CHANGES):
            number = random.randrange(len(ports))
            change = PortChange((ports[number],), (_changed(ports[number]),))
            begin = time.perf_counter()
            await services.edit(HOST, change)
            changes.append((time.perf_counter() - begin) * 1000)
            ports[number] = change.come[0]
        found.loads, found.changes = tuple(loads), tuple(changes)
        return found, _first_packets(ports, namespace)
    finally:
        await nft.apply(_GONE)
        services.close()
        nft.close()


def _theirs(ports: list[ServedPort], namespace: str, times: int, say: Callable[[str], None]) -> _Samples:
    found = _Samples()
    if not times:
        return found
    loads, changes = [], []
    for turn in range(times):
        say(f"the same as kube-proxy does it, {turn + 1} of {times}")
        kube_proxy.clear(namespace)
        begin = time.perf_counter()
        kube_proxy.restore(namespace, kube_proxy.whole(ports))
        loads.append(time.perf_counter() - begin)
    for _ in range(10):
        number = random.randrange(len(ports))
        before, ports[number] = ports[number], _changed(ports[number])
        begin = time.perf_counter()
        kube_proxy.restore(namespace, kube_proxy.one(ports, before, ports[number]))
        changes.append((time.perf_counter() - begin) * 1000)
    found.loads, found.changes = tuple(loads), tuple(changes)
    found.packets = _first_packets(ports, namespace)
    kube_proxy.clear(namespace)
    return found


def _port(number: int) -> ServedPort:
    first = int(PODS.network_address) + 2 + number * ENDPOINTS
    backends = tuple(Backend(IPv4Address(first + each), PORT) for each in range(ENDPOINTS))
    address = SERVICES.network_address + 1 + number
    key = PortKey("bench", f"service-{number}", "", Protocol.UDP)
    return ServedPort(key, 10, address, 80, inside=backends, everywhere=backends, outside=backends)


def _changed(port: ServedPort) -> ServedPort:
    """One endpoint goes, another comes."""
    last = port.inside[-1].address
    backends = (*port.inside[1:], Backend(last + 1 if last < PODS.broadcast_address - 1 else last - 1, PORT))
    return replace(port, inside=backends, everywhere=backends, outside=backends)


@contextlib.contextmanager
def _namespace() -> Iterator[str]:
    name = f"podbnch-services-{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        for words in (
            ("link", "set", "lo", "up"),
            ("link", "add", "tun0", "type", "bridge"),
            ("link", "set", "tun0", "up"),
            ("addr", "add", "10.128.0.1/32", "dev", "tun0"),
            ("route", "add", str(SERVICES), "dev", "tun0"),
            ("route", "add", "local", str(PODS), "dev", "lo"),
        ):
            run("ip", "-n", name, *words)
        yield name
    finally:
        run("ip", "netns", "del", name)


def _first_packets(ports: list[ServedPort], namespace: str) -> tuple[float, ...]:
    """Each from a new socket, to a service by chance, until it is there."""
    samples = []
    with inside(namespace), socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("", PORT))
        for _ in range(PACKETS):
            port = random.choice(ports)
            with socket.socket(type=socket.SOCK_DGRAM) as client:
                begin = time.perf_counter()
                client.sendto(b"x", (str(port.cluster_ip), port.port))
                assert select.select([server], [], [], 5.0)[0], "a packet to a service does not arrive"
                samples.append((time.perf_counter() - begin) * 1e6)
            server.recv(16)
    return tuple(samples)

"""Services in firewall and switch: the load of all, a change of one, and a first packet, compared with kube-proxy.

The firewall is in a separate network namespace, which has the backends' addresses too.
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
from pathlib import Path

from bench import baseline_kube_proxy
from bench.measurement import Measurement
from lab.process import run
from reconcile.malloc import gc_paused
from sdn.drivers.nftables import Nftables
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.model.flow import FlowSet
from sdn.model.host import BRIDGE
from sdn.model.service_port import (
    EndpointInfo,
    Protocol,
    ProxyMode,
    ServicePortChange,
    ServicePortInfo,
    ServicePortName,
)
from sdn.pipeline.flows import BRIDGE_LAYOUT, Partition
from sdn.proxy.nftables import TABLE
from sdn.proxy.nftables_backend import NftablesBackend
from sdn.proxy.openflow_backend import OpenFlowBackend
from sdn.proxy.proxier import ProxyBackend
from sdn.proxy.service_ports import ProxyConfig
from sdn.topology import VXLAN_PORT, Node
from tests.testbed.namespaces import inside
from tests.testbed.netns.cluster import NetnsCluster, bench_lab
from tests.testbed.wait import wait_until

ENDPOINTS = 10
PORT = 8080
CHANGES, PACKETS = 50, 2000
NODE = IPv4Address("10.245.2.3")
SERVICES, PODS = IPv4Network("172.30.0.0/16"), IPv4Network("10.128.0.0/14")
CONFIG = ProxyConfig(
    node=Node("bench", NODE, IPv4Network("10.128.0.0/23")),
    cluster_networks=(PODS,),
    service_network=SERVICES,
    node_port_range=(30000, 32767),
    vnids=None,
    node_ips=frozenset({NODE}),
    vxlan_port=VXLAN_PORT,
)
_GONE = f"add table ip {TABLE}\ndelete table ip {TABLE}\n"
RIVALS = {1000: 3, 10000: 0}
"""How often kube-proxy's rules are loaded for so many services: for 10,000 it took them minutes."""


def measure(say: Callable[[str], None]) -> list[Measurement]:
    """Load 1,000 and 10,000 services of 10 endpoints, change one of them, and send first packets to some."""
    figures: list[Measurement] = []
    packets: dict[int, tuple[float, ...]] = {}
    with _namespace() as namespace, NetnsCluster(bench_lab(1)) as cluster:
        node = cluster.lab.nodes[0]
        cluster.kill(f"{node.name} sdn")
        for count in (1, *RIVALS):
            say(f"{count:,} services of {ENDPOINTS} endpoints")
            ports = [_port(number) for number in range(count)]
            with inside(namespace):
                samples, packets[count] = asyncio.run(_ours(ports, namespace, node.ovs / f"{BRIDGE}.mgmt"))
            rivals = _theirs(ports, namespace, RIVALS.get(count, 0), say)
            if count > 1:
                figures += _beside(count, samples, rivals)
            if rivals.packets:
                figures.append(
                    Measurement(
                        f"first packet to one of {count:,} services",
                        "µs",
                        packets[count],
                        floor="kube-proxy's iptables rules",
                        floor_samples=rivals.packets,
                    )
                )
    largest = max(packets)
    figures.append(
        Measurement(
            f"first packet to one of {largest:,} services",
            "µs",
            packets[largest],
            "flat",
            "with 1 service",
            packets[1],
        )
    )
    return figures


def _beside(count: int, samples: _Samples, rivals: _Samples) -> list[Measurement]:
    floor = "iptables-restore as kube-proxy" if rivals.loads else ""
    name = f"{count:,} services of {ENDPOINTS} endpoints in the firewall"
    few = "3" if count == max(RIVALS) else ""
    return [
        Measurement(name, "s", samples.loads, floor=floor, floor_samples=rivals.loads),
        Measurement(f"{name}: one changed", "ms", samples.changes, floor=floor, floor_samples=rivals.changes),
        Measurement(f"{name} and the switch", "s", samples.both_loads, few and "3 s"),
        Measurement(f"{name} and the switch: one changed", "ms", samples.both_changes, few and "10 ms"),
    ]


class _Samples:
    """The seconds to load all services, the milliseconds to change one, and the microseconds of a first packet. `both_`
    are those of the firewall and the switch together.
    """

    def __init__(self) -> None:
        self.loads: tuple[float, ...] = ()
        self.changes: tuple[float, ...] = ()
        self.packets: tuple[float, ...] = ()
        self.both_loads: tuple[float, ...] = ()
        self.both_changes: tuple[float, ...] = ()


async def _ours(ports: list[ServicePortInfo], namespace: str, bridge: Path) -> tuple[_Samples, tuple[float, ...]]:
    samples = _Samples()
    firewall = NftablesBackend(nft := Nftables(), lambda: None)
    openflow = OpenFlowClient(bridge, BRIDGE_LAYOUT, lambda: None)
    await firewall.open()
    try:
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(openflow.run())
            await asyncio.to_thread(wait_until, lambda: openflow.connected, "the switch")
            samples.loads, samples.changes = await _measured(ports, nft, [firewall], openflow)
            both: list[ProxyBackend] = [firewall, OpenFlowBackend(openflow, ProxyMode.NFTABLES)]
            samples.both_loads, samples.both_changes = await _measured(ports, nft, both, openflow)
            serving.cancel()
        return samples, _first_packets(ports, namespace)
    finally:
        await nft.run(_GONE)
        await firewall.close()
        nft.close()


async def _measured(
    ports: list[ServicePortInfo], nft: Nftables, backends: list[ProxyBackend], openflow: OpenFlowClient
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure loads and changes by the code of the daemon."""
    loads, changes = [], []
    for _ in range(3):
        await nft.run(_GONE)
        await openflow.sync(Partition.SERVICE, FlowSet())
        begin = time.perf_counter()
        with gc_paused():
            await asyncio.gather(*(backend.sync(CONFIG, ports) for backend in backends))
        loads.append(time.perf_counter() - begin)
    for _ in range(CHANGES):
        number = random.randrange(len(ports))
        change = ServicePortChange((ports[number],), (_changed(ports[number]),))
        begin = time.perf_counter()
        await asyncio.gather(*(backend.update(CONFIG, change) for backend in backends))
        changes.append((time.perf_counter() - begin) * 1000)
        ports[number] = change.added[0]
    return tuple(loads), tuple(changes)


def _theirs(ports: list[ServicePortInfo], namespace: str, times: int, say: Callable[[str], None]) -> _Samples:
    samples = _Samples()
    if not times:
        return samples
    loads, changes = [], []
    for turn in range(times):
        say(f"the same as kube-proxy does it, {turn + 1} of {times}")
        baseline_kube_proxy.clear(namespace)
        begin = time.perf_counter()
        baseline_kube_proxy.restore(namespace, baseline_kube_proxy.whole(ports))
        loads.append(time.perf_counter() - begin)
    for _ in range(10):
        number = random.randrange(len(ports))
        before, ports[number] = ports[number], _changed(ports[number])
        begin = time.perf_counter()
        baseline_kube_proxy.restore(namespace, baseline_kube_proxy.changed(ports, before, ports[number]))
        changes.append((time.perf_counter() - begin) * 1000)
    samples.loads, samples.changes = tuple(loads), tuple(changes)
    samples.packets = _first_packets(ports, namespace)
    baseline_kube_proxy.clear(namespace)
    return samples


def _port(number: int) -> ServicePortInfo:
    first = int(PODS.network_address) + 2 + number * ENDPOINTS
    backends = tuple(EndpointInfo(IPv4Address(first + each), PORT) for each in range(ENDPOINTS))
    address = SERVICES.network_address + 1 + number
    key = ServicePortName("bench", f"service-{number}", "", Protocol.UDP)
    return ServicePortInfo(
        key=key,
        vnid=10,
        cluster_ip=address,
        port=80,
        internal_endpoints=backends,
        cluster_endpoints=backends,
        external_endpoints=backends,
    )


def _changed(port: ServicePortInfo) -> ServicePortInfo:
    """Return the port with one endpoint replaced."""
    last = port.internal_endpoints[-1].address
    backends = (
        *port.internal_endpoints[1:],
        EndpointInfo(last + 1 if last < PODS.broadcast_address - 1 else last - 1, PORT),
    )
    return replace(port, internal_endpoints=backends, cluster_endpoints=backends, external_endpoints=backends)


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


def _first_packets(ports: list[ServicePortInfo], namespace: str) -> tuple[float, ...]:
    """Return the times of first packets from new sockets to random services."""
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

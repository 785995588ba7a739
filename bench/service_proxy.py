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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from bench import baseline_kube_proxy
from bench.measurement import Budget, Measure, Measurement, Progress, at_floor
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


@dataclass(frozen=True, slots=True)
class Size:
    """Two or more numbers of services. They are loaded `loads` times, then `changes` of them are changed, and `packets`
    first packets are sent. The first number is loaded by the rules of kube-proxy, too; the last one would take minutes.
    """

    services: tuple[int, ...]
    loads: int
    changes: int
    packets: int


FULL = Size(services=(1000, 10_000), loads=3, changes=50, packets=2000)
SMALLEST = Size(services=(2, 3), loads=1, changes=1, packets=1)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Load services of 10 endpoints, change one of them, and send first packets to some."""
    figures: list[Measurement] = []
    packets: dict[int, tuple[float, ...]] = {}
    with _namespace() as namespace, NetnsCluster(bench_lab(1)) as cluster:
        node = cluster.lab.nodes[0]
        cluster.kill(f"{node.name} sdn")
        for count in (1, *size.services):
            progress(f"{count:,} services of {ENDPOINTS} endpoints")
            ports = [_port(number) for number in range(count)]
            with inside(namespace):
                samples, packets[count] = asyncio.run(_ours(size, ports, namespace, node.ovs / f"{BRIDGE}.mgmt"))
            rivals = _theirs(size, ports, namespace, progress) if count == size.services[0] else _Samples()
            if count > 1:
                figures += _beside(count, samples, rivals, with_budget=count == size.services[-1])
            if rivals.packets:
                figures.append(
                    Measurement(
                        f"first packet to one of {count:,} services",
                        "µs",
                        packets[count],
                        peer="kube-proxy's iptables rules",
                        peer_samples=rivals.packets,
                    )
                )
    largest = max(packets)
    figures.append(
        Measurement(
            f"first packet to one of {largest:,} services",
            "µs",
            packets[largest],
            at_floor(1.3),
            "with 1 service",
            packets[1],
        )
    )
    return figures


MEASURE = Measure("services in firewall and switch, beside kube-proxy's iptables rules", measure, FULL, SMALLEST)


def _beside(count: int, samples: _Samples, rivals: _Samples, *, with_budget: bool) -> list[Measurement]:
    peer = "iptables-restore as kube-proxy" if rivals.loads else ""
    name = f"{count:,} services of {ENDPOINTS} endpoints in the firewall"
    load, change = (Budget(1.5), Budget(4)) if with_budget else (None, None)
    return [
        Measurement(name, "s", samples.loads, peer=peer, peer_samples=rivals.loads),
        Measurement(f"{name}: one changed", "ms", samples.changes, peer=peer, peer_samples=rivals.changes),
        Measurement(f"{name} and the switch", "s", samples.both_loads, load),
        Measurement(f"{name} and the switch: one changed", "ms", samples.both_changes, change),
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


async def _ours(
    size: Size, ports: list[ServicePortInfo], namespace: str, bridge: Path
) -> tuple[_Samples, tuple[float, ...]]:
    samples = _Samples()
    firewall = NftablesBackend(nft := Nftables(), lambda: None)
    openflow = OpenFlowClient(bridge, BRIDGE_LAYOUT, lambda: None)
    await firewall.open()
    try:
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(openflow.run())
            await asyncio.to_thread(wait_until, lambda: openflow.connected, "the switch")
            samples.loads, samples.changes = await _measured(size, ports, nft, [firewall], openflow)
            both: list[ProxyBackend] = [firewall, OpenFlowBackend(openflow, ProxyMode.NFTABLES)]
            samples.both_loads, samples.both_changes = await _measured(size, ports, nft, both, openflow)
            serving.cancel()
        return samples, _first_packets(ports, namespace, size.packets)
    finally:
        await nft.run(_GONE)
        await firewall.close()
        nft.close()


async def _measured(
    size: Size, ports: list[ServicePortInfo], nft: Nftables, backends: list[ProxyBackend], openflow: OpenFlowClient
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure loads and changes by the code of the daemon."""
    loads, changes = [], []
    for _ in range(size.loads):
        await nft.run(_GONE)
        await openflow.sync(Partition.SERVICE, FlowSet())
        begin = time.perf_counter()
        with gc_paused():
            await asyncio.gather(*(backend.sync(CONFIG, ports) for backend in backends))
        loads.append(time.perf_counter() - begin)
    for _ in range(size.changes):
        number = random.randrange(len(ports))
        change = ServicePortChange((ports[number],), (_changed(ports[number]),))
        begin = time.perf_counter()
        await asyncio.gather(*(backend.update(CONFIG, change) for backend in backends))
        changes.append((time.perf_counter() - begin) * 1000)
        ports[number] = change.added[0]
    return tuple(loads), tuple(changes)


def _theirs(size: Size, ports: list[ServicePortInfo], namespace: str, progress: Progress) -> _Samples:
    samples = _Samples()
    loads, changes = [], []
    for turn in range(size.loads):
        progress(f"the same as kube-proxy does it, {turn + 1} of {size.loads}")
        baseline_kube_proxy.clear(namespace)
        begin = time.perf_counter()
        baseline_kube_proxy.restore(namespace, baseline_kube_proxy.whole(ports))
        loads.append(time.perf_counter() - begin)
    for _ in range(min(10, size.changes)):
        number = random.randrange(len(ports))
        before, ports[number] = ports[number], _changed(ports[number])
        begin = time.perf_counter()
        baseline_kube_proxy.restore(namespace, baseline_kube_proxy.changed(ports, before, ports[number]))
        changes.append((time.perf_counter() - begin) * 1000)
    samples.loads, samples.changes = tuple(loads), tuple(changes)
    samples.packets = _first_packets(ports, namespace, size.packets)
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


def _first_packets(ports: list[ServicePortInfo], namespace: str, count: int) -> tuple[float, ...]:
    """Return the times of first packets from new sockets to random services."""
    samples = []
    with inside(namespace), socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("", PORT))
        for _ in range(count):
            port = random.choice(ports)
            with socket.socket(type=socket.SOCK_DGRAM) as client:
                begin = time.perf_counter()
                client.sendto(b"x", (str(port.cluster_ip), port.port))
                assert select.select([server], [], [], 5.0)[0], "a packet to a service does not arrive"
                samples.append((time.perf_counter() - begin) * 1e6)
            server.recv(16)
    return tuple(samples)

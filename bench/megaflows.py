"""How many entries the switch's fast path needs when many pods talk to many others, and to services.

An entry that depends on what a packet does not need, such as a port or the state of a connection, is needed several
times for one pair of pods. Each further entry is an upcall to ovs-vswitchd, memory, and work at each revalidation.
"""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from bench.measurement import Budget, Measure, Measurement, Progress
from bench.pod_attach import Pods
from lab.topology import LabNode
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.model.host import BRIDGE
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.pipeline.flows import BRIDGE_LAYOUT, Partition
from sdn.pipeline.service import ServiceFlows
from sdn.topology import GLOBAL_VNID, Node
from tests.testbed.namespaces import inside
from tests.testbed.netns.cluster import NetnsCluster, bench_lab
from tests.testbed.wait import wait_until

PORT, SERVICE_PORT = 7777, 80
SERVICES_OF_A_PROJECT, ENDPOINTS = 10, 3
SERVICE_NETWORK, ELSEWHERE = IPv4Network("172.30.0.0/16"), IPv4Network("10.131.0.0/16")

Talk = Callable[[IPv4Address, int], None]


@dataclass(frozen=True, slots=True)
class Size:
    """How many pods talk to each other, and how many services with other endpoints there are."""

    pods: int
    services: int


FULL = Size(pods=21, services=1000)
SMALLEST = Size(pods=2, services=2)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Send from every pod to every other one, by UDP from many ports, by TCP and by ping: on one node, then on two."""
    pods, half = size.pods, size.pods // 2
    pairs = half * (half - 1) + 2 * half * half
    there = f"{half} pods each to {half - 1} here and {half} on another node"
    return [
        *_count((pods,), size.services, f"{pods} pods each to {pods - 1}", pods * (pods - 1), progress),
        *_count((half, half), size.services, there, pairs, progress),
    ]


MEASURE = Measure("flows of the datapath while many pods talk to many others, and to services", measure, FULL, SMALLEST)


def _count(pods: tuple[int, ...], services: int, name: str, pairs: int, progress: Progress) -> list[Measurement]:
    """So many pods on each node; the flows of the first, which sees `pairs` ordered pairs."""
    figures: list[Measurement] = []
    with NetnsCluster(bench_lab(len(pods))) as cluster:
        nodes, spaces, addresses = cluster.lab.nodes, list[str](), list[IPv4Address]()
        for node, count in zip(nodes, pods, strict=True):
            here = cluster.add_namespaces([f"m{len(spaces) + number}" for number in range(count)])
            addresses += Pods.attach_all(node, here)
            spaces += here
        listening = [_listener(space, kind) for space in spaces for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)]

        def count_flows(what: str, talk: Talk, targets: list[IPv4Address], port: int, budget: Budget | None) -> None:
            progress(f"{what} between {len(spaces)} pods")
            _appctl(nodes[0], "revalidator/purge")
            _everyone(spaces, targets, port, talk)
            flows = sum("in_port" in flow for flow in _appctl(nodes[0], "dpctl/dump-flows").splitlines())
            figures.append(Measurement(f"megaflows, {name}, {what}", "flows", (float(flows),), budget))

        budget = Budget(pairs + sum(pods))
        count_flows("first contact (ARP too)", _udp, addresses, PORT, budget)
        for count in (0, services):
            if count:
                for node in nodes:
                    cluster.kill(f"{node.name} sdn")  # It would remove these services.
                    load_services(node, _services_elsewhere(services))
            for protocol, talk in (("UDP", _udp), ("TCP", _tcp), ("ICMP", _icmp)):
                count_flows(f"{protocol}, {count:,} services", talk, addresses, PORT, budget)
        for node in nodes:
            load_services(node, (*_services_elsewhere(services), *_services_of(addresses)))
        frontends = [SERVICE_NETWORK[-2 - number] for number in range(len(addresses))]
        for protocol, talk in (("UDP", _udp), ("TCP", _tcp)):
            count_flows(f"{protocol} to a service of each other pod", talk, frontends, SERVICE_PORT, None)
        for sock in listening:
            sock.close()
    return figures


def _services_elsewhere(count: int) -> tuple[ServicePortInfo, ...]:
    """Return services of many projects, also of the pods' own, with endpoints on other nodes."""
    return tuple(
        service_port(
            f"elsewhere-{number}",
            number // SERVICES_OF_A_PROJECT,
            SERVICE_NETWORK[1 + number],
            tuple(ELSEWHERE[number * ENDPOINTS + each] for each in range(ENDPOINTS)),
            8080,
            Protocol.TCP,
        )
        for number in range(count)
    )


def _services_of(addresses: list[IPv4Address]) -> tuple[ServicePortInfo, ...]:
    return tuple(
        service_port(f"of-pod-{number}", GLOBAL_VNID, SERVICE_NETWORK[-2 - number], (address,), PORT, protocol)
        for number, address in enumerate(addresses)
        for protocol in (Protocol.UDP, Protocol.TCP)
    )


def service_port(
    name: str, vnid: int, cluster_ip: IPv4Address, addresses: tuple[IPv4Address, ...], port: int, protocol: Protocol
) -> ServicePortInfo:
    """Return a service port of SERVICE_PORT, with these endpoints."""
    endpoints = tuple(EndpointInfo(address, port) for address in addresses)
    return ServicePortInfo(
        key=ServicePortName("bench", name, "", protocol),
        vnid=vnid,
        cluster_ip=cluster_ip,
        port=SERVICE_PORT,
        internal_endpoints=endpoints,
        cluster_endpoints=endpoints,
    )


def load_services(node: LabNode, ports: tuple[ServicePortInfo, ...]) -> None:
    """Replace the services in a node's switch."""

    async def load() -> None:
        client = OpenFlowClient(node.ovs / f"{BRIDGE}.mgmt", BRIDGE_LAYOUT, lambda: None)
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(client.run())
            await asyncio.to_thread(wait_until, lambda: client.connected, "the switch")
            flows = ServiceFlows(Node(node.name, node.address, IPv4Network("10.128.0.0/23"))).sync(ports)
            await client.sync(Partition.SERVICE, flows)
            serving.cancel()

    asyncio.run(load())


def _listener(space: str, kind: socket.SocketKind) -> socket.socket:
    """Takes datagrams or connections, so that no ICMP error and no reset goes back for them."""
    with inside(space):
        sock = socket.socket(type=kind)
    sock.bind(("", PORT))
    if kind == socket.SOCK_STREAM:
        sock.listen(1024)
    return sock


def _everyone(spaces: list[str], targets: list[IPv4Address], port: int, talk: Talk) -> None:
    """Talk from every pod to every target but the one of its own number."""

    def talk_from(number: int, space: str) -> None:
        with inside(space):
            for other, target in enumerate(targets):
                if other != number:
                    talk(target, port)

    threads = [threading.Thread(target=talk_from, args=pair) for pair in enumerate(spaces)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.5)


def _udp(address: IPv4Address, port: int) -> None:
    for _ in range(3):
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.sendto(b"x", (str(address), port))


def _tcp(address: IPv4Address, port: int) -> None:
    with socket.socket() as sock:
        sock.settimeout(1)
        sock.connect_ex((str(address), port))


def _icmp(address: IPv4Address, _: int) -> None:
    subprocess.run(["ping", "-c", "1", "-W", "1", str(address)], check=False, capture_output=True)


def _appctl(node: LabNode, *words: str) -> str:
    command = ("ovs-appctl", "-t", f"{node.ovs}/ovs-vswitchd.ctl", *words)
    return re.sub(r"\r", "", subprocess.run(command, check=True, capture_output=True, text=True).stdout)

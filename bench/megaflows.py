"""How many entries the switch's fast path needs when many pods talk to many others."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address

from bench.measurement import Budget, Measure, Measurement, Progress
from bench.pod_attach import Pods
from lab.topology import LabNode
from tests.testbed.namespaces import inside
from tests.testbed.netns.cluster import NetnsCluster, bench_lab

PORT = 7777


@dataclass(frozen=True, slots=True)
class Size:
    """How many pods talk to each other."""

    pods: int


FULL = Size(pods=21)
SMALLEST = Size(pods=2)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Send from every pod to every other one, by UDP from many ports, by TCP and by ping: on one node, then on two."""
    near = _count((size.pods,), f"{size.pods} pods each to {size.pods - 1}", size.pods * (size.pods - 1), progress)
    half = size.pods // 2
    pairs = half * (half - 1) + 2 * half * half
    return near + _count(
        (half, half), f"{half} pods each to {half - 1} here and {half} on another node", pairs, progress
    )


MEASURE = Measure("flows of the datapath while many pods talk to many others", measure, FULL, SMALLEST)


def _count(pods: tuple[int, ...], name: str, pairs: int, progress: Progress) -> list[Measurement]:
    """So many pods on each node; the flows of the first, which sees `pairs` ordered pairs."""
    with NetnsCluster(bench_lab(len(pods))) as cluster:
        nodes, spaces, addresses = cluster.lab.nodes, list[str](), list[IPv4Address]()
        for node, count in zip(nodes, pods, strict=True):
            here = cluster.add_namespaces([f"m{len(spaces) + number}" for number in range(count)])
            addresses += Pods.attach_all(node, here)
            spaces += here
        listening = [_listener(space) for space in spaces]
        figures = []
        for protocol, talk in (("first contact (ARP too)", _udp), ("UDP", _udp), ("TCP", _tcp), ("ICMP", _icmp)):
            progress(f"{protocol} between {len(spaces)} pods")
            _appctl(nodes[0], "revalidator/purge")
            _everyone(spaces, addresses, talk)
            flows = sum("in_port" in flow for flow in _appctl(nodes[0], "dpctl/dump-flows").splitlines())
            figures.append(
                Measurement(f"megaflows, {name}, {protocol}", "flows", (float(flows),), Budget(pairs + sum(pods)))
            )
        for sock in listening:
            sock.close()
    return figures


def _listener(space: str) -> socket.socket:
    """Takes datagrams, so that no ICMP error goes back for them."""
    with inside(space):
        sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind(("", PORT))
    return sock


def _everyone(spaces: list[str], addresses: list[IPv4Address], talk: Callable[[IPv4Address], None]) -> None:
    def talk_from(space: str, own: IPv4Address) -> None:
        with inside(space):
            for address in addresses:
                if address != own:
                    talk(address)

    threads = [threading.Thread(target=talk_from, args=pair) for pair in zip(spaces, addresses, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.5)


def _udp(address: IPv4Address) -> None:
    for _ in range(3):
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.sendto(b"x", (str(address), PORT))


def _tcp(address: IPv4Address) -> None:
    """Connect to a closed port, which is answered too."""
    with socket.socket() as sock:
        sock.settimeout(1)
        sock.connect_ex((str(address), PORT))


def _icmp(address: IPv4Address) -> None:
    subprocess.run(["ping", "-c", "1", "-W", "1", str(address)], check=False, capture_output=True)


def _appctl(node: LabNode, *words: str) -> str:
    command = ("ovs-appctl", "-t", f"{node.ovs}/ovs-vswitchd.ctl", *words)
    return re.sub(r"\r", "", subprocess.run(command, check=True, capture_output=True, text=True).stdout)

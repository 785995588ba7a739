"""Bytes and packets per second between pods, to a service and to the outside, beside a veth pair and a Linux bridge.

All ways are measured in turn, so that other work on the machine slows all of them alike.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from bench.measurement import Measure, Measurement, Progress
from bench.megaflows import load_services, service_port
from bench.pod_attach import Pods
from lab.process import run
from sdn.model.service_port import Protocol
from tests.testbed.namespaces import inside
from tests.testbed.netns.cluster import NetnsCluster, bench_lab
from tests.testbed.wait import wait_until

WARM_UP_SECONDS = 0.3
PORT, SERVICE_PORT = 7780, 80
CLUSTER_IP = IPv4Address("172.30.0.10")
BLOCK, DATAGRAM, BATCH = 1 << 18, 64, 64
PAIR, BRIDGED = "veth pair", "Linux bridge"
OWN_NAMESPACE = f"/proc/{os.getpid()}/ns/net"


@dataclass(frozen=True, slots=True)
class Way:
    """A way from one namespace to another: the address that the sender calls, and the device of the receiver."""

    name: str
    sender: str
    receiver: str
    address: IPv4Address
    port: int
    device: str


@dataclass(frozen=True, slots=True)
class Size:
    """How often each way is measured, and for how many seconds each time."""

    rounds: int
    seconds: float


FULL = Size(rounds=5, seconds=1.0)
SMALLEST = Size(rounds=1, seconds=0.1)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Send over one TCP connection as many bytes, and by UDP as many small datagrams, as arrive in some seconds."""
    with NetnsCluster(bench_lab(2)) as cluster:
        ways = [*_pods(cluster), *_plain(cluster)]
        gbits: dict[str, list[float]] = {way.name: [] for way in ways}
        packets: dict[str, list[float]] = {way.name: [] for way in ways}
        for number in range(size.rounds):
            progress(f"round {number + 1} of {size.rounds}")
            for way in ways:
                gbits[way.name].append(_tcp_gbits(way, size.seconds))
                packets[way.name].append(_datagrams(way, size.seconds))
    return [*_figures("one TCP connection", "Gbit/s", gbits), *_figures("64-byte datagrams", "thousand/s", packets)]


def _figures(what: str, unit: str, samples: dict[str, list[float]]) -> Iterator[Measurement]:
    """Yield the figures of all ways, beside the veth pair and the bridge."""
    for way, rates in samples.items():
        is_plain = way in {PAIR, BRIDGED}
        yield Measurement(
            f"{what}, {way}",
            unit,
            tuple(rates),
            floor="" if is_plain else PAIR,
            floor_samples=() if is_plain else tuple(samples[PAIR]),
            peer="" if is_plain else BRIDGED,
            peer_samples=() if is_plain else tuple(samples[BRIDGED]),
        )


MEASURE = Measure("bytes and packets between pods, to a service and to the outside", measure, FULL, SMALLEST)


def _pods(cluster: NetnsCluster) -> Iterator[Way]:
    """Attach three pods, two of them on one node, and yield the ways between them."""
    nodes = cluster.lab.nodes
    near, far = cluster.add_namespaces(["t0", "t1"]), cluster.add_namespaces(["t2"])
    addresses = [*Pods.attach_all(nodes[0], near), *Pods.attach_all(nodes[1], far)]
    client, server = near
    cluster.kill(f"{nodes[0].name} sdn")  # It would remove this service.
    ports = [
        service_port("throughput", 0, CLUSTER_IP, (addresses[1],), PORT, protocol)
        for protocol in (Protocol.TCP, Protocol.UDP)
    ]
    load_services(nodes[0], tuple(ports))
    yield Way("pod to pod", client, server, addresses[1], PORT, "eth0")
    yield Way("pod to service", client, server, CLUSTER_IP, SERVICE_PORT, "eth0")
    yield Way("pod to pod of another node", client, far[0], addresses[2], PORT, "eth0")
    site = cluster.lab.site
    yield Way("pod to outside", client, OWN_NAMESPACE, site.outside, PORT, site.bridge)


def _plain(cluster: NetnsCluster) -> Iterator[Way]:
    """Connect two pairs of namespaces, by a veth pair and by a bridge, and yield the ways."""
    left, right, near, far, switch = cluster.add_namespaces(["t3", "t4", "t5", "t6", "t7"])
    run("ip", "-n", left, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", right)
    run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
    run("ip", "-n", switch, "link", "set", "br0", "up")
    for number, space in enumerate((near, far)):
        run("ip", "-n", switch, "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "-n", switch, "link", "set", f"v{number}", "master", "br0", "up")
    for name, sender, receiver in ((PAIR, left, right), (BRIDGED, near, far)):
        for number, space in enumerate((sender, receiver)):
            run("ip", "-n", space, "addr", "add", f"192.0.2.{number + 1}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
        yield Way(name, sender, receiver, IPv4Address("192.0.2.2"), PORT, "eth0")


def _tcp_gbits(way: Way, seconds: float) -> float:
    """Return the rate at which the receiver reads from one connection."""
    with inside(way.receiver):
        listening = socket.create_server(("", PORT))
    with listening:
        with inside(way.sender):
            sending = socket.socket()
        wait_until(lambda: _connects(sending, way), f"a connection: {way.name}")
        receiving, _ = listening.accept()
    with receiving, _child(sending, _send_all):
        sending.close()
        buffer = bytearray(BLOCK)
        _receive(receiving, buffer, WARM_UP_SECONDS)
        received, duration = _receive(receiving, buffer, seconds)
    return received * 8 / duration / 1e9


def _connects(sending: socket.socket, way: Way) -> bool:
    return sending.connect_ex((str(way.address), way.port)) == 0


def _receive(receiving: socket.socket, buffer: bytearray, seconds: float) -> tuple[int, float]:
    begin = now = time.monotonic()
    received = 0
    while now < begin + seconds:
        received += receiving.recv_into(buffer)
        now = time.monotonic()
    return received, now - begin


def _send_all(sending: socket.socket) -> None:
    block = bytes(BLOCK)
    while True:
        sending.sendall(block)


class _Message(ctypes.Structure):
    """struct mmsghdr of sendmmsg(2), with the struct iovec beside it."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("parts", ctypes.c_void_p),
        ("part_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("sent", ctypes.c_uint),
    )


class _Part(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _datagrams(way: Way, seconds: float) -> float:
    """Return the rate, in thousands, at which datagrams arrive at the receiver's device. Nobody reads them."""
    with inside(way.receiver):
        receiving = socket.socket(type=socket.SOCK_DGRAM)
    with receiving:
        receiving.bind(("", PORT))
        with inside(way.sender):
            sending = socket.socket(type=socket.SOCK_DGRAM)
        sending.connect((str(way.address), way.port))
        with _child(sending, _send_datagrams):
            sending.close()
            select.select([receiving], [], [], 5.0)
            time.sleep(WARM_UP_SECONDS)
            before, begin = _packets_received(way), time.monotonic()
            time.sleep(seconds)
            return (_packets_received(way) - before) / (time.monotonic() - begin) / 1000


def _packets_received(way: Way) -> int:
    with inside(way.receiver), open("/proc/thread-self/net/dev", encoding="ascii") as table:
        [counters] = [line.partition(":")[2].split() for line in table if line.strip().startswith(f"{way.device}:")]
    return int(counters[1])


def _send_datagrams(sending: socket.socket) -> None:
    data = ctypes.create_string_buffer(DATAGRAM)
    part = _Part(ctypes.addressof(data), DATAGRAM)
    messages = (_Message * BATCH)(*(_Message(parts=ctypes.addressof(part), part_count=1) for _ in range(BATCH)))
    send, number = ctypes.CDLL(None).sendmmsg, sending.fileno()
    while True:
        send(number, messages, BATCH, 0)


@contextlib.contextmanager
def _child(sending: socket.socket, act: Callable[[socket.socket], None]) -> Iterator[None]:
    """Send in a process of its own, because both ends in one interpreter would wait for each other."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            act(sending)
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)

"""A node without a switch, for services: pods on one side, the outside on the other."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from lab.process import run
from tests.testbed.namespaces import inside

NODE, OUTSIDER, GATEWAY = IPv4Address("10.245.2.3"), IPv4Address("10.245.2.99"), IPv4Address("10.128.0.1")
SUBNET = IPv4Network("10.128.0.0/23")
NEAR = (IPv4Address("10.128.0.2"), IPv4Address("10.128.0.3"))
FAR = (IPv4Address("10.128.2.2"), IPv4Address("10.128.2.3"))
PORT = 8080
ANY = IPv4Address(0)
PATIENCE_SECONDS = 5.0
SILENCE_SECONDS = 0.3
"""How long a call waits that must not be answered. A positive control beside it is answered at once."""


SOURCE_PORTS = itertools.cycle(range(33_000, 61_000))
"""Source ports of calls. None is used twice in 28,000 calls, because conntrack remembers the endpoint of a UDP source
port for 30 seconds, and ports that the kernel picks at random repeat within a few hundred calls."""


@dataclass(frozen=True, slots=True)
class ServiceReply:
    """The endpoint that replied, and the client address that it saw."""

    backend: IPv4Address
    caller: IPv4Address


class Node:
    """`NODE` has eth0 to the outside, and a tun0 behind which pods of this and of another node answer on `PORT`.

    `node`, `pods` and `outside` are network namespaces.
    """

    def __init__(self) -> None:
        self.node, self.pods, self.outside = (f"podsvc-{os.getpid()}-{word}" for word in ("node", "pods", "outside"))

    def build(self) -> None:
        """Create the namespaces with their links, addresses and routes."""
        for name in (self.node, self.pods, self.outside):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        self._connect("tun0", f"{GATEWAY}/32", self.pods, [f"{address}/32" for address in (*NEAR, *FAR)])
        self._connect("eth0", f"{NODE}/24", self.outside, [f"{OUTSIDER}/24"])
        for network in ("10.128.0.0/14", "172.30.0.0/16"):
            run("ip", "-n", self.node, "route", "add", network, "dev", "tun0", "src", str(GATEWAY))
        run("ip", "-n", self.pods, "route", "add", f"{GATEWAY}/32", "dev", "eth0", "scope", "link")
        for name, gateway in ((self.pods, GATEWAY), (self.outside, NODE), (self.node, OUTSIDER)):
            run("ip", "-n", name, "route", "add", "default", "via", str(gateway))
        run("ip", "netns", "exec", self.node, "sysctl", "-qw", "net.ipv4.ip_forward=1")

    def _connect(self, device: str, address: str, other: str, others: list[str]) -> None:
        peer = ("peer", "name", "eth0", "netns", other)
        run("ip", "-n", self.node, "link", "add", device, "type", "veth", *peer)
        for namespace, name, addresses in ((self.node, device, [address]), (other, "eth0", others)):
            run("ip", "-n", namespace, "link", "set", name, "up")
            for own in addresses:
                run("ip", "-n", namespace, "addr", "add", own, "dev", name)

    def remove(self) -> None:
        """Delete the namespaces, and with them everything in them."""
        for name in (self.node, self.pods, self.outside):
            run("ip", "netns", "del", name)

    @contextlib.contextmanager
    def at_outside(self, addresses: tuple[IPv4Address, ...]) -> Iterator[None]:
        """Add addresses to the outside for the block."""
        for address in addresses:
            run("ip", "-n", self.outside, "addr", "add", f"{address}/24", "dev", "eth0")
        yield
        for address in addresses:
            run("ip", "-n", self.outside, "addr", "del", f"{address}/24", "dev", "eth0")

    def nft(self, *words: str) -> str:
        """Run nft in the node, as another program would."""
        return run("ip", "netns", "exec", self.node, "nft", *words)


@contextlib.contextmanager
def answering(namespace: str, addresses: tuple[IPv4Address, ...]) -> Iterator[None]:
    """Reply at each address, by TCP and UDP, with that address and the address of the client."""
    listeners = selectors.DefaultSelector()
    with inside(namespace):
        for address in addresses:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                listener = socket.socket(socket.AF_INET, kind)
                listener.bind((str(address), PORT))
                if kind == socket.SOCK_STREAM:
                    listener.listen(128)
                listeners.register(listener, selectors.EVENT_READ)
    end, stop = socket.socketpair()
    listeners.register(end, selectors.EVENT_READ)
    thread = threading.Thread(target=_answer, args=(listeners, end))
    thread.start()
    try:
        yield
    finally:
        stop.close()
        thread.join()
        for key in list(listeners.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        listeners.close()


def _answer(listeners: selectors.BaseSelector, end: socket.socket) -> None:
    while True:
        for key, _ in listeners.select():
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            if ready is end:
                return
            if ready.type == socket.SOCK_DGRAM:
                _, caller = ready.recvfrom(64)
                ready.sendto(f"{ready.getsockname()[0]} {caller[0]}".encode(), caller)
            elif ready.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listeners.register(ready.accept()[0], selectors.EVENT_READ)
            elif _line(ready):
                ready.send(f"{ready.getsockname()[0]} {ready.getpeername()[0]}".encode())
            else:
                listeners.unregister(ready)
                ready.close()


def _line(connection: socket.socket) -> bytes:
    try:
        return connection.recv(64)
    except ConnectionError:
        return b""


class Caller:
    """A client in a network namespace that stays connected until it is closed. `own` is its source address."""

    def __init__(
        self,
        namespace: str,
        address: IPv4Address,
        port: int,
        kind: int = socket.SOCK_STREAM,
        own: IPv4Address = ANY,
    ) -> None:
        with inside(namespace):
            self._socket = socket.socket(socket.AF_INET, kind)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.bind((str(own), next(SOURCE_PORTS)))
        try:
            self._socket.connect((str(address), port))
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, patience: float = PATIENCE_SECONDS) -> ServiceReply:
        """Call once and return the reply. Raises OSError if refused, TimeoutError if there is no reply."""
        self._socket.settimeout(patience)
        self._socket.send(b"who?\n")
        backend, caller = self._socket.recv(64).decode().split()
        return ServiceReply(IPv4Address(backend), IPv4Address(caller))


def call(
    namespace: str,
    address: IPv4Address,
    port: int,
    kind: int = socket.SOCK_STREAM,
    own: IPv4Address = ANY,
) -> ServiceReply:
    """Call once from a new socket. Raises OSError if refused, TimeoutError if there is no reply."""
    with Caller(namespace, address, port, kind, own) as caller:
        return caller.call()

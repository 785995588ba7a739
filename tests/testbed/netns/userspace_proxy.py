"""A node that serves services in user space, and a client: two namespaces and one cable."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Coroutine, Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Any, TypeVar

from lab.process import run
from sdn.proxy.service_ports import ProxyConfig
from sdn.proxy.userspace.proxier import MAX_CONNECTIONS, UserspaceProxier
from sdn.topology import VXLAN_PORT, Node
from tests.testbed.namespaces import inside
from tests.testbed.wait import DEADLINE_SECONDS

T = TypeVar("T")

NODE_NAMESPACE, CLIENT_NAMESPACE = (f"proxied-{os.getpid()}-{word}" for word in ("node", "client"))
NODE, CLIENT = IPv4Address("10.99.0.1"), IPv4Address("10.99.0.2")
FRONTS = IPv4Network("172.30.0.0/16")
NODE_PORTS = "30000-32767"
CONFIG = ProxyConfig(
    node=Node("node-1", NODE, IPv4Network("10.99.0.0/24"), open_ports=None),
    cluster_networks=(IPv4Network(CLIENT),),
    service_network=FRONTS,
    node_port_range=(30000, 32767),
    vnids=None,
    node_ips=frozenset({NODE}),
    vxlan_port=VXLAN_PORT,
)


def redirect(port: int) -> None:
    """Redirect packets to services and node ports on the node, those of others and those of its own processes."""
    verdict = f"meta l4proto {{ tcp, udp }} redirect to :{port}"
    rules = "".join(
        f"add chain ip proxied {hook} {{ type nat hook {hook} priority {priority}; }}\n"
        f"add rule ip proxied {hook} ip daddr {FRONTS} {verdict}\n"
        f"add rule ip proxied {hook} ip daddr {NODE} th dport {NODE_PORTS} {verdict}\n"
        for hook, priority in (("prerouting", "dstnat"), ("output", "-100"))
    )
    anew = "add table ip proxied\ndelete table ip proxied\nadd table ip proxied\n"
    run("ip", "netns", "exec", NODE_NAMESPACE, "nft", anew + rules)


class ProxyNode:
    """The proxy runs in a thread of its own, in the node's namespace."""

    def __init__(self, max_connections: int = MAX_CONNECTIONS) -> None:
        self._max_connections = max_connections
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self.proxy: UserspaceProxier

    def __enter__(self) -> ProxyNode:
        self._thread.start()
        self.proxy = self.call(self._open())
        redirect(self.proxy.port)
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self.proxy.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the proxy's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_SECONDS)

    def _run(self) -> None:
        with inside(NODE_NAMESPACE):
            self._loop.run_forever()
            self._loop.close()

    async def _open(self) -> UserspaceProxier:
        proxy = UserspaceProxier(max_connections=self._max_connections)
        await proxy.open()
        return proxy


@contextlib.contextmanager
def proxy_namespaces() -> Iterator[None]:
    """Create the network namespaces of a node and of a client."""
    with contextlib.ExitStack() as undo:
        for namespace in (NODE_NAMESPACE, CLIENT_NAMESPACE):
            run("ip", "netns", "add", namespace)
            undo.callback(run, "ip", "netns", "del", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
        link = ("ip", "-n", NODE_NAMESPACE, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0")
        run(*link, "netns", CLIENT_NAMESPACE)
        for namespace, address, other in ((NODE_NAMESPACE, NODE, CLIENT), (CLIENT_NAMESPACE, CLIENT, NODE)):
            run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", namespace, "link", "set", "eth0", "up")
            run("ip", "-n", namespace, "route", "add", "default", "via", str(other))
        yield


def listening(kind: socket.SocketKind = socket.SOCK_STREAM, backlog: int = 2048) -> socket.socket:
    """Return a socket of a backend on the node, at a free port."""
    with inside(NODE_NAMESPACE):
        actual = socket.socket(socket.AF_INET, kind)
    actual.settimeout(DEADLINE_SECONDS)
    actual.bind((str(NODE), 0))
    if kind == socket.SOCK_STREAM:
        actual.listen(backlog)
    return actual


def socket_in(namespace: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket of a client."""
    with inside(namespace):
        actual = socket.socket(socket.AF_INET, kind)
    actual.settimeout(DEADLINE_SECONDS)
    return actual

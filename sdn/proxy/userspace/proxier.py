"""Proxies the connections to all services that the firewall redirects to one port of this node."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address

from reconcile.errors import NotReady
from reconcile.listener import raise_file_limit
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo
from sdn.proxy.service_map import ClientConnection, FrontendLookup
from sdn.proxy.userspace.roundrobin import RoundRobin
from sdn.proxy.userspace.tcp import TcpProxy
from sdn.proxy.userspace.udp import UdpProxy

PORT = 10246
"""Taken where it is free: for a while conntrack remembers connections of the daemon before, and leads a new one
from the same source port to where they went.
"""

MAX_CONNECTIONS = 50_000
"""Over TCP; each holds 7 KB."""

_ATTEMPTS = 16


class UserspaceProxier:
    """One listener for TCP and one for UDP, both at `port` of every address of the node.

    The firewall redirects to it what is addressed to a front; whom a packet was addressed to is asked of the kernel's
    conntrack, so that a packet sent to `port` itself leads nowhere. `is_cluster` tells the addresses of pods and of
    nodes' gateways, `is_node` those under the tunnels: a front is never taken for a backend. SCTP is not served.
    """

    def __init__(
        self,
        is_cluster: Callable[[IPv4Address], bool],
        is_node: Callable[[IPv4Address], bool],
        most_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.port = 0
        self._directory = FrontendLookup(is_cluster, is_node)
        self._rotation = RoundRobin()
        self._tcp = TcpProxy(self._choose, self._took, most_connections)
        self._udp = UdpProxy(self._choose, self._took)

    async def open(self) -> None:
        """Begin to listen; `port` is set then. Raises NotReady."""
        raise_file_limit()
        tcp, udp = _one_port()
        await self._tcp.open(tcp)
        self._udp.open(udp)
        self.port = tcp.getsockname()[1]

    async def replace(self, ports: Iterable[ServicePortInfo]) -> None:
        """Serve exactly these."""
        await self.edit(self._directory.difference(ports))

    async def edit(self, change: ServicePortChange) -> None:
        """Serve what has come, and no longer what has gone: its TCP connections go on.

        A client that spoke UDP with a backend that is none any more finds another one.
        """
        self._directory.edit(change)
        for port in change.removed:
            if port.key not in self._directory.ports:
                self._rotation.forget(port.key)
        if any(port.key.protocol == Protocol.UDP for port in change.removed):
            self._udp.recheck(lambda call, backend: backend in self._directory.backends(call))

    async def close(self, drain_seconds: float = 0) -> None:
        """Take no more connections; end when every one has ended, at the latest after so long."""
        await self._tcp.close(drain_seconds)
        self._udp.close()

    def _choose(self, call: ClientConnection) -> list[EndpointInfo]:
        port = self._directory.find(call.front)
        if port is None:
            return []
        return self._rotation.candidates(port, self._directory.backends(call), call.client, _now())

    def _took(self, call: ClientConnection, backend: EndpointInfo) -> None:
        port = self._directory.find(call.front)
        if port is not None:
            self._rotation.took(port, call.client, backend, _now())


def _now() -> float:
    return asyncio.get_running_loop().time()


def _one_port() -> tuple[socket.socket, socket.socket]:
    """A port that is free for both protocols, at every address: PORT if it can be. Raises NotReady."""
    for wished in (PORT, *([0] * _ATTEMPTS)):
        with contextlib.ExitStack() as undo:
            try:
                tcp = undo.enter_context(socket.create_server(("0.0.0.0", wished), backlog=1024))
                udp = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
                udp.bind(tcp.getsockname())
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise NotReady(f"the proxy for services cannot listen: {error}") from error
            else:
                undo.pop_all()
                return tcp, udp
    raise NotReady("the proxy for services found no port that is free for both TCP and UDP; it is tried again")

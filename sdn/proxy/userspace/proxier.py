"""Proxies the connections to all services that nftables redirects to one port of this node."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Collection, Iterable

from reconcile.errors import NotReady
from reconcile.listener import raise_file_limit
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo
from sdn.proxy.service_map import ClientConnection, FrontendLookup
from sdn.proxy.service_ports import ProxyConfig
from sdn.proxy.userspace.roundrobin import RoundRobin
from sdn.proxy.userspace.tcp import TcpProxy
from sdn.proxy.userspace.udp import UdpProxy

PORT = 10246
"""Preferred port. It should be the same after a restart: conntrack remembers connections to the previous daemon for
a while, and sends a new connection from the same source port to the same port.
"""

MAX_CONNECTIONS = 50_000
"""Maximum number of TCP connections; each takes 7 KB."""

_MAX_BIND_ATTEMPTS = 16


class UserspaceProxier:
    """A TCP and a UDP listener, both at `port` of every address of the node; `port` is 0 before `open`.

    nftables redirects packets to frontends to this port. The original destination comes from the kernel's conntrack, so
    a packet that was sent to `port` itself has no frontend, and is rejected. SCTP is not proxied.
    """

    def __init__(self, max_connections: int = MAX_CONNECTIONS) -> None:
        self.port = 0
        self._lookup = FrontendLookup()
        self._balancer = RoundRobin()
        self._tcp = TcpProxy(self._candidates, self._record, max_connections)
        self._udp = UdpProxy(self._candidates, self._record)

    async def open(self) -> None:
        """Begin to listen, and set `port`. Raises NotReady."""
        raise_file_limit()
        tcp, udp = _bind_tcp_and_udp()
        await self._tcp.open(tcp)
        self._udp.open(udp)
        self.port = tcp.getsockname()[1]

    async def sync(self, config: ProxyConfig, ports: Iterable[ServicePortInfo]) -> None:
        """Proxy exactly these ports."""
        await self.update(config, self._lookup.difference(ports))

    async def update(self, config: ProxyConfig, change: ServicePortChange) -> None:
        """Stop proxying removed ports, and proxy added ones.

        TCP connections of removed ports continue. UDP clients of removed endpoints get another endpoint.
        """
        self._lookup.config = config
        self._lookup.update(change)
        for port in change.removed:
            if port.key not in self._lookup.ports:
                self._balancer.forget(port.key)
        if any(port.key.protocol == Protocol.UDP for port in change.removed):
            self._udp.forget_unless(lambda connection, endpoint: endpoint in self._lookup.endpoints(connection))

    async def close(self, drain_seconds: float = 0) -> None:
        """Stop listening, and wait at most `drain_seconds` for connections to end."""
        await self._tcp.close(drain_seconds)
        self._udp.close()

    def _candidates(self, connection: ClientConnection) -> list[EndpointInfo]:
        port = self._lookup.find(connection.frontend)
        if port is None:
            return []
        endpoints = self._lookup.endpoints(connection)
        return self._balancer.candidates(port, endpoints, connection.client, _now())

    def _record(self, connection: ClientConnection, endpoint: EndpointInfo) -> None:
        port = self._lookup.find(connection.frontend)
        if port is not None:
            self._balancer.record(port, connection.client, endpoint, _now())


DRAIN_SECONDS = 5.0
"""Time that spliced connections get to end when the daemon stops."""


class UserspaceBackend:
    """ProxyBackend for all clients: a userspace proxier."""

    name = "proxy"

    def __init__(self, proxier: UserspaceProxier) -> None:
        self._proxier = proxier

    async def open(self) -> None:
        """Do nothing: the first `sync` binds the port, so that a failure is tried again."""

    async def close(self) -> None:
        """Stop listening. Spliced connections get DRAIN_SECONDS to end."""
        await self._proxier.close(DRAIN_SECONDS)

    def is_unmodified(self) -> bool:
        """Return True: the proxier's state is in this process."""
        return True

    async def sync(self, config: ProxyConfig, ports: Collection[ServicePortInfo]) -> bool:
        """Proxy exactly these ports. Returns False, because nothing else can be installed."""
        if not self._proxier.port:
            await self._proxier.open()
        await self._proxier.sync(config, ports)
        return False

    async def update(self, config: ProxyConfig, change: ServicePortChange) -> None:
        """Stop proxying removed ports, and proxy added ones."""
        await self._proxier.update(config, change)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _bind_tcp_and_udp() -> tuple[socket.socket, socket.socket]:
    """Bind one port number for both protocols at every address, PORT if it is free. Raises NotReady."""
    for port in (PORT, *([0] * _MAX_BIND_ATTEMPTS)):
        with contextlib.ExitStack() as undo:
            try:
                tcp = undo.enter_context(socket.create_server(("0.0.0.0", port), backlog=1024))
                udp = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
                udp.bind(tcp.getsockname())
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise NotReady(f"the userspace proxy cannot listen: {error}") from error
            else:
                undo.pop_all()
                return tcp, udp
    raise NotReady("the userspace proxy found no port that is free for both TCP and UDP; it will try again")

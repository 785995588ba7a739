"""Proxies TCP: each connection of a client is spliced with one to an endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

from sdn.model.service_port import EndpointInfo, Protocol
from sdn.proxy.service_map import ClientConnection

MAX_UNSENT_BYTES = 64 << 10
"""Bytes that may wait to be sent to one peer before reading from the other is paused."""

KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 8))
"""Seconds, seconds, and probes: a connection to a host that disappeared ends after three minutes."""

CONNECT_TIMEOUTS = (0.25, 0.5, 1.0, 2.0)
"""Seconds to wait for endpoints that do not answer, one after the other. One that refuses is not tried again."""

DEAD_CHECK_SECONDS = 30.0
"""Interval of the check for connections that died while nothing was read from them."""

RESERVED_FILES = 4096
"""File descriptors that are not for client connections, each of which takes two: those of the daemon itself, and of
connections that are being opened or closed.
"""

SO_ORIGINAL_DST = 80
"""Socket option of linux/netfilter_ipv4.h: the destination of a connection before it was redirected."""

_ESTABLISHED, _CLOSED = 1, 7  # TCP_ESTABLISHED and TCP_CLOSE of linux/tcp.h
_RESET = struct.pack("ii", 1, 0)


class SplicedConnection(asyncio.Protocol):
    """One of two TCP connections that are spliced; `on_lost` is called once, when the connection has ended.

    The client's connection has no peer at first. It is read only after the connection to the endpoint has joined it.

    A protocol instead of tasks, because of memory: a thousand pairs take 7 MB, a third of what two tasks each would.
    """

    def __init__(self, peer: SplicedConnection | None, on_lost: Callable[[SplicedConnection], None]) -> None:
        self.transport: asyncio.Transport
        self._peer = peer
        self._on_lost = on_lost
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set options of the socket, and join the peer if there is one."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        sock: Any = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if self._peer is None:
            transport.pause_reading()
        elif self._peer.transport.is_closing():
            transport.abort()
        else:
            self._peer._peer = self
            self._peer.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Write the data to the peer."""
        assert self._peer is not None
        self._peer.transport.write(data)

    def eof_received(self) -> bool:
        """Pass the end of the stream to the peer. The other direction stays open until it ends too."""
        assert self._peer is not None
        self._has_ended = True
        if self._peer._has_ended:
            self._peer.transport.close()
            return False
        with contextlib.suppress(OSError):
            self._peer.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        """Stop reading from the peer."""
        if self._peer is not None:
            self._peer.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the peer again."""
        if self._peer is not None:
            self._peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the peer after it has been sent all data."""
        if self._peer is not None:
            self._peer.transport.close()
        self._on_lost(self)

    def is_dead(self) -> bool:
        """Return True if the kernel has closed the connection; asyncio notices only while it reads."""
        sock: Any = self.transport.get_extra_info("socket")
        return sock.fileno() >= 0 and bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED)

    def reset(self) -> None:
        """End the connection with a TCP reset, like a host on which nothing listens at the port."""
        if not self.transport.is_closing():
            sock: Any = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


class _ClientSide(SplicedConnection):
    """The connection of a client; `on_made` is called when it is accepted."""

    def __init__(self, on_lost: Callable[[SplicedConnection], None], on_made: Callable[[_ClientSide], None]) -> None:
        super().__init__(None, on_lost)
        self._on_made = on_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set options of the socket, and report the connection."""
        super().connection_made(transport)
        self._on_made(self)


class TcpProxy:
    """TCP listener of the userspace proxy.

    `candidates` returns the endpoints for a connection in the order in which to try them; `record` is called with the
    endpoint that accepted it. With more than `max_connections`, or than the daemon has file descriptors for, the client
    with the largest number of connections loses its oldest one.
    """

    def __init__(
        self,
        candidates: Callable[[ClientConnection], list[EndpointInfo]],
        record: Callable[[ClientConnection, EndpointInfo], None],
        max_connections: int,
    ) -> None:
        self._candidates = candidates
        self._record = record
        self._max_connections = max_connections
        self._by_client: dict[str, dict[SplicedConnection, None]] = {}
        self._client_count = 0
        self._server: asyncio.Server | None = None
        self._connections: set[SplicedConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._dead_check: asyncio.TimerHandle | None = None
        self._is_idle = asyncio.Event()

    async def open(self, listener: socket.socket) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max_connections = min(self._max_connections, max(max_files - RESERVED_FILES, max_files // 2) // 2)
        self._server = await loop.create_server(
            lambda: _ClientSide(self._on_lost, self._on_accepted), sock=listener, backlog=1024
        )
        self._dead_check = loop.call_later(DEAD_CHECK_SECONDS, self._abort_dead)

    async def close(self, drain_seconds: float) -> None:
        """Stop accepting, wait at most `drain_seconds` for connections to end, and abort the rest."""
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_seconds):
                while self._connections:
                    self._is_idle.clear()
                    await self._is_idle.wait()
        if self._dead_check is not None:
            self._dead_check.cancel()
        for task in self._connecting:
            task.cancel()
        for connection in tuple(self._connections):
            connection.transport.abort()

    def _on_accepted(self, client: _ClientSide) -> None:
        self._connections.add(client)
        self._by_client.setdefault(_peer_ip(client), {})[client] = None
        self._client_count += 1
        if self._client_count > self._max_connections:
            largest = max(self._by_client.values(), key=lambda connections: len(connections))
            oldest = next(iter(largest))
            self._discard_client(oldest)
            oldest.reset()
        task = asyncio.create_task(self._serve(client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _discard_client(self, connection: SplicedConnection) -> None:
        """Uncount the connection of a client. Does nothing for connections to endpoints."""
        ip = _peer_ip(connection)
        connections = self._by_client.get(ip, {})
        if connection in connections:
            del connections[connection]
            self._client_count -= 1
            if not connections:
                del self._by_client[ip]

    def _on_lost(self, connection: SplicedConnection) -> None:
        self._connections.discard(connection)
        self._discard_client(connection)
        if not self._connections:
            self._is_idle.set()

    async def _serve(self, client: _ClientSide) -> None:
        """Splice a client with the first endpoint that accepts, or reset the client's connection."""
        connection = _client_connection(client.transport)
        candidates = [] if connection is None else self._candidates(connection)
        timeouts = list(CONNECT_TIMEOUTS)
        while connection is not None and candidates and timeouts and not client.transport.is_closing():
            endpoint = candidates.pop(0)
            try:
                connected = await _connect(endpoint, timeouts[0])
            except TimeoutError:
                candidates.append(endpoint)
                timeouts.pop(0)
            except OSError:
                continue
            else:
                await self._splice(client, connected)
                self._record(connection, endpoint)
                return
        client.reset()

    async def _splice(self, client: _ClientSide, connected: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        _, endpoint_side = await loop.create_connection(
            lambda: SplicedConnection(client, self._on_lost), sock=connected
        )
        if not endpoint_side.transport.is_closing():
            self._connections.add(endpoint_side)

    def _abort_dead(self) -> None:
        for connection in tuple(self._connections):
            if connection.is_dead():
                connection.transport.abort()
        self._dead_check = asyncio.get_running_loop().call_later(DEAD_CHECK_SECONDS, self._abort_dead)


def _peer_ip(connection: SplicedConnection) -> str:
    """Return the address of the peer; empty if the connection ended before it was read."""
    return str((connection.transport.get_extra_info("peername") or ("",))[0])


async def _connect(endpoint: EndpointInfo, timeout_seconds: float) -> socket.socket:
    """Connect to an endpoint. Raises OSError, and TimeoutError if the endpoint does not answer."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        async with asyncio.timeout(timeout_seconds):
            await asyncio.get_running_loop().sock_connect(sock, (str(endpoint.address), endpoint.port))
    except TimeoutError:
        # A busy event loop may see the timeout before it sees that the connection is established.
        if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED:
            sock.close()
            raise
    except BaseException:
        sock.close()
        raise
    return sock


def _client_connection(transport: asyncio.Transport) -> ClientConnection | None:
    """Return the frontend and the client, or None if the connection is lost or was not redirected."""
    sock: Any = transport.get_extra_info("socket")
    try:
        port, address = struct.unpack("!2xH4s8x", sock.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16))
    except OSError:
        return None
    local = IPv4Address(transport.get_extra_info("sockname")[0])
    client = IPv4Address(transport.get_extra_info("peername")[0])
    return ClientConnection((IPv4Address(address), Protocol.TCP, port), client, from_host=local.is_loopback)

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
"""Bytes that may wait for one side before nothing more is read of the other."""

KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 8))
"""Seconds, seconds, times: who has vanished without a word is given up after three minutes."""

_CLOSED = 7  # TCP_CLOSE of linux/tcp.h
_RESET = struct.pack("ii", 1, 0)


class SplicedConnection(asyncio.Protocol):
    """The client's side has no `other` at first: nothing is read of it until a backend's side has joined it.

    A protocol and no task of its own: a thousand pairs hold 7 MB, a third of what two tasks each would. `lost` is
    called once, when the connection has ended.
    """

    def __init__(self, other: SplicedConnection | None, lost: Callable[[SplicedConnection], None]) -> None:
        self.transport: asyncio.Transport
        self._other = other
        self._lost = lost
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, and join the other if there is one."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        own: Any = transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            own.setsockopt(socket.IPPROTO_TCP, option, value)
        if self._other is None:
            transport.pause_reading()
        elif self._other.transport.is_closing():
            transport.abort()
        else:
            self._other._other = self
            self._other.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        assert self._other is not None
        self._other.transport.write(data)

    def eof_received(self) -> bool:
        """Pass the end on; the way back stays open until it ends too."""
        assert self._other is not None
        self._has_ended = True
        if self._other._has_ended:
            self._other.transport.close()
            return False
        with contextlib.suppress(OSError):
            self._other.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        """Hold up the other."""
        if self._other is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Let the other go on."""
        if self._other is not None:
            self._other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other too, when it has been sent what had come."""
        if self._other is not None:
            self._other.transport.close()
        self._lost(self)

    def is_dead(self) -> bool:
        """Whether the kernel has given it up: asyncio hears of that only while it reads."""
        own: Any = self.transport.get_extra_info("socket")
        return own.fileno() >= 0 and bool(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED)

    def refuse(self) -> None:
        """End it with a reset, as a host answers on whose port nobody listens."""
        if not self.transport.is_closing():
            own: Any = self.transport.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


CONNECT_TIMEOUTS = (0.25, 0.5, 1.0, 2.0)
"""Seconds to wait for backends that say nothing, one after the other; one that refuses is not asked again."""

LOOK_SECONDS = 30.0
"""Between two looks for connections that have died while nothing was read of them."""

OTHER_FILES = 4096
"""That may be open beside connections of clients, each of which takes two: those of the daemon, and of connections that
come all at once or end.
"""

SO_ORIGINAL_DST = 80
"""Of linux/netfilter_ipv4.h: whom a redirected connection was made to."""


_ESTABLISHED = 1  # TCP_ESTABLISHED of linux/tcp.h


class _ClientConnection(SplicedConnection):
    """The side of a client."""

    def __init__(self, lost: Callable[[SplicedConnection], None], made: Callable[[_ClientConnection], None]) -> None:
        super().__init__(None, lost)
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        self._made(self)


class TcpProxy:
    """`choose` gives the backends for a call, in the order in which to try them; `took` hears which one took it.

    With more than `most` connections, or than the daemon has files for, the client that has the most loses its oldest.
    """

    def __init__(
        self,
        choose: Callable[[ClientConnection], list[EndpointInfo]],
        took: Callable[[ClientConnection, EndpointInfo], None],
        most: int,
    ) -> None:
        self._choose = choose
        self._took = took
        self._most = most
        self._clients: dict[str, dict[SplicedConnection, None]] = {}
        self._count = 0
        self._server: asyncio.Server | None = None
        self._sides: set[SplicedConnection] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None
        self._is_idle = asyncio.Event()

    async def open(self, listening: socket.socket) -> None:
        """Take connections."""
        loop = asyncio.get_running_loop()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = min(self._most, max(files - OTHER_FILES, files // 2) // 2)
        self._server = await loop.create_server(
            lambda: _ClientConnection(self._forget, self._arrived), sock=listening, backlog=1024
        )
        self._look = loop.call_later(LOOK_SECONDS, self._look_around)

    async def close(self, drain_seconds: float) -> None:
        """Take no more; what has not ended when the time is up is ended."""
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_seconds):
                while self._sides:
                    self._is_idle.clear()
                    await self._is_idle.wait()
        if self._look is not None:
            self._look.cancel()
        for task in self._dialling:
            task.cancel()
        for side in tuple(self._sides):
            side.transport.abort()

    def _arrived(self, client: _ClientConnection) -> None:
        self._sides.add(client)
        self._clients.setdefault(_peer(client), {})[client] = None
        self._count += 1
        if self._count > self._most:
            crowd = max(self._clients.values(), key=lambda own: len(own))
            oldest = next(iter(crowd))
            self._uncount(oldest)
            oldest.refuse()
        task = asyncio.create_task(self._serve(client))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    def _uncount(self, side: SplicedConnection) -> None:
        peer = _peer(side)
        own = self._clients.get(peer, {})
        if side in own:
            del own[side]
            self._count -= 1
            if not own:
                del self._clients[peer]

    def _forget(self, side: SplicedConnection) -> None:
        self._sides.discard(side)
        self._uncount(side)
        if not self._sides:
            self._is_idle.set()

    async def _serve(self, client: _ClientConnection) -> None:
        call = _call(client.transport)
        left = [] if call is None else self._choose(call)
        silences = list(CONNECT_TIMEOUTS)
        while call is not None and left and silences and not client.transport.is_closing():
            backend = left.pop(0)
            try:
                connected = await _connected(backend, silences[0])
            except TimeoutError:
                left.append(backend)
                silences.pop(0)
            except OSError:
                continue
            else:
                await self._join(client, connected)
                self._took(call, backend)
                return
        client.refuse()

    async def _join(self, client: _ClientConnection, connected: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        _, side = await loop.create_connection(lambda: SplicedConnection(client, self._forget), sock=connected)
        if not side.transport.is_closing():
            self._sides.add(side)

    def _look_around(self) -> None:
        for side in tuple(self._sides):
            if side.is_dead():
                side.transport.abort()
        self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_around)


def _peer(side: SplicedConnection) -> str:
    """Its address; empty if it was gone before it was asked."""
    return str((side.transport.get_extra_info("peername") or ("",))[0])


async def _connected(backend: EndpointInfo, seconds: float) -> socket.socket:
    """A connection to a backend. Raises OSError, and TimeoutError when it says nothing for so long."""
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_connect(one, (str(backend.address), backend.port))
    except TimeoutError:
        # A loop with much to do hears late of what is there already.
        if one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED:
            one.close()
            raise
    except BaseException:
        one.close()
        raise
    return one


def _call(transport: asyncio.Transport) -> ClientConnection | None:
    """Whom the client called; None when the connection is lost, or was not redirected at all."""
    own: Any = transport.get_extra_info("socket")
    try:
        port, called = struct.unpack("!2xH4s8x", own.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16))
    except OSError:
        return None
    local = IPv4Address(transport.get_extra_info("sockname")[0])
    caller = IPv4Address(transport.get_extra_info("peername")[0])
    return ClientConnection((IPv4Address(called), Protocol.TCP, port), caller, is_own=local.is_loopback)

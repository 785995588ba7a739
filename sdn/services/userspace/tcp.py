"""TCP in user space: each connection that the firewall redirects here is joined with one to a backend."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

from sdn.services.directory import Call
from sdn.services.served_port import Backend, Protocol
from sdn.services.userspace.joined import Side

SILENCES = (0.25, 0.5, 1.0, 2.0)
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


class _Arrival(Side):
    """The side of a client."""

    def __init__(self, lost: Callable[[Side], None], made: Callable[[_Arrival], None]) -> None:
        super().__init__(None, lost)
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        self._made(self)


class TcpListener:
    """`choose` gives the backends for a call, in the order in which to try them; `took` hears which one took it.

    With more than `most` connections, or than the daemon has files for, the client that has the most loses its oldest.
    """

    def __init__(
        self, choose: Callable[[Call], list[Backend]], took: Callable[[Call, Backend], None], most: int
    ) -> None:
        self._choose = choose
        self._took = took
        self._most = most
        self._clients: dict[str, dict[Side, None]] = {}
        self._count = 0
        self._server: asyncio.Server | None = None
        self._sides: set[Side] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None
        self._is_idle = asyncio.Event()

    async def open(self, listening: socket.socket) -> None:
        """Take connections."""
        loop = asyncio.get_running_loop()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = min(self._most, max(files - OTHER_FILES, files // 2) // 2)
        self._server = await loop.create_server(
            lambda: _Arrival(self._forget, self._arrived), sock=listening, backlog=1024
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

    def _arrived(self, client: _Arrival) -> None:
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

    def _uncount(self, side: Side) -> None:
        peer = _peer(side)
        own = self._clients.get(peer, {})
        if side in own:
            del own[side]
            self._count -= 1
            if not own:
                del self._clients[peer]

    def _forget(self, side: Side) -> None:
        self._sides.discard(side)
        self._uncount(side)
        if not self._sides:
            self._is_idle.set()

    async def _serve(self, client: _Arrival) -> None:
        call = _call(client.transport)
        left = [] if call is None else self._choose(call)
        silences = list(SILENCES)
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

    async def _join(self, client: _Arrival, connected: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        _, side = await loop.create_connection(lambda: Side(client, self._forget), sock=connected)
        if not side.transport.is_closing():
            self._sides.add(side)

    def _look_around(self) -> None:
        for side in tuple(self._sides):
            if side.is_dead():
                side.transport.abort()
        self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_around)


def _peer(side: Side) -> str:
    """Its address; empty if it was gone before it was asked."""
    return str((side.transport.get_extra_info("peername") or ("",))[0])


async def _connected(backend: Backend, seconds: float) -> socket.socket:
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


def _call(transport: asyncio.Transport) -> Call | None:
    """Whom the client called; None when the connection is lost, or was not redirected at all."""
    own: Any = transport.get_extra_info("socket")
    try:
        port, called = struct.unpack("!2xH4s8x", own.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16))
    except OSError:
        return None
    local = IPv4Address(transport.get_extra_info("sockname")[0])
    caller = IPv4Address(transport.get_extra_info("peername")[0])
    return Call((IPv4Address(called), Protocol.TCP, port), caller, is_own=local.is_loopback)

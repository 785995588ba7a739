"""HTTP and HTTPS listener of a daemon, with limits on the number and the time of connections.

Which connections are kept is decided before TLS begins (`reconcile/connection_limiter.py`). The head of a request is
limited: MAX_REQUEST_LINE_BYTES for its first line; aiohttp limits each header to 8,190 bytes and the number of headers
to 128 (status 400).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import struct
import time
from asyncio import sslproto
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from reconcile.connection_limiter import ConnectionLimiter, Limits, Rejection, source
from reconcile.errors import NotReady
from reconcile.handshake_turns import HandshakeTurns

CLOSING_SECONDS = 2.0
"""Seconds that requests may still take when the server stops."""

TLS_SHUTDOWN_SECONDS = 5.0
"""Seconds that a closed connection waits for the close_notify of the other side."""

RESERVED_FILES = 128
"""File descriptors that are kept for the daemon itself: its store, its log, files that it reads."""

TLS_READ_BUFFER_BYTES = 16 << 10
"""Size of asyncio's TLS read buffer per connection. Its default of 256 KB would be most of the memory of a watch."""

SESSION_TICKETS = 0
"""Tickets with which a TLS 1.3 client could resume its session. Clients of the daemons do not, and two tickets with a
client certificate in them take two fifths of the server's time for a handshake.
"""

MAX_PATH_PARTS = 256
"""Parts of a path. The router of aiohttp takes quadratic time: 60,000 parts need a second, before authentication."""

MAX_REQUEST_LINE_BYTES = 128 << 10
"""Limit of a request's first line, which holds all arguments of a program to execute in a pod."""

log = logging.getLogger(__name__)
CLIENT_ERRORS = (HttpProcessingError, web.RequestPayloadError)
log.addFilter(lambda record: record.exc_info is None or not isinstance(record.exc_info[1], CLIENT_ERRORS))
"""Logger of aiohttp. Malformed requests are answered with an error and not logged."""


BACKLOG = 1024
"""Number of connections that the kernel holds until they are accepted."""

MAX_REJECTED = 64
"""Connections that are rejected before other tasks run. Others run after each accepted connection, so requests wait for
one handshake at a time, and not for all that a flood begins.
"""

MAX_HANDSHAKES, SHORTEST_TURN_SECONDS, LONGEST_TURN_SECONDS = 4, 0.002, 0.05
"""TLS handshakes that are done at the same time, and how long a client may take its time before the next one begins.

Thousands of clients that connect at once answer at once, too, and each answer takes 2 ms or more: other requests would
wait for all of them. A connection whose client has sent nothing has no turn (`reconcile/handshake_turns.py`).
"""

ACCEPT_RETRY_SECONDS = 1.0
"""Delay after an error of accept(2), such as too many open files, as in asyncio."""


class Listener:
    """HTTP or HTTPS listener. `start()` listens at one more address, `stop()` ends all; `port` is the first port.

    `on_rejected` is called with the reason of each Rejection.
    """

    def __init__(self, app: web.Application, limits: Limits, on_rejected: Callable[[str], object]) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=log,
            auto_decompress=False,
            handler_cancellation=True,
            shutdown_timeout=CLOSING_SECONDS,
            keepalive_timeout=limits.idle_seconds,
            max_line_size=MAX_REQUEST_LINE_BYTES,
        )
        self._limits = limits.within(raise_file_limit() - RESERVED_FILES)
        self._limiter = ConnectionLimiter(self._limits)
        self._accepting: dict[int, tuple[socket.socket, asyncio.Task[None]]] = {}
        """Listening socket and the task that accepts its connections, by port."""
        self._open: dict[int, _Connection] = {}
        self._turns = HandshakeTurns(MAX_HANDSHAKES, SHORTEST_TURN_SECONDS, LONGEST_TURN_SECONDS)
        self._on_rejected = on_rejected
        self.port = 0

    async def start(self, address: str, port: int, context: ssl.SSLContext | None = None) -> None:
        """Listen, with TLS if there is a context. Raises NotReady if the address cannot be bound."""
        sslproto.SSLProtocol.max_size = TLS_READ_BUFFER_BYTES
        if context is not None:
            context.num_tickets = SESSION_TICKETS
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listening = socket.create_server((address, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise NotReady(f"cannot listen on {address}:{port}: {error}") from error
        listening.setblocking(False)
        if self._runner.server is None:
            await self._runner.setup()
            self._bound_paths()
        port = listening.getsockname()[1]
        self._accepting[port] = listening, asyncio.create_task(self._accept(listening, context))
        self.port = self.port or port

    def _bound_paths(self) -> None:
        """Respond to paths of more than MAX_PATH_PARTS parts before aiohttp's router reads them."""
        server = self._runner.server
        assert server is not None
        handle = server.request_handler

        async def handle_bounded(request: web.BaseRequest) -> web.StreamResponse:
            parts = request.rel_url.raw_path.count("/")
            if parts > MAX_PATH_PARTS:
                return web.Response(status=414, text=f"the path has {parts} parts; {MAX_PATH_PARTS} are accepted")
            return await handle(request)

        server.request_handler = handle_bounded

    async def stop_port(self, port: int) -> None:
        """Stop listening at a port. Its connections stay."""
        listening, task = self._accepting.pop(port)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listening.close()

    async def stop(self) -> None:
        """Stop listening. Requests have CLOSING_SECONDS to finish, then they are cancelled."""
        for port in tuple(self._accepting):
            await self.stop_port(port)
        handshakes = [connection for connection in self._open.values() if connection.transport is None]
        for connection in handshakes:
            connection.abort()
        await asyncio.gather(*(connection.handshake for connection in handshakes if connection.handshake is not None))
        await self._runner.cleanup()

    def authenticate(self, transport: asyncio.BaseTransport | None, user: str, *, is_exempt: bool) -> bool:
        """Count a connection for the user whom a request on it has authenticated.

        Return False if the request must be answered with 429. A user who is exempt is limited only by the number of
        all connections, and takes places of others.
        """
        if transport is None:
            return True
        number = transport.get_extra_info("socket").fileno()
        rejected = self._limiter.authenticate(number, user, time.monotonic(), is_exempt=is_exempt)
        if rejected is not None and rejected.connection == number:
            self._on_rejected(rejected.reason)
            return False
        self._reject(rejected)
        return True

    async def _accept(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        """Accept connections, and start those that the limits allow."""
        loop, rejected_count = asyncio.get_running_loop(), 0
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
                connection = _Connection(accepted, self._forget)
            except OSError as error:
                log.warning("cannot accept connections", extra={"error": error})
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            self._open[connection.number] = connection
            client = source(peer[0])
            self._reject(self._limiter.add(connection.number, client, time.monotonic()))
            if connection.number in self._open:
                connection.handshake = asyncio.create_task(self._serve(connection, client, context))
            else:
                rejected_count = (rejected_count + 1) % MAX_REJECTED
            if connection.handshake is not None or rejected_count == 0:
                await asyncio.sleep(0)  # Waiting connections are accepted at once, without other tasks in between.

    async def _serve(self, connection: _Connection, client: str, context: ssl.SSLContext | None) -> None:
        """Do the TLS handshake when its turn comes, and pass the connection to the HTTP server.

        A client whose turn does not come within `handshake_seconds` is disconnected, as one that sends nothing.
        """
        if context is None:
            await self._connect(connection, None)
            return
        try:
            async with asyncio.timeout(self._limits.handshake_seconds):
                await connection.wait_readable()
                seconds = await self._turns.begin(client, is_known=self._limiter.is_known(client))
        except TimeoutError:
            connection.close()
            return
        connecting = asyncio.create_task(self._connect(connection, context))
        try:
            await asyncio.wait((connecting,), timeout=seconds)
        finally:
            self._turns.end(client, is_done=connecting.done())
        await connecting

    async def _connect(self, connection: _Connection, context: ssl.SSLContext | None) -> None:
        server = self._runner.server
        assert server is not None
        with contextlib.suppress(OSError):
            connection.transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                server,
                connection,
                ssl=context,
                ssl_handshake_timeout=self._limits.handshake_seconds if context else None,
                ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS if context else None,
            )

    def _reject(self, rejected: Rejection | None) -> None:
        if rejected is not None:
            self._on_rejected(rejected.reason)
            self._open[rejected.connection].abort()

    def _forget(self, number: int) -> None:
        self._limiter.remove(number)
        del self._open[number]


def release_read_buffer(transport: asyncio.BaseTransport) -> None:
    """Free the TLS read buffer of a connection on which nothing more is expected from the client, such as a watch.

    If the client sends something, asyncio makes a new buffer. It has no interface to free one.
    """
    protocol = getattr(transport, "_ssl_protocol", None)
    if isinstance(protocol, sslproto.SSLProtocol):
        vars(protocol).update(_ssl_buffer=bytearray(), _ssl_buffer_view=memoryview(b""))


RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which a close sends a reset, and the kernel keeps nothing of the connection."""


class _Connection(socket.socket):
    """An accepted connection. `on_closed` is called with its number, the file descriptor, when it is closed.

    The socket reports this because all protocols that a connection can have (TLS, HTTP, an upgraded stream) end there.
    """

    def __init__(self, accepted: socket.socket, on_closed: Callable[[int], None]) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self.number = self.fileno()
        self.handshake: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self._on_closed = on_closed

    async def wait_readable(self) -> None:
        """Wait until the client has sent something, or has disconnected."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self)

    def abort(self) -> None:
        """Close the connection without waiting for its client."""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is None:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.close()
        else:
            with contextlib.suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)  # asyncio, which owns the socket during the handshake, closes it then.

    def close(self) -> None:
        """Close the socket."""
        if self.fileno() >= 0:
            self._on_closed(self.number)
        super().close()


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit, and return it."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    return hard_limit

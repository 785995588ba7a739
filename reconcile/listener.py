"""HTTPS listener of a daemon, with limits on the number and the time of connections.

The head of a request is limited: MAX_REQUEST_LINE_BYTES for its first line; aiohttp limits each header to 8,190 bytes
and the number of headers to 128 (status 400).
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from asyncio import sslproto
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from reconcile.errors import NotReady

CLOSING_SECONDS = 2.0
"""Seconds that requests may still take when the server stops."""

TLS_SHUTDOWN_SECONDS = 5.0
"""Seconds that a closed connection waits for the close_notify of the other side."""

RESERVED_FILES = 128
"""File descriptors that are kept for the daemon itself: its store, its log, files that it reads."""

TLS_READ_BUFFER_BYTES = 16 << 10
"""Size of asyncio's TLS read buffer per connection. Its default of 256 KB would be most of the memory of a watch."""

MAX_REQUEST_LINE_BYTES = 128 << 10
"""Limit of a request's first line, which holds all arguments of a program to execute in a pod."""

log = logging.getLogger(__name__)
CLIENT_ERRORS = (HttpProcessingError, web.RequestPayloadError)
log.addFilter(lambda record: record.exc_info is None or not isinstance(record.exc_info[1], CLIENT_ERRORS))
"""Logger of aiohttp. Malformed requests are answered with an error and not logged."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a listener. Connections beyond `connections` are closed on arrival.

    `handshake_seconds` limits the TLS handshake, `idle_seconds` the wait for the complete head of the next request.
    """

    connections: int = 20_000
    handshake_seconds: float = 10.0
    idle_seconds: float = 75.0


class Listener:
    """HTTPS listener. After `start()`, `port` is the port number; `stop()` ends it."""

    def __init__(self, app: web.Application, limits: Limits) -> None:
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
        self._limits = limits
        self._socket: asyncio.Server | None = None
        self.port = 0

    async def start(self, address: str, port: int, context: ssl.SSLContext) -> None:
        """Listen. Raises NotReady if the address cannot be bound."""
        sslproto.SSLProtocol.max_size = TLS_READ_BUFFER_BYTES
        max_connections = min(self._limits.connections, raise_file_limit() - RESERVED_FILES)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None

        def connected() -> asyncio.Protocol:
            return server() if len(server.connections) < max_connections else _ClosedConnection()

        try:
            self._socket = await asyncio.get_running_loop().create_server(
                connected,
                address,
                port,
                ssl=context,
                backlog=1024,
                ssl_handshake_timeout=self._limits.handshake_seconds,
                ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
            )
        except OSError as error:
            await self._runner.cleanup()
            raise NotReady(f"cannot listen on {address}:{port}: {error}") from error
        self.port = self._socket.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening. Requests have CLOSING_SECONDS to finish, then they are cancelled."""
        if self._socket is not None:
            self._socket.close()
        await self._runner.cleanup()


class _ClosedConnection(asyncio.Protocol):
    """A connection beyond the limit, closed on arrival."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit, and return it."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    return hard_limit

"""A listening socket of a daemon: HTTPS connections, within limits of number and time.

A head of a request is limited: LONGEST_LINE for its first line, and by aiohttp 8,190 bytes for each header, 128 headers
(400).
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
"""How long requests may still take when the server stops."""

GOODBYE_SECONDS = 5.0
"""How long a connection that was closed waits for the other side to agree."""

OWN_FILES = 128
"""Files that a daemon opens itself: its store, its log, what it reads."""

READ_AHEAD = 16 << 10
"""Bytes that asyncio's TLS keeps ready for reading, for every connection; its own 256 KB would be most of a watch."""

LONGEST_LINE = 128 << 10
"""Bytes of a request's first line: a program to be executed in a pod has all its words in there."""

log = logging.getLogger(__name__)
THEIR_FAULT = (HttpProcessingError, web.RequestPayloadError)
log.addFilter(lambda record: record.exc_info is None or not isinstance(record.exc_info[1], THEIR_FAULT))
"""For what aiohttp has to say; anybody can send what is no HTTP, and is told so."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`connections` at the same time; more are closed as they come.

    `handshake_seconds` for TLS to begin, `idle_seconds` for the whole head of the next request to be there.
    """

    connections: int = 20_000
    handshake_seconds: float = 10.0
    idle_seconds: float = 75.0


class Listener:
    """`await start(...)`, then `port` is where it listens; `await stop()` ends all requests."""

    def __init__(self, app: web.Application, limits: Limits) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=log,
            auto_decompress=False,
            handler_cancellation=True,
            shutdown_timeout=CLOSING_SECONDS,
            keepalive_timeout=limits.idle_seconds,
            max_line_size=LONGEST_LINE,
        )
        self._limits = limits
        self._socket: asyncio.Server | None = None
        self.port = 0

    async def start(self, address: str, port: int, context: ssl.SSLContext) -> None:
        """Listen. Raises NotReady when the address cannot be had."""
        sslproto.SSLProtocol.max_size = READ_AHEAD
        most = min(self._limits.connections, allow_files() - OWN_FILES)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None

        def connected() -> asyncio.Protocol:
            return server() if len(server.connections) < most else _Refusal()

        try:
            self._socket = await asyncio.get_running_loop().create_server(
                connected,
                address,
                port,
                ssl=context,
                backlog=1024,
                ssl_handshake_timeout=self._limits.handshake_seconds,
                ssl_shutdown_timeout=GOODBYE_SECONDS,
            )
        except OSError as error:
            await self._runner.cleanup()
            raise NotReady(f"cannot listen on {address}:{port}: {error}") from error
        self.port = self._socket.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more, and let requests finish."""
        if self._socket is not None:
            self._socket.close()
        await self._runner.cleanup()


class _Refusal(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def allow_files() -> int:
    """How many files this process may have open: as many as it is allowed to allow itself."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most

"""The raw connection after `101 Switching Protocols`: of a request to our server, and of a response to our client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from streams.connection import Connection

KEEPALIVE_OPTIONS = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""Seconds without data before the first keep-alive probe, seconds between probes, and unanswered probes allowed."""


class UpgradeResponse(web.StreamResponse):
    """A response 101. The handler calls `upgrade`, uses the connection, and returns this response.

    aiohttp can cancel the handlers of clients that have disconnected. It does not cancel this handler: the stream ends
    instead. If the handler ends in any other way than by returning, the connection is aborted.
    """

    def __init__(self, headers: Iterable[tuple[str, str]]) -> None:
        """`headers` contains Upgrade; Connection is added."""
        super().__init__(status=101, headers=CIMultiDict([("Connection", "Upgrade"), *headers]))
        self.force_close()

    async def upgrade(self, request: web.Request) -> Connection:
        """Send the response and return the connection. Only the task that handles the request may call this.

        Raises ConnectionResetError if the client has disconnected.
        """
        protocol = request.protocol
        await self.prepare(request)
        transport = protocol.transport
        task = asyncio.current_task()
        if transport is None or task is None:
            raise ConnectionResetError("the client has gone")
        remainder = _RemainderParser()
        protocol.set_parser(remainder)  # type: ignore[arg-type]
        lost: list[Exception | None] = []

        def connection_lost(error: Exception | None) -> None:
            """Notify aiohttp of the loss only when the handler has ended, because aiohttp would cancel the handler."""
            lost.append(error)
            if task.done():
                protocol.connection_lost(error)

        def handler_done(done: asyncio.Task[object]) -> None:
            if done.cancelled() or done.exception() is not None:
                connection.abort()
            else:
                connection.close()
            if lost:
                protocol.connection_lost(lost[0])

        connection = Connection(half_close=False, watch_client=True, on_lost=connection_lost)
        # Without a transport, aiohttp cannot write anything else to the client.
        protocol.transport = None
        task.add_done_callback(handler_done)
        _switch_protocol(transport, connection, remainder)
        return connection

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing, because the response ends with its headers."""


def upgraded_connection(response: aiohttp.ClientResponse, *, half_close: bool = False) -> Connection:
    """Return the connection of a response 101 to one of our requests. The stream owns the connection from now on.

    With `half_close` the connection stays open for reading when writing ends. Raises ConnectionResetError if the
    server has disconnected.
    """
    client_connection = response.connection
    protocol = None if client_connection is None else client_connection.protocol
    transport = None if protocol is None else protocol.transport
    if client_connection is None or protocol is None or transport is None:
        raise ConnectionResetError("the server has gone")
    remainder = _RemainderParser()
    protocol.set_parser(remainder, remainder)

    def connection_lost(error: Exception | None) -> None:
        """Close the response. Until now this closure referenced it, so that aiohttp did not reuse the connection."""
        protocol.connection_lost(error)
        response.close()

    connection = Connection(half_close=half_close, on_lost=connection_lost)
    _switch_protocol(transport, connection, remainder)
    return connection


def enable_keepalive(transport: asyncio.BaseTransport) -> None:
    """Enable TCP keep-alive, so that the kernel detects a peer that disappeared without closing the connection."""
    connected: Any = transport.get_extra_info("socket")
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE_OPTIONS:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)


class _RemainderParser:
    """A parser for aiohttp that collects the bytes read after the head of a message."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Collect bytes. The result has the form that aiohttp expects of its parsers."""
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """Do nothing at the end of the input."""

    def is_eof(self) -> bool:
        """Return False, so that the connection is not used for another request."""
        return False


def _switch_protocol(transport: asyncio.Transport, connection: Connection, remainder: _RemainderParser) -> None:
    enable_keepalive(transport)
    transport.set_protocol(connection)
    connection.connection_made(transport)
    transport.resume_reading()
    if remainder.data:
        connection.data_received(remainder.data)

"""The raw connection behind a request or an answer of HTTP, after `101 Switching Protocols`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from streams.connection import Connection

DEAD_PEER = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""Seconds of silence before the first question and between questions, and how many may stay without an answer."""


class Upgraded(web.StreamResponse):
    """The answer 101 to a request; `take` sends it and gives the connection. It is what the handler has to return.

    Where aiohttp cancels the handlers of clients that went, it does not cancel this one: its stream ends. When the
    handler has ended in any other way than by returning, the connection is aborted.
    """

    def __init__(self, headers: Iterable[tuple[str, str]]) -> None:
        """`headers` beside Connection; Upgrade is one of them."""
        super().__init__(status=101, headers=CIMultiDict([("Connection", "Upgrade"), *headers]))
        self.force_close()

    async def take(self, request: web.Request) -> Connection:
        """Answer 101, and give what follows. Only the task that handles the request may call it."""
        protocol = request.protocol
        await self.prepare(request)
        transport, task = protocol.transport, asyncio.current_task()
        if transport is None or task is None:
            raise ConnectionResetError("the client has gone")
        tail = _Tail()
        protocol.set_parser(tail)  # type: ignore[arg-type]
        lost: list[Exception | None] = []

        def gone(error: Exception | None) -> None:
            """aiohttp is told that the connection is lost when nobody works on the request any more."""
            lost.append(error)
            if task.done():
                protocol.connection_lost(error)

        def handled(done: asyncio.Task[object]) -> None:
            if done.cancelled() or done.exception() is not None:
                connection.abort()
            else:
                connection.close()
            if lost:
                protocol.connection_lost(lost[0])

        connection = Connection(whole=True, guest=True, lost=gone)
        # Without a transport nothing that aiohttp might still want to say reaches the client.
        protocol.transport = None
        task.add_done_callback(handled)
        _switch(transport, connection, tail)
        return connection

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing follows from here."""


def taken(response: aiohttp.ClientResponse, *, whole: bool = True) -> Connection:
    """The connection behind an answer 101 to a request of ours. It belongs to the stream from here on.

    One that is not `whole` stays open for reading when writing ends.
    """
    held = response.connection
    protocol = None if held is None else held.protocol
    transport = None if protocol is None else protocol.transport
    if held is None or protocol is None or transport is None:
        raise ConnectionResetError("the server has gone")
    tail = _Tail()
    protocol.set_parser(tail, tail)

    def gone(error: Exception | None) -> None:
        """An answer that nobody keeps would give the connection back, to be used again: until now this kept it."""
        protocol.connection_lost(error)
        response.close()

    connection = Connection(whole=whole, lost=gone)
    _switch(transport, connection, tail)
    return connection


class _Tail:
    """Takes what aiohttp has read beyond the head."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """In the form of the parsers of aiohttp."""
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """Nothing is to be done."""

    def is_eof(self) -> bool:
        """Never: the connection is not to be used for another request."""
        return False


def notice_death(transport: asyncio.BaseTransport) -> None:
    """Have the kernel ask now and then whether the other side is still there: it may have gone without a word."""
    one: Any = transport.get_extra_info("socket")
    if one is None or one.family not in (socket.AF_INET, socket.AF_INET6):
        return
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in DEAD_PEER:
        one.setsockopt(socket.IPPROTO_TCP, option, value)


def _switch(transport: asyncio.Transport, connection: Connection, tail: _Tail) -> None:
    notice_death(transport)
    transport.set_protocol(connection)
    connection.connection_made(transport)
    transport.resume_reading()
    if tail.data:
        connection.data_received(tail.data)

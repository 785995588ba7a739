"""The way to one client of a watch: bytes go out as fast as it reads, and no more waits for it than is bounded.

What waits are the chunks themselves, which all watches of the same form share; a copy for one client alone, encrypted,
is made only of what its connection takes next.
"""

from __future__ import annotations

import asyncio
from collections import deque

from aiohttp import web

MOST_UNREAD = 8 << 20
"""Bytes that may wait for one client. One that lets more wait is cut off, and comes back with its last revision."""

PRIVATE = 32 << 10
"""Bytes that are encrypted for one client ahead of its reading."""


class Stream:
    """`write` never waits; `flush` does. Made when the head of the answer is on its way."""

    def __init__(self, http: web.Request, transport: asyncio.Transport, response: web.StreamResponse) -> None:
        transport.set_write_buffer_limits(high=PRIVATE)
        self._protocol = http.protocol
        self._transport = transport
        self._response = response
        self._waiting: deque[bytes] = deque()
        self._unread = 0
        self._stirred = asyncio.Event()
        self._framed = response.chunked
        self.ended = False
        self.cut_off = False
        """Whether it was ended because too much waited."""

    @property
    def full(self) -> bool:
        """Whether what is written now has to wait."""
        return bool(self._waiting)

    def write(self, chunk: bytes) -> None:
        """Send a chunk of HTTP/1.1, or let it wait behind others."""
        if not self._framed:
            chunk = chunk[chunk.index(b"\n") + 1 : -2]
        if self._transport.is_closing():
            self.end()
        elif not self._waiting and not self._protocol.writing_paused:
            self._transport.write(chunk)
        else:
            self._waiting.append(chunk)
            self._stirred.set()
            self.owe(len(chunk))

    def owe(self, size: int) -> None:
        """So many bytes more wait for the client."""
        self._unread += size
        if self._unread > MOST_UNREAD and not self.cut_off:
            self.cut_off = True
            self._waiting.clear()
            self._transport.abort()
            self.end()

    def paid(self, size: int) -> None:
        """So many bytes, of which `owe` was told, wait no more."""
        self._unread -= size

    async def flush(self) -> None:
        """Until nothing waits, or it has ended. Raises ConnectionError when the client goes."""
        while self._waiting and not self.ended:
            await self._response.drain()
            while self._waiting and not self._protocol.writing_paused:
                chunk = self._waiting.popleft()
                self.paid(len(chunk))
                self._transport.write(chunk)

    async def flow(self) -> None:
        """Send what waits, whenever something does, until it has ended."""
        while not self.ended:
            await self.flush()
            await self._stirred.wait()
            self._stirred.clear()

    def end(self) -> None:
        """Nothing more is to be sent."""
        self.ended = True
        self._stirred.set()

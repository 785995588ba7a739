"""One stream of a session: what has come of it and is not read, what is written of it and not sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

from streams.spdy.frames import CANCEL, Frame, RstStream, SynReply, data_head
from streams.stream import Stream

INBOX_LIMIT: Final = 64 * 1024
"""So much of a stream waits for its reader; above it the carrier is not read."""

OUTBOX_LIMIT: Final = 64 * 1024
"""So much of a stream waits to be sent; above it its writer waits."""

CHUNK_COST: Final = 64
"""What keeping a piece costs besides its bytes: without it, a megabyte sent byte by byte would count as a megabyte."""

LONGEST_FRAME: Final = 32 * 1024
"""The longest data frame sent: streams take turns by frames, and Go copies by so much."""


class Wire(Protocol):
    """What a stream asks of its session."""

    def send(self, frame: Frame) -> None:
        """Send a control frame before all data that waits."""
        ...

    def ready(self, stream: SpdyStream) -> None:
        """Take the turn of a stream that has something to send."""
        ...

    def consumed(self, stream: SpdyStream, size: int) -> None:
        """Know that bytes of the stream were read, or dropped."""
        ...

    def settled(self, stream: SpdyStream) -> None:
        """Forget a stream that is over both ways."""
        ...


class SpdyStream(Stream):
    """One stream of a session: bytes both ways, each way ended on its own."""

    def __init__(
        self, wire: Wire, stream_id: int, headers: Mapping[str, str], *, replied: bool, fin: bool, unidirectional: bool
    ) -> None:
        self.stream_id = stream_id
        self.headers = headers
        """As the side that opened the stream sent them; names in lower case."""
        self._wire = wire
        self._lost = ""
        self._dropped = False
        self._replied = replied or unidirectional
        self._inbox: deque[bytes] = deque()
        self._inbox_cost = 0
        self._heard_out = fin
        self._outbox: deque[memoryview] = deque()
        self._outbox_size = 0
        self._ended = unidirectional
        self._end_sent = unidirectional
        self._news = asyncio.Event()
        """Something to read, or the end of it."""
        self._room = asyncio.Event()
        """Something was sent, or never will be."""
        self._accepted = asyncio.Event()

    async def read(self) -> bytes:
        """Give the next bytes as they came, nothing at the end; what came before a loss is given before it is told."""
        while not self._inbox:
            if self._heard_out and not self._dropped:
                return b""
            self._check()
            self._news.clear()
            await self._news.wait()
        data = self._inbox.popleft()
        self._inbox_cost -= len(data) + CHUNK_COST
        self._wire.consumed(self, len(data))
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes and return when there is room for more; the bytes are not to change afterwards."""
        self._check()
        if self._ended:
            raise BrokenPipeError(f"stream {self.stream_id} is ended: nothing more can be written to it")
        self._reply()
        if not data:
            return
        self._outbox.append(memoryview(data))
        self._outbox_size += len(data)
        self._wire.ready(self)
        while self._outbox_size > OUTBOX_LIMIT:
            await self._more_room()

    async def end(self) -> None:
        """Say that nothing more will be written, and return when all that was has gone to the carrier."""
        self._check()
        self._reply()
        if not self._ended:
            self._ended = True
            self._wire.ready(self)
        while not self._end_sent:
            await self._more_room()

    async def reply(self) -> None:
        """Accept a stream the other side opened; `write` and `end` do it first where it was not done."""
        self._check()
        self._reply()

    def reset(self) -> None:
        """End the stream at once, both ways, and tell the other side; the same as `abort`."""
        self.abort()

    def abort(self) -> None:
        """End the stream at once, both ways, drop what was not read and not sent, and tell the other side."""
        if not self._lost and not self.over:
            self._wire.send(RstStream(self.stream_id, CANCEL))
        self.lose(f"stream {self.stream_id} was given up here", drop=True)

    # What follows is for the session.

    @property
    def over(self) -> bool:
        """Whether both sides have ended it, and it is all sent."""
        return self._heard_out and self._end_sent

    @property
    def heard_out(self) -> bool:
        """Whether the other side has ended its way."""
        return self._heard_out

    @property
    def ended(self) -> bool:
        """Whether it was ended here."""
        return self._ended

    @property
    def ending(self) -> bool:
        """Whether it was ended here and is still being sent."""
        return self._ended and not self._end_sent and not self._lost

    @property
    def full(self) -> bool:
        """Whether the reader has to catch up before more is taken from the carrier."""
        return self._inbox_cost > INBOX_LIMIT

    async def accepted(self) -> None:
        """Wait until the other side has accepted the stream."""
        await self._accepted.wait()
        if not self._replied:
            self._check()

    def accept(self) -> bool:
        """Know that the other side has accepted it; false if it had before."""
        if self._replied:
            return False
        self._replied = True
        self._accepted.set()
        return True

    def arrive(self, data: bytes, fin: bool) -> None:
        """Take what the other side sent."""
        if data:
            self._inbox.append(data)
            self._inbox_cost += len(data) + CHUNK_COST
        self._heard_out = self._heard_out or fin
        self._news.set()

    def next_frame(self) -> tuple[bytes, memoryview] | None:
        """Take the next data frame to be sent, as head and bytes; nothing when nothing waits."""
        if self._lost or self._end_sent:
            return None
        part = memoryview(b"")
        if self._outbox:
            first = self._outbox[0]
            part = first[:LONGEST_FRAME]
            if len(part) < len(first):
                self._outbox[0] = first[LONGEST_FRAME:]
            else:
                self._outbox.popleft()
            self._outbox_size -= len(part)
        self._end_sent = self._ended and not self._outbox
        self._room.set()
        if self.over:
            self._wire.settled(self)
        return data_head(self.stream_id, len(part), self._end_sent), part

    @property
    def has_more(self) -> bool:
        """Whether another frame waits to be sent."""
        return not self._lost and (bool(self._outbox) or (self._ended and not self._end_sent))

    def lose(self, reason: str, *, drop: bool) -> None:
        """Know that nothing more comes or goes; what has come may still be read unless it is dropped."""
        self._lost = self._lost or reason
        self._outbox.clear()
        self._wire.settled(self)
        if drop:
            self._dropped = True
            dropped = sum(map(len, self._inbox))
            self._inbox.clear()
            self._inbox_cost = 0
            self._wire.consumed(self, dropped)
        for event in (self._news, self._room, self._accepted):
            event.set()

    def _check(self) -> None:
        if self._lost:
            raise ConnectionResetError(self._lost)

    def _reply(self) -> None:
        if not self._replied:
            self._replied = True
            self._wire.send(SynReply(self.stream_id))

    async def _more_room(self) -> None:
        self._check()
        self._room.clear()
        await self._room.wait()
        if not self._end_sent:
            self._check()

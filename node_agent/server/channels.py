"""Streams over one WebSocket: channels with a number each, or one stream of bytes that is cut into binary messages."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from node_agent.server.channel_messages import Decoder, Dialect, Piece, encode
from node_agent.server.inbox import Inbox
from node_agent.server.sizes import Resizes
from node_agent.server.wire import Ear, Wire
from streams.stream import Stream

MOST_PIECE = 128 << 10
LOST = "the client has gone without taking its leave"


class Channel(Stream):
    """One channel. Its end cannot be told to a client, in no protocol: clients wait for the end of the WebSocket."""

    def __init__(self, channels: Channels, number: int) -> None:
        self.inbox = Inbox(channels.look)
        self._channels = channels
        self._number = number
        self._ended = False

    async def read(self) -> bytes:
        """Give what the client sent; see Inbox."""
        return await self.inbox.read()

    async def write(self, data: bytes) -> None:
        """Send bytes in messages of at most 128 KiB."""
        if self._ended:
            raise BrokenPipeError(f"nothing more can be written to channel {self._number}: it was ended")
        for start in range(0, len(data), MOST_PIECE):
            await self._channels.send(self._number, data[start : start + MOST_PIECE])

    async def end(self) -> None:
        """Nothing more will be written; the client is not told."""
        self._ended = True

    def abort(self) -> None:
        """Drop what has come and what will come."""
        self._ended = True
        self.inbox.clear()


class Channels(Ear):
    """The channels of one WebSocket; what comes on others than `readers` and `resizes` is dropped."""

    def __init__(self, dialect: Dialect, readers: Iterable[int], resizes: int | None, count: int) -> None:
        self.dialect = dialect
        self.resizes = Resizes()
        self._readers = {number: Channel(self, number) for number in readers}
        self._of_sizes = resizes
        self._count = count
        self._decoder = Decoder(dialect)
        self._wire: Wire | None = None

    async def open(self, request: web.Request, idle_seconds: float) -> Wire:
        """Answer the handshake. Raises as Wire.open does."""
        self._wire = await Wire.open(request, self.dialect.name, self, idle_seconds)
        return self._wire

    def channel(self, number: int) -> Channel:
        """Give the channel with this number; one that is no reader is for writing only."""
        return self._readers.get(number) or Channel(self, number)

    async def send(self, number: int, data: bytes) -> None:
        """Send one message on a channel, also an empty one. Raises ConnectionError."""
        if self._wire is None:
            raise ConnectionResetError("the WebSocket is not open")
        await self._wire.send(encode(self.dialect, number, data), as_text=self.dialect.in_base64)

    def look(self) -> None:
        """Something was fetched."""
        if self._wire is not None:
            self._wire.look()

    def hear(self, data: bytes, *, last: bool) -> None:
        """Put bytes where their message belongs. Raises ValueError for one that breaks the protocol."""
        piece = self._decoder.feed(data, last=last)
        if piece is None:
            return
        if piece.last:
            self._end(piece)
        elif piece.channel == self._of_sizes:
            self.resizes.feed(piece.data)
        elif piece.channel in self._readers:
            self._readers[piece.channel].inbox.feed(piece.data)

    def _end(self, piece: Piece) -> None:
        if piece.channel >= self._count:
            raise ValueError(f"channels are 0 to {self._count - 1}, found the end of channel {piece.channel}")
        if piece.channel == self._of_sizes:
            self.resizes.end()
        elif piece.channel in self._readers:
            self._readers[piece.channel].inbox.end()

    def waiting(self) -> int:
        """Count what no reader has fetched."""
        return sum(reader.inbox.size for reader in self._readers.values())

    def gone(self, *, clean: bool) -> None:
        """Tell all readers: to a client that took its leave it was the end of what it sends."""
        self.resizes.end()
        for reader in self._readers.values():
            if clean:
                reader.inbox.end()
            else:
                reader.inbox.lose(LOST)


class Tunnel(Stream, Ear):
    """Bytes both ways in binary messages, however they are cut: a connection inside a WebSocket."""

    def __init__(self) -> None:
        self._inbox = Inbox(self._look)
        self._wire: Wire | None = None

    async def open(self, request: web.Request, protocol: str, idle_seconds: float) -> Wire:
        """Answer the handshake. Raises as Wire.open does."""
        self._wire = await Wire.open(request, protocol, self, idle_seconds)
        return self._wire

    async def read(self) -> bytes:
        """Give the bytes of the next message."""
        return await self._inbox.read()

    async def write(self, data: bytes) -> None:
        """Send bytes as messages. Raises ConnectionError."""
        if self._wire is None:
            raise ConnectionResetError("the WebSocket is not open")
        for start in range(0, len(data), MOST_PIECE):
            await self._wire.send(data[start : start + MOST_PIECE])

    async def end(self) -> None:
        """Say goodbye to the client: a WebSocket has no half of it to end."""
        if self._wire is not None:
            await self._wire.close()

    def abort(self) -> None:
        """End the WebSocket at once."""
        self._inbox.clear()
        if self._wire is not None:
            self._wire.abort()

    def hear(self, data: bytes, *, last: bool) -> None:
        """Take bytes: how they are cut means nothing."""
        self._inbox.feed(data)

    def waiting(self) -> int:
        """Count what was not fetched."""
        return self._inbox.size

    def gone(self, *, clean: bool) -> None:
        """Tell the reader."""
        if clean:
            self._inbox.end()
        else:
            self._inbox.lose(LOST)

    def _look(self) -> None:
        if self._wire is not None:
            self._wire.look()

"""The channel.k8s.io protocols over a WebSocket.

The first byte of a message names its channel. In the base64 protocols messages are text: the first character is the
digit of the channel, the rest is base64. In v5 a message of two bytes, 255 and a channel, says that nothing more will
come on that channel.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import web

from node_agent.server.streaming.terminal_size import TerminalSizeQueue
from node_agent.server.streaming.websocket import MessageHandler, ReceiveBuffer, WebSocket
from streams.stream import Stream

CLOSE = 255
DIGIT = ord("0")


@dataclass(frozen=True, slots=True)
class ChannelProtocol:
    """One protocol of channels, by the name that a client asks for."""

    name: str
    in_base64: bool = False
    closes: bool = False
    """Whether a client can say that nothing more will come on a channel."""
    status_as_json: bool = False
    """Whether the end of a command is told as a Status, else as text and only when it failed."""


EXEC_PROTOCOLS = (
    ChannelProtocol(""),
    ChannelProtocol("channel.k8s.io"),
    ChannelProtocol("base64.channel.k8s.io", in_base64=True),
    ChannelProtocol("v4.channel.k8s.io", status_as_json=True),
    ChannelProtocol("v4.base64.channel.k8s.io", in_base64=True, status_as_json=True),
    ChannelProtocol("v5.channel.k8s.io", closes=True, status_as_json=True),
)
PORT_FORWARD_PROTOCOLS = (
    ChannelProtocol(""),
    ChannelProtocol("v4.channel.k8s.io"),
    ChannelProtocol("v4.base64.channel.k8s.io", in_base64=True),
)


@dataclass(frozen=True, slots=True)
class ChannelData:
    """Bytes for a channel; `last` says that nothing more will come on it."""

    channel: int
    data: bytes
    last: bool = False


def negotiate(asked: Iterable[str], known: tuple[ChannelProtocol, ...]) -> ChannelProtocol | None:
    """Find the first protocol in the client's order that is known; nothing when there is none.

    `asked` are the lines of Sec-WebSocket-Protocol; a client without any speaks the protocol without a name.
    """
    names = [name.strip() for line in asked for name in line.split(",") if name.strip()] or [""]
    by_name = {dialect.name: dialect for dialect in known}
    return next((by_name[name] for name in names if name in by_name), None)


def encode_channel_message(dialect: ChannelProtocol, channel: int, data: bytes) -> bytes:
    """Give the message that carries bytes of a channel."""
    if dialect.in_base64:
        return bytes((DIGIT + channel,)) + base64.b64encode(data)
    return bytes((channel,)) + data


class ChannelDecoder:
    """Says what the messages of a client mean, as their bytes come."""

    def __init__(self, dialect: ChannelProtocol) -> None:
        self._dialect = dialect
        self._begin()

    def _begin(self) -> None:
        self._channel: int | None = None
        self._rest = b""
        """What means nothing before more has come."""
        self._spoilt = False

    def feed(self, data: bytes, *, last: bool) -> ChannelData | None:
        """Give what the next bytes of a message carry, which may be `last`.

        Nothing for a message that is empty, and from where one is not base64, which clients of old may send. Raises
        ValueError for a message that breaks the protocol, after which the connection makes no sense any more.
        """
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        piece = None if self._channel is None else self._piece(self._channel, data, last)
        if last:
            self._begin()
        return piece

    def _piece(self, channel: int, data: bytes, last: bool) -> ChannelData | None:
        if self._dialect.closes and channel == CLOSE:
            self._rest += data[:2]
            if len(self._rest) > 1 or (last and not self._rest):
                raise ValueError(f"byte 255 says which channel ends by one byte, found {len(self._rest)} or more")
            return ChannelData(self._rest[0], b"", last=True) if last else None
        if not self._dialect.in_base64:
            return ChannelData(channel, data)
        return self._of_base64((channel - DIGIT) & 0xFF, data, last)

    def _of_base64(self, channel: int, data: bytes, last: bool) -> ChannelData | None:
        """Four characters are three bytes; after `=` no character has a meaning."""
        if self._spoilt:
            return None
        data = self._rest + data
        whole = len(data) if last else len(data) // 4 * 4
        text, self._rest = data[:whole], data[whole:]
        try:
            found = base64.b64decode(text, validate=True)
        except binascii.Error:
            self._spoilt = True
            return None
        self._spoilt = text.endswith(b"=")
        return ChannelData(channel, found)


MOST_PIECE = 128 << 10
CLIENT_GONE = "the client has gone without taking its leave"


class Channel(Stream):
    """One channel. Its end cannot be told to a client, in no protocol: clients wait for the end of the WebSocket."""

    def __init__(self, channels: WebSocketChannels, number: int) -> None:
        self.inbox = ReceiveBuffer(channels.look)
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


class WebSocketChannels(MessageHandler):
    """The channels of one WebSocket; what comes on others than `readers` and `resizes` is dropped."""

    def __init__(self, dialect: ChannelProtocol, readers: Iterable[int], resizes: int | None, count: int) -> None:
        self.dialect = dialect
        self.resizes = TerminalSizeQueue()
        self._readers = {number: Channel(self, number) for number in readers}
        self._of_sizes = resizes
        self._count = count
        self._decoder = ChannelDecoder(dialect)
        self._wire: WebSocket | None = None

    async def open(self, request: web.Request, idle_seconds: float) -> WebSocket:
        """Answer the handshake. Raises as Wire.open does."""
        self._wire = await WebSocket.open(request, self.dialect.name, self, idle_seconds)
        return self._wire

    def channel(self, number: int) -> Channel:
        """Give the channel with this number; one that is no reader is for writing only."""
        return self._readers.get(number) or Channel(self, number)

    async def send(self, number: int, data: bytes) -> None:
        """Send one message on a channel, also an empty one. Raises ConnectionError."""
        if self._wire is None:
            raise ConnectionResetError("the WebSocket is not open")
        await self._wire.send(encode_channel_message(self.dialect, number, data), as_text=self.dialect.in_base64)

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

    def _end(self, piece: ChannelData) -> None:
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
                reader.inbox.lose(CLIENT_GONE)


class Tunnel(Stream, MessageHandler):
    """Bytes both ways in binary messages, however they are cut: a connection inside a WebSocket."""

    def __init__(self) -> None:
        self._inbox = ReceiveBuffer(self._look)
        self._wire: WebSocket | None = None

    async def open(self, request: web.Request, protocol: str, idle_seconds: float) -> WebSocket:
        """Answer the handshake. Raises as Wire.open does."""
        self._wire = await WebSocket.open(request, protocol, self, idle_seconds)
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
            self._inbox.lose(CLIENT_GONE)

    def _look(self) -> None:
        if self._wire is not None:
            self._wire.look()

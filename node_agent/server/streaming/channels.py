"""The channel.k8s.io protocols over a WebSocket.

The first byte of a message is its channel. In the base64 protocols, messages are text: the first character is the
channel as a digit, the rest is base64. In v5, a message of two bytes, 255 and a channel, ends that channel.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import web

from node_agent.server.streaming.terminal_size import TerminalSizeQueue
from node_agent.server.streaming.websocket import MessageHandler, ReceiveBuffer, WebSocket
from streams.stream import Stream

CLOSE_CHANNEL = 255
DIGIT_ZERO = ord("0")

MAX_MESSAGE_BYTES = 128 << 10
"""Limit of the data in a message that is sent."""

CLIENT_GONE = "the client has disconnected without a close frame"


# --- protocols --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChannelProtocol:
    """A protocol of channels, by its name in Sec-WebSocket-Protocol."""

    name: str
    base64: bool = False
    """Whether messages are text in base64."""
    half_close: bool = False
    """Whether a client can end its side of a channel."""
    json_status: bool = False
    """Whether the result of a command is sent as a Status. Otherwise it is text, and sent only for a failure."""


EXEC_PROTOCOLS = (
    ChannelProtocol(""),
    ChannelProtocol("channel.k8s.io"),
    ChannelProtocol("base64.channel.k8s.io", base64=True),
    ChannelProtocol("v4.channel.k8s.io", json_status=True),
    ChannelProtocol("v4.base64.channel.k8s.io", base64=True, json_status=True),
    ChannelProtocol("v5.channel.k8s.io", half_close=True, json_status=True),
)
PORT_FORWARD_PROTOCOLS = (
    ChannelProtocol(""),
    ChannelProtocol("v4.channel.k8s.io"),
    ChannelProtocol("v4.base64.channel.k8s.io", base64=True),
)


def negotiate(headers: Iterable[str], supported: tuple[ChannelProtocol, ...]) -> ChannelProtocol | None:
    """Return the first supported protocol in the client's order, None if there is none.

    `headers` are the lines of Sec-WebSocket-Protocol. A client without such a line uses the protocol without a name.
    """
    names = [name.strip() for line in headers for name in line.split(",") if name.strip()] or [""]
    by_name = {protocol.name: protocol for protocol in supported}
    return next((by_name[name] for name in names if name in by_name), None)


# --- messages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChannelData:
    """Bytes of a channel. `last` says whether the client has ended the channel."""

    channel: int
    data: bytes
    last: bool = False


def encode_channel_message(protocol: ChannelProtocol, channel: int, data: bytes) -> bytes:
    """Return the message that carries bytes of a channel."""
    if protocol.base64:
        return bytes((DIGIT_ZERO + channel,)) + b64encode(data)
    return bytes((channel,)) + data


class ChannelDecoder:
    """A decoder of a client's messages, whose bytes it gets as they arrive."""

    def __init__(self, protocol: ChannelProtocol) -> None:
        self._protocol = protocol
        self._begin_message()

    def _begin_message(self) -> None:
        self._channel: int | None = None
        self._pending = b""
        """Bytes that cannot be decoded before further bytes have arrived."""
        self._broken = False

    def feed(self, data: bytes, *, last: bool) -> ChannelData | None:
        """Return the data in the next bytes of a message. `last` says whether the message ends with them.

        Returns None for an empty message, and for the rest of a message after invalid base64, which old clients may
        send. Raises ValueError for a protocol error.
        """
        if self._channel is None and data:
            self._channel = data[0]
            data = data[1:]
        decoded = None if self._channel is None else self._decode(self._channel, data, last)
        if last:
            self._begin_message()
        return decoded

    def _decode(self, channel: int, data: bytes, last: bool) -> ChannelData | None:
        if self._protocol.half_close and channel == CLOSE_CHANNEL:
            self._pending += data[:2]
            if len(self._pending) > 1 or (last and not self._pending):
                raise ValueError(f"channel 255 carries the number of one channel, found {len(self._pending)} or more")
            return ChannelData(self._pending[0], b"", last=True) if last else None
        if not self._protocol.base64:
            return ChannelData(channel, data)
        return self._decode_base64((channel - DIGIT_ZERO) & 0xFF, data, last)

    def _decode_base64(self, channel: int, data: bytes, last: bool) -> ChannelData | None:
        """Decode groups of four characters. Characters after `=` are ignored."""
        if self._broken:
            return None
        data = self._pending + data
        complete = len(data) if last else len(data) // 4 * 4
        text = data[:complete]
        self._pending = data[complete:]
        try:
            decoded = b64decode(text, validate=True)
        except binascii.Error:
            self._broken = True
            return None
        self._broken = text.endswith(b"=")
        return ChannelData(channel, decoded)


# --- channels of a WebSocket ------------------------------------------------------------------------------------------


class Channel(Stream):
    """A channel of a WebSocket.

    No protocol can send the end of a channel to a client: clients wait for the end of the WebSocket.
    """

    def __init__(self, channels: WebSocketChannels, number: int) -> None:
        self.buffer = ReceiveBuffer(channels.resume_reading)
        self._channels = channels
        self._number = number
        self._ended = False

    async def read(self) -> bytes:
        """Return the next bytes, empty at the end. Raises ConnectionError if the client has disconnected."""
        return await self.buffer.read()

    async def write(self, data: bytes) -> None:
        """Send bytes in messages of at most MAX_MESSAGE_BYTES. Raises ConnectionError."""
        if self._ended:
            raise BrokenPipeError(f"channel {self._number} was ended; nothing can be written to it")
        for start in range(0, len(data), MAX_MESSAGE_BYTES):
            await self._channels.send(self._number, data[start : start + MAX_MESSAGE_BYTES])

    async def end(self) -> None:
        """End writing. The client is not notified."""
        self._ended = True

    def abort(self) -> None:
        """End writing, and drop received bytes and all that follow."""
        self._ended = True
        self.buffer.clear()


class WebSocketChannels(MessageHandler):
    """The channels of a WebSocket. Only data of the channels `readable` and `resize` is used, the rest is dropped.

    `resize` is the channel of terminal sizes, None if there is none. `count` is the number of channels.
    """

    def __init__(self, protocol: ChannelProtocol, readable: Iterable[int], resize: int | None, count: int) -> None:
        self.protocol = protocol
        self.terminal_sizes = TerminalSizeQueue()
        self._readable = {number: Channel(self, number) for number in readable}
        self._resize = resize
        self._count = count
        self._decoder = ChannelDecoder(protocol)
        self._websocket: WebSocket | None = None

    async def open(self, request: web.Request, idle_seconds: float) -> WebSocket:
        """Accept the handshake. Raises HTTPBadRequest and ConnectionError as WebSocket.open does."""
        self._websocket = await WebSocket.open(request, self.protocol.name, self, idle_seconds)
        return self._websocket

    def channel(self, number: int) -> Channel:
        """Return a channel. One that is not readable is only for writing."""
        return self._readable.get(number) or Channel(self, number)

    async def send(self, number: int, data: bytes) -> None:
        """Send one message on a channel, which may be empty. Raises ConnectionError."""
        if self._websocket is None:
            raise ConnectionResetError("the WebSocket is not open")
        message = encode_channel_message(self.protocol, number, data)
        await self._websocket.send(message, as_text=self.protocol.base64)

    def resume_reading(self) -> None:
        """Let the WebSocket read again, because bytes of a channel were read."""
        if self._websocket is not None:
            self._websocket.resume_reading()

    def receive(self, data: bytes, *, last: bool) -> None:
        """Pass bytes to the channel of their message. Raises ValueError for a protocol error."""
        decoded = self._decoder.feed(data, last=last)
        if decoded is None:
            return
        if decoded.last:
            self._end_channel(decoded.channel)
        elif decoded.channel == self._resize:
            self.terminal_sizes.feed(decoded.data)
        elif decoded.channel in self._readable:
            self._readable[decoded.channel].buffer.feed(decoded.data)

    def _end_channel(self, number: int) -> None:
        if number >= self._count:
            raise ValueError(f"channels are 0 to {self._count - 1}, found the end of channel {number}")
        if number == self._resize:
            self.terminal_sizes.end()
        elif number in self._readable:
            self._readable[number].buffer.end()

    def buffered(self) -> int:
        """Return the number of bytes that were received and not read."""
        return sum(channel.buffer.size for channel in self._readable.values())

    def closed(self, *, clean: bool) -> None:
        """End the input of all channels; with an error if the client has not sent a close frame."""
        self.terminal_sizes.end()
        for channel in self._readable.values():
            if clean:
                channel.buffer.end()
            else:
                channel.buffer.fail(CLIENT_GONE)


class Tunnel(Stream, MessageHandler):
    """A byte stream in the binary messages of a WebSocket. The boundaries of messages have no meaning."""

    def __init__(self) -> None:
        self._buffer = ReceiveBuffer(self._resume_reading)
        self._websocket: WebSocket | None = None

    async def open(self, request: web.Request, protocol: str, idle_seconds: float) -> WebSocket:
        """Accept the handshake. Raises HTTPBadRequest and ConnectionError as WebSocket.open does."""
        self._websocket = await WebSocket.open(request, protocol, self, idle_seconds)
        return self._websocket

    async def read(self) -> bytes:
        """Return the next bytes, empty at the end. Raises ConnectionError if the client has disconnected."""
        return await self._buffer.read()

    async def write(self, data: bytes) -> None:
        """Send bytes in messages of at most MAX_MESSAGE_BYTES. Raises ConnectionError."""
        if self._websocket is None:
            raise ConnectionResetError("the WebSocket is not open")
        for start in range(0, len(data), MAX_MESSAGE_BYTES):
            await self._websocket.send(data[start : start + MAX_MESSAGE_BYTES])

    async def end(self) -> None:
        """Close the WebSocket in both directions, because it cannot be closed in one."""
        if self._websocket is not None:
            await self._websocket.close()

    def abort(self) -> None:
        """Abort the WebSocket."""
        self._buffer.clear()
        if self._websocket is not None:
            self._websocket.abort()

    def receive(self, data: bytes, *, last: bool) -> None:
        """Store bytes for the reader."""
        self._buffer.feed(data)

    def buffered(self) -> int:
        """Return the number of bytes that were received and not read."""
        return self._buffer.size

    def closed(self, *, clean: bool) -> None:
        """End the input; with an error if the client has not sent a close frame."""
        if clean:
            self._buffer.end()
        else:
            self._buffer.fail(CLIENT_GONE)

    def _resume_reading(self) -> None:
        if self._websocket is not None:
            self._websocket.resume_reading()

"""One WebSocket: handshake, flow control, close."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Protocol, Self

from aiohttp import web

from node_agent.server.streaming.upgrade import accept_websocket
from node_agent.server.streaming.websocket_frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    ControlFrame,
    MessagePart,
    WebSocketFrameParser,
    encode_frame,
)
from streams.connection import Connection, unsent_bytes
from streams.upgrade import UpgradeResponse

BUFFER_BYTES = 256 << 10
"""Received bytes that were not read, above which a WebSocket stops reading from its client, also within a message."""

SHARED_BUFFER_BYTES = 32 << 20
MAX_BUFFER_BYTES = 1 << 20
"""While all WebSockets together have fewer than SHARED_BUFFER_BYTES, the limit of each is MAX_BUFFER_BYTES instead.

Some clients send and do not read until they have sent everything.
"""

PONG_SECONDS = 5.0
LINGER_SECONDS = 5.0
"""Time that a closing WebSocket waits for the close frame of the client."""

MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.005, 0.25
"""First and longest interval of the checks whether all bytes are acknowledged; the interval doubles each time."""

NORMAL_CLOSURE, PROTOCOL_ERROR = 1000, 1002
"""Status codes of a close frame (RFC 6455, section 7.4.1)."""

MAX_REASON_BYTES = 120


class ReceiveBuffer:
    """Received bytes, for one reader. Adding bytes never waits; `on_read` is called after the reader took some."""

    def __init__(self, on_read: Callable[[], None]) -> None:
        self._on_read = on_read
        self._chunks: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._error = ""
        self.size = 0

    def feed(self, data: bytes) -> None:
        """Add bytes. After the end they are dropped."""
        if data and not self._ended:
            self._chunks.append(data)
            self.size += len(data)
            self._changed.set()

    def end(self) -> None:
        """End the input. Buffered bytes can still be read."""
        self._ended = True
        self._changed.set()

    def fail(self, error: str) -> None:
        """End the input with an error, which the reader gets after the buffered bytes."""
        if not self._ended:
            self._error = error
        self.end()

    def clear(self) -> None:
        """Drop the buffered bytes, and end the input."""
        self._chunks.clear()
        self.size = 0
        self.end()
        self._on_read()

    async def read(self) -> bytes:
        """Return the next bytes, empty at the end. Raises ConnectionError if the input ended with an error."""
        while not self._chunks:
            if self._error:
                raise ConnectionResetError(self._error)
            if self._ended:
                return b""
            self._changed.clear()
            await self._changed.wait()
        chunk = self._chunks.popleft()
        self.size -= len(chunk)
        self._on_read()
        return chunk


class BufferBudget:
    """The bytes in the receive buffers of all WebSockets of the process."""

    def __init__(self) -> None:
        self.total_buffered = 0

    def limit(self) -> int:
        """Return how many bytes one WebSocket may buffer at present."""
        return MAX_BUFFER_BYTES if self.total_buffered < SHARED_BUFFER_BYTES else BUFFER_BYTES


buffer_budget = BufferBudget()


class MessageHandler(Protocol):
    """The receiver of a WebSocket's messages. None of its methods waits."""

    def receive(self, data: bytes, *, last: bool) -> None:
        """Handle the next bytes of a message. `last` says whether the message ends with them.

        Raises ValueError for a protocol error, which closes the WebSocket.
        """
        ...

    def buffered(self) -> int:
        """Return the number of bytes that were received and not read."""
        ...

    def closed(self, *, clean: bool) -> None:
        """Handle the end of the input. `clean` says whether the client has sent a close frame."""
        ...


class WebSocket:
    """A WebSocket of a client. It is read all the time, unless too many bytes are buffered (BufferBudget).

    Unsolicited pongs are sent every PONG_SECONDS (RFC 6455, section 5.5.3). So a client whose pings wait behind
    unread bytes still sees that the server is alive, and a client that has disconnected is detected while it is not
    read. After `idle_seconds` without a message the connection is aborted.

    `closed` is set when the client has disconnected, or when the WebSocket was closed here.
    """

    def __init__(
        self,
        response: UpgradeResponse,
        transport: asyncio.Transport | None,
        connection: Connection,
        handler: MessageHandler,
        idle_seconds: float,
    ) -> None:
        self.response = response
        self.closed = asyncio.Event()
        self._transport = transport
        self._connection = connection
        self._handler = handler
        self._parser = WebSocketFrameParser()
        self._resumed = asyncio.Event()
        self._send_lock = asyncio.Lock()
        self._is_closing = False
        self._finished = False
        self._connection_lost = False
        self._counted_bytes = 0
        self._idle_seconds = idle_seconds
        self._last_message_at = asyncio.get_running_loop().time()
        self._tasks = (asyncio.create_task(self._read()), asyncio.create_task(self._send_pongs()))

    @classmethod
    async def open(cls, request: web.Request, protocol: str, handler: MessageHandler, idle_seconds: float) -> Self:
        """Accept the handshake. Raises HTTPBadRequest if it is invalid, ConnectionError without the client."""
        response = accept_websocket(request, protocol)
        transport = request.transport
        return cls(response, transport, await response.upgrade(request), handler, idle_seconds)

    async def send(self, message: bytes, *, as_text: bool = False) -> None:
        """Send a message, and wait until the send buffer has room again. Raises ConnectionError."""
        if self.closed.is_set():
            raise ConnectionResetError("the client has disconnected")
        self._last_message_at = asyncio.get_running_loop().time()
        await self._send_frame(TEXT if as_text else BINARY, message)

    def resume_reading(self) -> None:
        """Read from the client again if few enough bytes are buffered."""
        self._count_buffered()
        if self._counted_bytes <= BUFFER_BYTES // 2:
            self._resumed.set()

    async def close(self) -> None:
        """Wait until the client's kernel has all bytes, then close the WebSocket with a close frame."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._idle_seconds):
                await wait_until_acknowledged(self._transport, self.closed)
        was_closed = self.closed.is_set()
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self.closed.set()
        if not was_closed:
            await self._close(NORMAL_CLOSURE)
        self._finished = True
        self._count_buffered()

    def abort(self) -> None:
        """Abort the connection. Does nothing after `close`."""
        if self._finished:
            return
        self._is_closing = True
        self._finished = True
        self._count_buffered()
        self.closed.set()
        self._connection.abort()
        for task in self._tasks:
            task.cancel()

    def _count_buffered(self) -> None:
        """Update this WebSocket's part of the budget."""
        buffered = 0 if self._finished else self._handler.buffered()
        buffer_budget.total_buffered += buffered - self._counted_bytes
        self._counted_bytes = buffered

    def _is_full(self) -> bool:
        self._count_buffered()
        return self._counted_bytes > buffer_budget.limit()

    async def _send_frame(self, opcode: int, payload: bytes) -> None:
        async with self._send_lock:
            await self._connection.write(encode_frame(opcode, payload))

    async def _close(self, code: int, reason: str = "") -> None:
        """Send a close frame, and wait for the client's before closing the connection.

        A connection that is closed at once drops the bytes that the client has not received yet.
        """
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(LINGER_SECONDS):
                await self._send_frame(CLOSE, code.to_bytes(2) + reason.encode()[:MAX_REASON_BYTES])
                while (data := await self._connection.read()) and not self._has_close_frame(data):
                    pass
        self._connection.close()

    def _has_close_frame(self, data: bytes) -> bool:
        """Return whether a close frame arrived. A client with invalid frames is expected to close the connection."""
        try:
            received = self._parser.feed(data)
        except ValueError:
            return False
        return any(isinstance(frame, ControlFrame) and frame.opcode == CLOSE for frame in received)

    async def _read(self) -> None:
        clean = False
        try:
            clean = await self._read_until_closed()
        except ConnectionError:
            pass
        except ValueError as error:
            self.closed.set()
            await self._close(PROTOCOL_ERROR, str(error))
        finally:
            self.closed.set()
            self._handler.closed(clean=clean or self._is_closing)

    async def _read_until_closed(self) -> bool:
        """Read until the end. Return whether the client sent a close frame. Raises ConnectionError and ValueError."""
        while data := await self._connection.read():
            ping: ControlFrame | None = None
            for frame in self._parser.feed(data):
                if isinstance(frame, MessagePart):
                    self._handler.receive(frame.data, last=frame.last)
                elif frame.opcode == CLOSE:
                    await self._reply_to_close()
                    return True
                elif frame.opcode == PING:
                    ping = frame
                self._last_message_at = asyncio.get_running_loop().time()
            if ping is not None:
                # Of several pings only the last needs an answer (RFC 6455, section 5.5.3).
                await self._send_frame(PONG, ping.data)
            # After the connection is lost, the few remaining bytes are read, because the end comes after them.
            while self._is_full() and not self._connection_lost:
                self._resumed.clear()
                await self._resumed.wait()
        return False

    async def _reply_to_close(self) -> None:
        self.closed.set()
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(LINGER_SECONDS):
                await self._send_frame(CLOSE, NORMAL_CLOSURE.to_bytes(2))
        self._connection.close()

    async def _send_pongs(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.closed.is_set():
            idle = loop.time() - self._last_message_at
            if idle >= self._idle_seconds:
                self._connection.abort()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(PONG_SECONDS, self._idle_seconds - idle)):
                    await self.closed.wait()
                    return
            try:
                async with asyncio.timeout(PONG_SECONDS):
                    await self._send_frame(PONG, b"")
            except TimeoutError:
                continue
            except ConnectionError:
                self._connection_lost = True
                self._resumed.set()
                return


async def wait_until_acknowledged(transport: asyncio.Transport | None, closed: asyncio.Event) -> None:
    """Wait until the client's kernel has acknowledged all bytes, or until the client has disconnected.

    If a connection is closed before, the kernel drops unacknowledged bytes when another byte arrives. A ping is enough,
    and a slow client would miss the end of a program's output.
    """
    poll_seconds = MIN_POLL_SECONDS
    while not closed.is_set() and transport is not None and not transport.is_closing() and unsent_bytes(transport):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(poll_seconds):
                await closed.wait()
        poll_seconds = min(poll_seconds * 2, MAX_POLL_SECONDS)

"""One WebSocket: handshake, flow control, close."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import struct
import termios
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Protocol, Self

from aiohttp import web

from node_agent.server.streaming import websocket_frames
from node_agent.server.streaming.upgrade import accept_websocket
from node_agent.server.streaming.websocket_frames import ControlFrame, MessagePart, WebSocketFrameParser, encode_frame
from streams.connection import Connection
from streams.upgrade import UpgradeResponse


class ReceiveBuffer:
    """Bytes in the order in which they came; `fetched` is called whenever a reader has taken some."""

    def __init__(self, fetched: Callable[[], None]) -> None:
        self._fetched = fetched
        self._pieces: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._closed = False
        self._lost = ""
        self.size = 0

    def feed(self, data: bytes) -> None:
        """Take bytes; after the end they are dropped."""
        if data and not self._closed:
            self._pieces.append(data)
            self.size += len(data)
            self._news.set()

    def end(self) -> None:
        """Nothing more will come; what is here can still be fetched."""
        self._closed = True
        self._news.set()

    def lose(self, why: str) -> None:
        """Nothing more will come because the other side is lost, which the reader learns after what is here."""
        if not self._closed:
            self._lost = why
        self.end()

    def clear(self) -> None:
        """Drop what is here: nobody will fetch it."""
        self._pieces.clear()
        self.size = 0
        self.end()
        self._fetched()

    async def read(self) -> bytes:
        """Give the next bytes, nothing at the end; raises ConnectionError when the other side was lost."""
        while not self._pieces:
            if self._lost:
                raise ConnectionResetError(self._lost)
            if self._closed:
                return b""
            self._news.clear()
            await self._news.wait()
        piece = self._pieces.popleft()
        self.size -= len(piece)
        self._fetched()
        return piece


BUFFER_BYTES = 256 << 10
"""So many bytes may wait to be fetched before the client is no longer listened to, also in the middle of a message."""
MAX_BUFFER_BYTES, SHARED_BUFFER_BYTES = 1 << 20, 32 << 20
"""So many may while all clients together have less than COMMON: there are some that do not read while they send."""
PONG_SECONDS = 5.0
LINGER_SECONDS = 5.0
LOOK_SECONDS = 0.005
LONGEST_LOOK_SECONDS = 0.25
NORMAL, BROKEN = 1000, 1002
MOST_WORDS = 120


class MessageHandler(Protocol):
    """Whom the messages of a WebSocket are for. None of it waits."""

    def hear(self, data: bytes, *, last: bool) -> None:
        """Take the next bytes of a message, and whether it ends with them.

        A ValueError says that it breaks the protocol, and ends the conversation.
        """
        ...

    def waiting(self) -> int:
        """So many bytes were heard and not yet fetched."""
        ...

    def gone(self, *, clean: bool) -> None:
        """Learn that nothing more will come; whether the client took its leave."""
        ...


class WebSocket:
    """A WebSocket whose client is always listened to, unless more than ROOM, or MOST_ROOM, waits to be fetched.

    Unasked pongs go out every 5 s (RFC 6455, 5.5.3): a client whose pings wait behind bytes that nobody fetches still
    knows that we are there, and a client that went away is noticed though it is not listened to. Without a message for
    `idle_seconds` it ends.
    """

    held: ClassVar[int] = 0
    """Bytes that wait to be fetched, of all clients."""

    def __init__(
        self,
        response: UpgradeResponse,
        transport: asyncio.Transport | None,
        connection: Connection,
        ear: MessageHandler,
        idle_seconds: float,
    ) -> None:
        self.response = response
        self.left = asyncio.Event()
        """The client has gone, or the conversation was ended here."""
        self._transport = transport
        self._connection = connection
        self._ear = ear
        self._frames = WebSocketFrameParser()
        self._fetched = asyncio.Event()
        self._sending = asyncio.Lock()
        self._ended_here = False
        self._over = False
        self._lost = False
        self._counted = 0
        self._idle_seconds = idle_seconds
        self._heard = asyncio.get_running_loop().time()
        self._tasks = (asyncio.create_task(self._listen()), asyncio.create_task(self._beat()))

    @classmethod
    async def open(cls, request: web.Request, protocol: str, ear: MessageHandler, idle_seconds: float) -> Self:
        """Answer the handshake. Raises HTTPBadRequest for a bad one, ConnectionError when the client has gone."""
        response, transport = accept_websocket(request, protocol), request.transport
        return cls(response, transport, await response.upgrade(request), ear, idle_seconds)

    async def send(self, message: bytes, *, as_text: bool = False) -> None:
        """Send a message and return when there is room for more. Raises ConnectionError."""
        if self.left.is_set():
            raise ConnectionResetError("the client has gone")
        self._heard = asyncio.get_running_loop().time()
        await self._say(websocket_frames.TEXT if as_text else websocket_frames.BINARY, message)

    def look(self) -> None:
        """Listen to the client again when little waits."""
        self._count(self._ear.waiting())
        if self._counted <= BUFFER_BYTES // 2:
            self._fetched.set()

    async def close(self) -> None:
        """Wait until the client's side has what was sent, say goodbye, and end it: so nothing is lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._idle_seconds):
                await flushed(self._transport, self.left)
        gone = self.left.is_set()
        await self._stop()
        self.left.set()
        if not gone:
            await self._goodbye(NORMAL)
        self._over = True
        self._count(0)

    def abort(self) -> None:
        """End it at once; after `close` nothing is left to do."""
        if self._over:
            return
        self._ended_here = self._over = True
        self._count(0)
        self.left.set()
        self._connection.abort()
        for task in self._tasks:
            task.cancel()

    def _count(self, waiting: int) -> None:
        waiting = 0 if self._over else waiting
        WebSocket.held += waiting - self._counted
        self._counted = waiting

    def _full(self) -> bool:
        self._count(self._ear.waiting())
        return self._counted > (MAX_BUFFER_BYTES if WebSocket.held < SHARED_BUFFER_BYTES else BUFFER_BYTES)

    async def _stop(self) -> None:
        self._ended_here = True
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _say(self, kind: int, payload: bytes) -> None:
        async with self._sending:
            await self._connection.write(encode_frame(kind, payload))

    async def _goodbye(self, code: int, words: str = "") -> None:
        """Say it, and wait for the client's: who closes at once forgets what is on its way."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(LINGER_SECONDS):
                await self._say(websocket_frames.CLOSE, code.to_bytes(2) + words.encode()[:MOST_WORDS])
                while (data := await self._connection.read()) and not self._takes_leave(data):
                    pass
        self._connection.close()

    def _takes_leave(self, data: bytes) -> bool:
        """Whether a client says goodbye; one whose frames make no sense closes the connection when it has heard it."""
        with contextlib.suppress(ValueError):
            return any(
                isinstance(one, ControlFrame) and one.kind == websocket_frames.CLOSE for one in self._frames.feed(data)
            )
        return False

    async def _listen(self) -> None:
        clean = False
        try:
            clean = await self._hear_all()
        except ConnectionError:
            pass
        except ValueError as error:
            self.left.set()
            await self._goodbye(BROKEN, str(error))
        finally:
            self.left.set()
            self._ear.gone(clean=clean or self._ended_here)

    async def _hear_all(self) -> bool:
        """Until the client has gone; whether it took its leave. Raises ConnectionError and ValueError."""
        while data := await self._connection.read():
            asked: ControlFrame | None = None
            for one in self._frames.feed(data):
                if isinstance(one, MessagePart):
                    self._ear.hear(one.data, last=one.last)
                elif one.kind == websocket_frames.CLOSE:
                    await self._answer_goodbye()
                    return True
                elif one.kind == websocket_frames.PING:
                    asked = one
                self._heard = asyncio.get_running_loop().time()
            if asked is not None:
                # Of several pings the last may be answered alone (RFC 6455, 5.5.3).
                await self._say(websocket_frames.PONG, asked.data)
            # What had come of a client that is lost is little, and its end comes after it.
            while self._full() and not self._lost:
                self._fetched.clear()
                await self._fetched.wait()
        return False

    async def _answer_goodbye(self) -> None:
        self.left.set()
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(LINGER_SECONDS):
                await self._say(websocket_frames.CLOSE, NORMAL.to_bytes(2))
        self._connection.close()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.left.is_set():
            idle = loop.time() - self._heard
            if idle >= self._idle_seconds:
                self._connection.abort()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(PONG_SECONDS, self._idle_seconds - idle)):
                    await self.left.wait()
                    return
            try:
                async with asyncio.timeout(PONG_SECONDS):
                    await self._say(websocket_frames.PONG, b"")
            except TimeoutError:
                continue
            except ConnectionError:
                self._lost = True
                self._fetched.set()
                return


async def flushed(transport: asyncio.Transport | None, left: asyncio.Event) -> None:
    """Wait until the other side's kernel has all that was sent, or the other side has gone.

    A connection that is closed before forgets what is on its way as soon as another byte comes in (a ping is enough),
    and a client that is slow to read would miss the end of a program's output.
    """
    pause = LOOK_SECONDS
    while not left.is_set() and transport is not None and not transport.is_closing() and _outstanding(transport):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await left.wait()
        pause = min(pause * 2, LONGEST_LOOK_SECONDS)


def _outstanding(transport: asyncio.Transport) -> int:
    """Bytes that the other side's kernel has not confirmed: ours, and the kernel's by tcp(7), SIOCOUTQ."""
    socket = transport.get_extra_info("socket")
    try:
        (queued,) = struct.unpack("i", fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4)))
    except OSError:
        return 0
    return transport.get_write_buffer_size() + int(queued)

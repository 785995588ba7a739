"""One WebSocket from its handshake to its end: messages in, messages out, bounded both ways."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import struct
import termios
from typing import Literal, Protocol, Self

from aiohttp import WSMsgType, web

ROOM = 256 << 10
"""So many bytes of a reader may wait before the client is no longer listened to."""
MOST_MESSAGE = 32 << 20
"""As much as the reference takes in one message: some clients send what they are given, however much it is, at once."""
PONG_SECONDS = 5.0
LINGER_SECONDS = 5.0
LOOK_SECONDS = 0.005
LONGEST_LOOK_SECONDS = 0.25


class Ear(Protocol):
    """Whom the messages of a WebSocket are for. None of it waits."""

    def hear(self, message: bytes) -> None:
        """Take a message; a ValueError says that it breaks the protocol, and ends the conversation."""
        ...

    def waiting(self) -> int:
        """So many bytes were heard and not yet fetched."""
        ...

    def gone(self, *, clean: bool) -> None:
        """Learn that nothing more will come; whether the client took its leave."""
        ...


class Wire:
    """A WebSocket whose client is always listened to, unless more than ROOM waits to be fetched.

    Unasked pongs go out every 5 s (RFC 6455, 5.5.3): a client whose pings wait behind bytes that nobody fetches still
    knows that we are there, and a client that went away is noticed though it is not listened to. Without a message for
    `idle_seconds` it ends.
    """

    def __init__(
        self, request: web.Request, socket: web.WebSocketResponse[Literal[False]], ear: Ear, idle_seconds: float
    ) -> None:
        self.response = socket
        self.left = asyncio.Event()
        """The client has gone, or the conversation was ended here."""
        self._request = request
        self._ear = ear
        self._ended_here = False
        self._over = False
        self._idle_seconds = idle_seconds
        self._heard = asyncio.get_running_loop().time()
        self._tasks = (asyncio.create_task(self._listen()), asyncio.create_task(self._beat()))

    @classmethod
    async def open(cls, request: web.Request, protocol: str, ear: Ear, idle_seconds: float) -> Self:
        """Answer the handshake. Raises HTTPBadRequest for a bad one, ConnectionError when the client has gone."""
        socket = web.WebSocketResponse[Literal[False]](
            protocols=(protocol,),
            compress=False,
            max_msg_size=MOST_MESSAGE,
            timeout=LINGER_SECONDS,
            decode_text=False,
        )
        if protocol:
            socket.headers["Sec-WebSocket-Protocol"] = protocol
        try:
            await socket.prepare(request)
        except ValueError:
            # aiohttp minds a key that is no base64, not one of letters beyond ASCII.
            raise web.HTTPBadRequest(text="Sec-WebSocket-Key is 16 bytes in base64\n") from None
        return cls(request, socket, ear, idle_seconds)

    async def send(self, message: bytes, *, as_text: bool = False) -> None:
        """Send a message and return when there is room for more. Raises ConnectionError."""
        if self.left.is_set():
            raise ConnectionResetError("the client has gone")
        self._heard = asyncio.get_running_loop().time()
        await self.response.send_frame(message, WSMsgType.TEXT if as_text else WSMsgType.BINARY)

    def look(self) -> None:
        """Listen to the client or not, by how much waits."""
        transport = self._request.transport
        if transport is None or self.left.is_set():
            return
        if self._ear.waiting() > ROOM:
            transport.pause_reading()
        elif self._ear.waiting() <= ROOM // 2:
            transport.resume_reading()

    async def close(self) -> None:
        """Wait until the client's side has what was sent, say goodbye, and end it: so nothing is lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._idle_seconds):
                await flushed(self._request.transport, self.left)
        await self._stop()
        self.left.set()
        transport = self._request.transport
        if transport is None:
            return
        if not transport.is_closing():
            transport.resume_reading()
        await self.response.close()
        self._over = True

    def abort(self) -> None:
        """End it at once; after `close` nothing is left to do."""
        if self._over:
            return
        self._ended_here = True
        self.left.set()
        if self._request.transport is not None:
            self._request.transport.abort()
        for task in self._tasks:
            task.cancel()

    async def _stop(self) -> None:
        self._ended_here = True
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _listen(self) -> None:
        clean = False
        try:
            while True:
                message = await self.response.receive()
                if message.type not in {WSMsgType.TEXT, WSMsgType.BINARY}:
                    clean = message.type is WSMsgType.CLOSE
                    break
                self._heard = asyncio.get_running_loop().time()
                self._ear.hear(message.data)
                self.look()
        except ValueError as error:
            self.left.set()
            await self.response.close(code=1002, message=str(error).encode()[:120])
        finally:
            self.left.set()
            self._ear.gone(clean=clean or self._ended_here)

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.left.is_set():
            idle = loop.time() - self._heard
            if idle >= self._idle_seconds:
                if self._request.transport is not None:
                    self._request.transport.abort()
                return
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(min(PONG_SECONDS, self._idle_seconds - idle)):
                    await self.left.wait()
                    return
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(PONG_SECONDS):
                    await self.response.pong()


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

"""The bytes of one connection, TCP or TLS, as a stream."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any

MOST_UNREAD = 64 << 10
"""Bytes that may wait to be read before the other side is told to wait; once as many may come before it does."""

MOST_UNSENT = 64 << 10
"""Bytes that may wait to be sent before a writer waits."""

GONE_SECONDS, GONE_TIMES = 2.0, 3
"""Between two looks at whether a client is still there while nothing of it is read, and how many have to find it gone:
until then what it said last may still be read.
"""

CLOSED, CLOSED_BY_PEER = 7, 8
"""States of a TCP connection (TCP_CLOSE and TCP_CLOSE_WAIT of linux/tcp.h)."""

FIRST_LOOK, LAST_LOOK = 0.001, 1.0
"""Seconds between two looks at whether everything is sent: twice as long each time."""


class Connection(asyncio.Protocol):
    """A Stream over a transport: the protocol to give to `create_connection`, or to put on a transport that there is.

    Of one that is `whole` nothing stays open for reading when writing ends: it is closed when everything is sent.
    That of TLS always is, as asyncio closes it both ways. `lost` is called once, with what it was lost by. With `guest`
    the other side is a client for whom all is done: when it goes while nothing of it is read, `gone` is set and the
    connection aborted.
    """

    def __init__(
        self, *, whole: bool = False, guest: bool = False, lost: Callable[[Exception | None], None] | None = None
    ) -> None:
        self.gone = asyncio.Event()
        self._guest = guest
        self._look: asyncio.TimerHandle | None = None
        self._whole = whole
        self._on_lost = lost
        self._transport: asyncio.Transport | None = None
        self._unread: list[bytes] = []
        self._size = 0
        self._paused = False
        self._ended = False
        self._lost = False
        self._why: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._full = False

    # --- what the transport tells --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with this transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._whole = self._whole or not transport.can_write_eof()
        transport.set_write_buffer_limits(high=MOST_UNSENT)
        _bound_reading(transport)

    def data_received(self, data: bytes) -> None:
        """Keep bytes for the reader; too many unread ones hold up the other side."""
        self._unread.append(data)
        self._size += len(data)
        if self._size > MOST_UNREAD and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
            if self._guest:
                self._look_later(0)
        self._wake_reader()

    def eof_received(self) -> bool:
        """Let the reader know of the end; what is still to be written can be, where the carrier allows it."""
        self._ended = True
        self._wake_reader()
        return not self._whole

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake all who wait."""
        self._lost = self._ended = True
        self._why = exc or self._why
        self._look_no_more()
        self._wake_reader()
        self._wake_writer()
        if self._on_lost is not None:
            told, self._on_lost = self._on_lost, None
            told(exc)

    def pause_writing(self) -> None:
        """Hold up the writer."""
        self._full = True

    def resume_writing(self) -> None:
        """Let the writer go on."""
        self._full = False
        self._wake_writer()

    # --- the stream ----------------------------------------------------------------------------------------------

    async def read(self) -> bytes:
        """Give the next bytes, nothing at the end. Raises ConnectionError."""
        while not self._unread and not self._ended:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if not self._unread:
            if self._why is not None:
                raise ConnectionResetError(f"connection lost: {self._why}") from self._why
            return b""
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._size = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._look_no_more()
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send, and wait while too much is unsent. Raises ConnectionError."""
        if self._transport is None or self._lost or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed") from self._why
        self._transport.write(data)
        while self._full and not self._lost:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer
        if self._lost:
            raise ConnectionResetError("the connection is closed") from self._why

    async def end(self) -> None:
        """Send what is unsent, however slowly it is read, and close for writing."""
        transport = self._transport
        if transport is None or self._lost or transport.is_closing():
            return
        # Closing gives the other side of TLS seconds to read what is unsent, and then drops it.
        pause = FIRST_LOOK
        while not self._lost and _unsent(transport):
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_LOOK)
        if self._whole:
            self.close()
        elif not self._lost:
            transport.write_eof()

    def close(self) -> None:
        """Close both ways; what is unsent still is, for as long as the transport allows. Reading has ended."""
        self._ended = True
        self._wake_reader()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it at once, both ways, and drop what was not sent; a second time does nothing."""
        self._unread.clear()
        self._ended = True
        if self._transport is not None:
            self._transport.abort()
        self._wake_reader()

    def _look_later(self, times: int) -> None:
        self._look = asyncio.get_running_loop().call_later(GONE_SECONDS, self._look_for_guest, times)

    def _look_no_more(self) -> None:
        if self._look is not None:
            self._look.cancel()

    def _look_for_guest(self, times: int) -> None:
        """asyncio hears that the other side goes only when it reads; the kernel knows."""
        times = times + 1 if self._is_closed_by_peer() else 0
        if times < GONE_TIMES:
            self._look_later(times)
            return
        self._why = ConnectionResetError("the client has gone")
        self.gone.set()
        self.abort()

    def _is_closed_by_peer(self) -> bool:
        one: Any = None if self._transport is None else self._transport.get_extra_info("socket")
        if one is None or one.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        state = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return state == CLOSED or (self._whole and state == CLOSED_BY_PEER)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)


def _carrier(transport: asyncio.Transport) -> asyncio.Transport:
    """The transport below TLS. asyncio has no other way to ask what is unsent there."""
    inner: Any = getattr(transport, "_ssl_protocol", None)
    lower = getattr(inner, "_transport", None)
    return lower if isinstance(lower, asyncio.Transport) else transport


def _unsent(transport: asyncio.Transport) -> int:
    lower = _carrier(transport)
    below = 0 if lower is transport else lower.get_write_buffer_size()
    return transport.get_write_buffer_size() + below + _unconfirmed(transport)


def _unconfirmed(transport: asyncio.Transport) -> int:
    """Bytes that the other side's kernel has not confirmed (SIOCOUTQ of tcp(7)); 0 where the carrier cannot tell.

    A socket that is closed over them forgets them as soon as another byte comes in: a ping of a slow reader is enough.
    """
    socket = transport.get_extra_info("socket")
    try:
        (queued,) = struct.unpack("i", fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4)))
    except (OSError, AttributeError):
        return 0
    return int(queued)


def _bound_reading(transport: asyncio.Transport) -> None:
    """TLS reads ahead of what is taken from it, too; only its transports can be told how far."""
    bound = getattr(transport, "set_read_buffer_limits", None)
    if bound is not None:
        bound(high=MOST_UNREAD)

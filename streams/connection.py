"""A TCP or TLS connection as a stream."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any

MAX_UNREAD_BYTES = 64 << 10
"""Unread bytes above which the transport stops reading. As many again may be read before it stops."""

MAX_UNSENT_BYTES = 64 << 10
"""Unsent bytes above which `write` waits."""

CLIENT_CHECK_SECONDS = 2.0
"""Interval of the checks whether a client is still connected while nothing is read from it."""

MAX_FAILED_CLIENT_CHECKS = 3
"""Checks in a row that must find the connection closed before it is aborted. Until then its last bytes can be read."""

TCP_CLOSE, TCP_CLOSE_WAIT = 7, 8
"""States of a TCP connection (linux/tcp.h): closed, and closed by the peer."""

MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.001, 1.0
"""First and longest interval of the checks whether all bytes are sent; the interval doubles each time."""


class Connection(asyncio.Protocol):
    """A Stream over an asyncio transport: a protocol for `create_connection`, or for a transport that exists already.

    With `half_close` the connection stays open for reading when writing ends. Without it, and always with TLS, which
    asyncio closes in both directions, the connection is closed when all bytes are sent. `on_lost` is called once,
    with the error that ended the connection or None. With `watch_client` the peer is a client on whose behalf all work
    is done: if it disconnects while nothing is read from it, `client_gone` is set and the connection is aborted.
    """

    def __init__(
        self,
        *,
        half_close: bool = True,
        watch_client: bool = False,
        on_lost: Callable[[Exception | None], None] | None = None,
    ) -> None:
        self.client_gone = asyncio.Event()
        self._half_close = half_close
        self._watch_client = watch_client
        self._client_check: asyncio.TimerHandle | None = None
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._read_paused = False
        self._read_ended = False
        self._write_paused = False
        self._connection_lost = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    # --- Callbacks of the transport ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to use this transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._half_close = self._half_close and transport.can_write_eof()
        transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        _limit_tls_read_buffer(transport)

    def data_received(self, data: bytes) -> None:
        """Store bytes for the reader. Pauses the transport when too many bytes are unread."""
        self._unread.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > MAX_UNREAD_BYTES and not self._read_paused and self._transport is not None:
            self._read_paused = True
            self._transport.pause_reading()
            if self._watch_client:
                self._schedule_client_check(0)
        self._wake_reader()

    def eof_received(self) -> bool:
        """Record the end of the input. Returns whether the transport stays open for writing."""
        self._read_ended = True
        self._wake_reader()
        return self._half_close

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the reader and the writer, and call `on_lost`."""
        self._connection_lost = True
        self._read_ended = True
        self._error = exc or self._error
        self._cancel_client_check()
        self._wake_reader()
        self._wake_writer()
        if self._on_lost is not None:
            on_lost = self._on_lost
            self._on_lost = None
            on_lost(exc)

    def pause_writing(self) -> None:
        """Make `write` wait."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Let `write` continue."""
        self._write_paused = False
        self._wake_writer()

    # --- Stream --------------------------------------------------------------------------------------------------

    async def read(self) -> bytes:
        """Return the next bytes; empty bytes at the end. Raises ConnectionError if the connection was lost."""
        while not self._unread and not self._read_ended:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if not self._unread:
            if self._error is not None:
                raise ConnectionResetError(f"connection lost: {self._error}") from self._error
            return b""
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        if self._read_paused and self._transport is not None:
            self._read_paused = False
            self._cancel_client_check()
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while too many bytes are unsent. Raises ConnectionError if the connection is closed."""
        if self._transport is None or self._connection_lost or is_closing(self._transport):
            raise ConnectionResetError("the connection is closed") from self._error
        self._transport.write(data)
        while self._write_paused and not self._connection_lost:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer
        if self._connection_lost:
            raise ConnectionResetError("the connection is closed") from self._error

    async def end(self) -> None:
        """Send all unsent bytes, however slowly the peer reads them, and close the connection for writing."""
        transport = self._transport
        if transport is None or self._connection_lost or transport.is_closing():
            return
        # asyncio drops unsent bytes of a closed TLS connection after a few seconds, so they are sent before closing.
        poll_seconds = MIN_POLL_SECONDS
        while not self._connection_lost and unsent_bytes(transport):
            await asyncio.sleep(poll_seconds)
            poll_seconds = min(2 * poll_seconds, MAX_POLL_SECONDS)
        if not self._half_close:
            self.close()
        elif not self._connection_lost:
            transport.write_eof()

    def close(self) -> None:
        """Close both directions. Reading ends; unsent bytes are sent for as long as the transport allows."""
        self._read_ended = True
        self._wake_reader()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close both directions at once and drop unsent bytes. A second call does nothing."""
        self._unread.clear()
        self._read_ended = True
        if self._transport is not None:
            self._transport.abort()
        self._wake_reader()

    # --- Detection of clients that have gone ---------------------------------------------------------------------

    def _schedule_client_check(self, failed_checks: int) -> None:
        loop = asyncio.get_running_loop()
        self._client_check = loop.call_later(CLIENT_CHECK_SECONDS, self._check_client, failed_checks)

    def _cancel_client_check(self) -> None:
        if self._client_check is not None:
            self._client_check.cancel()

    def _check_client(self, failed_checks: int) -> None:
        """Ask the kernel for the state of the connection, because asyncio notices its end only by reading."""
        failed_checks = failed_checks + 1 if self._is_closed_by_peer() else 0
        if failed_checks < MAX_FAILED_CLIENT_CHECKS:
            self._schedule_client_check(failed_checks)
            return
        self._error = ConnectionResetError("the client has gone")
        self.client_gone.set()
        self.abort()

    def _is_closed_by_peer(self) -> bool:
        connected: Any = None if self._transport is None else self._transport.get_extra_info("socket")
        if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        state = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return state == TCP_CLOSE or (not self._half_close and state == TCP_CLOSE_WAIT)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)


def _tcp_transport(transport: asyncio.Transport) -> asyncio.Transport:
    """Return the transport below TLS, or the transport itself. asyncio has no public way to get it."""
    ssl_protocol: Any = getattr(transport, "_ssl_protocol", None)
    lower = getattr(ssl_protocol, "_transport", None)
    return lower if isinstance(lower, asyncio.Transport) else transport


def is_closing(transport: asyncio.Transport) -> bool:
    """Return whether nothing that is written to a transport is sent any more.

    A TLS transport does not say so itself between a failed write and the next turn of the event loop. asyncio logs a
    warning for each further write (`socket.send() raised exception`).
    """
    return transport.is_closing() or _tcp_transport(transport).is_closing()


def unsent_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes that the peer's kernel has not acknowledged, and those that were not given to the kernel yet."""
    unsent = transport.get_write_buffer_size() + _unacknowledged_bytes(transport)
    lower = _tcp_transport(transport)
    if lower is not transport:
        unsent += lower.get_write_buffer_size()
    return unsent


def _unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes that the peer's kernel has not acknowledged (SIOCOUTQ of tcp(7)); 0 if that is unknown.

    If a socket is closed before they are acknowledged, the kernel drops them when another byte arrives. A ping of a
    slow reader is enough.
    """
    connected = transport.get_extra_info("socket")
    try:
        (queued,) = struct.unpack("i", fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(4)))
    except (OSError, AttributeError):
        return 0
    return int(queued)


def _limit_tls_read_buffer(transport: asyncio.Transport) -> None:
    """Limit how far TLS reads ahead. Only TLS transports have such a limit."""
    set_limits = getattr(transport, "set_read_buffer_limits", None)
    if set_limits is not None:
        set_limits(high=MAX_UNREAD_BYTES)

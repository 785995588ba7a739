"""Two TCP connections made one: what comes from a side, its end included, goes to the other."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Any

MOST_UNSENT = 64 << 10
"""Bytes that may wait for one side before nothing more is read of the other."""

KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 8))
"""Seconds, seconds, times: who has vanished without a word is given up after three minutes."""

_CLOSED = 7  # TCP_CLOSE of linux/tcp.h
_RESET = struct.pack("ii", 1, 0)


class Side(asyncio.Protocol):
    """The client's side has no `other` at first: nothing is read of it until a backend's side has joined it.

    A protocol and no task of its own: a thousand pairs hold 7 MB, a third of what two tasks each would. `lost` is
    called once, when the connection has ended.
    """

    def __init__(self, other: Side | None, lost: Callable[[Side], None]) -> None:
        self.transport: asyncio.Transport
        self._other = other
        self._lost = lost
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, and join the other if there is one."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=MOST_UNSENT)
        own: Any = transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            own.setsockopt(socket.IPPROTO_TCP, option, value)
        if self._other is None:
            transport.pause_reading()
        elif self._other.transport.is_closing():
            transport.abort()
        else:
            self._other._other = self
            self._other.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        assert self._other is not None
        self._other.transport.write(data)

    def eof_received(self) -> bool:
        """Pass the end on; the way back stays open until it ends too."""
        assert self._other is not None
        self._has_ended = True
        if self._other._has_ended:
            self._other.transport.close()
            return False
        with contextlib.suppress(OSError):
            self._other.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        """Hold up the other."""
        if self._other is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Let the other go on."""
        if self._other is not None:
            self._other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other too, when it has been sent what had come."""
        if self._other is not None:
            self._other.transport.close()
        self._lost(self)

    def is_dead(self) -> bool:
        """Whether the kernel has given it up: asyncio hears of that only while it reads."""
        own: Any = self.transport.get_extra_info("socket")
        return own.fileno() >= 0 and bool(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED)

    def refuse(self) -> None:
        """End it with a reset, as a host answers on whose port nobody listens."""
        if not self.transport.is_closing():
            own: Any = self.transport.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

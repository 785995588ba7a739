"""Thousands of watches in one cheap process. After the handshake it only records the arrival of bytes at each socket.

The bytes stay encrypted, because the client's processing is not the server's time.
"""

from __future__ import annotations

import os
import selectors
import socket
import ssl
import time
from types import TracebackType
from typing import Self

PATIENCE_SECONDS = 60.0


class RawWatches:
    """A context manager with this number of connections, each with one watch."""

    def __init__(self, server: str, context: ssl.SSLContext, path: str, count: int) -> None:
        host, _, port = server.removeprefix("https://").partition(":")
        self._address = (host, int(port))
        self._context = context
        self._request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\n\r\n".encode()
        self._count = count
        self._sockets: list[ssl.SSLSocket] = []
        self._ready = selectors.EpollSelector()

    def __enter__(self) -> Self:
        try:
            for _ in range(self._count):
                self._sockets.append(self._opened())
        except BaseException:
            self._close()
            raise
        for sock in self._sockets:
            sock.setblocking(False)
            self._ready.register(sock.fileno(), selectors.EVENT_READ)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        self._ready.close()
        for sock in self._sockets:
            sock.close()

    def _opened(self) -> ssl.SSLSocket:
        plain = socket.create_connection(self._address, PATIENCE_SECONDS)
        sock = self._context.wrap_socket(plain, server_hostname=self._address[0])
        sock.sendall(self._request)
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise ConnectionError(f"the server answers {head[:200]!r}")
        return sock

    def last_after(self, begin: float) -> float:
        """Seconds from a moment (time.monotonic) until every connection has got something. Raises TimeoutError."""
        left = {sock.fileno() for sock in self._sockets}
        while left:
            ready = self._ready.select(PATIENCE_SECONDS)
            if not ready:
                raise TimeoutError(f"{len(left)} of {self._count} watches got nothing")
            for key, _ in ready:
                if not os.read(key.fd, 1 << 16):
                    raise ConnectionError("the server has ended a watch")
                left.discard(key.fd)
        return time.monotonic() - begin

"""Raw sockets, also in other network namespaces."""

from __future__ import annotations

import contextlib
import socket

from tests.testbed.namespaces import inside

PACKET_HOST_OUTGOING = 4
SO_RCVBUFFORCE = 33
RECEIVE_BUFFER_BYTES = 8 << 20


class RawSocket:
    """A raw socket on one device. Frames wait in its receive buffer until they are read."""

    def __init__(self, namespace: str | None, device: str) -> None:
        with inside(namespace) if namespace else contextlib.nullcontext():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self._socket.bind((device, 0))
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)

    def fileno(self) -> int:
        """Return the file descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        """Send a frame."""
        self._socket.send(frame)

    def received(self) -> list[bytes]:
        """Return every frame that came in (on a cable: in either direction) since the last call."""
        frames = []
        with contextlib.suppress(BlockingIOError):
            while True:
                frame, address = self._socket.recvfrom(65535)
                if address[2] != PACKET_HOST_OUTGOING:
                    frames.append(frame)
        return frames

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

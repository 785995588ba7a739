"""A TCP connection between two network namespaces over which questions and answers go."""

from __future__ import annotations

import socket
import threading
from ipaddress import IPv4Address

from bench.bare import inside

SECONDS = 10.0


class Stream:
    """Small messages that are echoed; a connection that breaks or stands still fails the test."""

    def __init__(self, source: str, target: str, address: IPv4Address) -> None:
        with inside(target):
            self._server = socket.create_server((str(address), 0))
        self._echoing = threading.Thread(target=self._echo, daemon=True)
        self._echoing.start()
        with inside(source):
            self._connection = socket.socket()
        self._connection.settimeout(SECONDS)
        self._connection.connect(self._server.getsockname())

    def _echo(self) -> None:
        peer, _ = self._server.accept()
        with peer:
            while data := peer.recv(65536):
                peer.sendall(data)

    def wait_for_answers(self, count: int) -> None:
        """Send so many messages of 1,000 bytes, each after the answer to the one before."""
        for number in range(count):
            message = number.to_bytes(4, "big") * 250
            self._connection.sendall(message)
            answer = b""
            while len(answer) < len(message):
                part = self._connection.recv(65536)
                assert part, "the connection is closed"
                answer += part
            assert answer == message

    def end(self) -> None:
        """Close it."""
        self._connection.close()
        self._server.close()
        self._echoing.join(SECONDS)

"""Streams of pings and TCP messages, and how many of them were lost."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import threading
from ipaddress import IPv4Address
from pathlib import Path

from tests.testbed.namespaces import inside

DEADLINE_SECONDS = 30.0


class Ping:
    """50 pings a second to an address, out of a network namespace."""

    def __init__(self, netns: str | Path, address: str) -> None:
        self._process = subprocess.Popen(
            ["nsenter", f"--net={netns}", "ping", "-n", "-i", "0.02", "-W", "1", address],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        self._answered: set[int] = set()
        self.wait_for_answers(5)

    def wait_for_answers(self, count: int) -> None:
        """Until so many more answers have come; a ping that hears nothing for long is ended."""
        wanted = len(self._answered) + count
        patience = threading.Timer(DEADLINE_SECONDS, self._process.kill)
        patience.start()
        try:
            while len(self._answered) < wanted:
                line = self._lines.readline()
                assert line, f"no answer within {DEADLINE_SECONDS:.0f} s"
                self._read(line)
        finally:
            patience.cancel()

    def _read(self, line: str) -> None:
        actual = re.search(r"bytes from .*icmp_seq=(\d+)", line)
        if actual is not None:
            self._answered.add(int(actual.group(1)))

    def lost(self) -> int:
        """Stop, and say how many got no answer of all that were sent before the last one that did."""
        self._process.send_signal(signal.SIGINT)
        for line in self._lines:
            self._read(line)
        self.end()
        return max(self._answered) - len(self._answered)

    def end(self) -> None:
        """Stop, if that has not been done."""
        self._process.kill()
        self._lines.close()
        self._process.wait()


SECONDS = 10.0


class TcpStream:
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

"""Streams of pings, TCP messages, calls and datagrams, and how many of them were lost."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
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
        """Wait for this number of further answers. A ping without answers until the deadline is killed."""
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
    """Small messages that are echoed; a connection that breaks or stands still fails the test.

    The client connects to the server itself, or to a frontend (address, port) that leads to the server's port.
    """

    def __init__(
        self, source: str, target: str, address: IPv4Address, port: int = 0, frontend: tuple[str, int] | None = None
    ) -> None:
        with inside(target):
            self._server = socket.create_server((str(address), port))
        self._echoing = threading.Thread(target=self._echo, daemon=True)
        self._echoing.start()
        with inside(source):
            self._connection = socket.socket()
        self._connection.settimeout(SECONDS)
        self._connection.connect(frontend or self._server.getsockname())

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


class RepeatedCalls:
    """At most 50 calls a second, in sequence. `answered` counts the successful ones, `failures` are the errors of the
    others.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self.answered, self.longest_seconds = 0, 0.0
        self.failures: list[str] = []
        self._call = call
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            begin = time.monotonic()
            try:
                self._call()
                self.answered += 1
            except (OSError, AssertionError) as error:
                self.failures.append(repr(error))
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - begin)

    @property
    def done(self) -> int:
        """Return the number of calls that have succeeded or failed."""
        return self.answered + len(self.failures)

    def end(self) -> None:
        """Stop after the call that is under way."""
        self._ended.set()
        self._thread.join(DEADLINE_SECONDS)


class Datagrams:
    """100 datagrams a second from each sender to each target. `received` counts those at a receiver by sender."""

    def __init__(
        self, receiver: str, port: int, senders: Iterable[tuple[str, str]], targets: Iterable[tuple[str, int]]
    ) -> None:
        self.received: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._targets = tuple(targets)
        self._ended = threading.Event()
        with inside(receiver):
            self._socket = socket.socket(type=socket.SOCK_DGRAM)
        self._socket.bind(("", port))
        self._socket.settimeout(0.1)
        self._threads = [threading.Thread(target=self._receive, daemon=True)]
        self._threads += [threading.Thread(target=self._send, args=sender, daemon=True) for sender in senders]
        for thread in self._threads:
            thread.start()

    def _receive(self) -> None:
        while not self._ended.is_set():
            try:
                self.received[self._socket.recv(100).decode()] += 1
            except TimeoutError:
                continue

    def _send(self, name: str, namespace: str) -> None:
        with inside(namespace):
            sockets = [socket.socket(type=socket.SOCK_DGRAM) for _ in self._targets]
        while not self._ended.wait(0.01):
            for sending, (address, port) in zip(sockets, self._targets, strict=True):
                sending.sendto(f"{name} to {address}".encode(), (address, port))
                self.sent[f"{name} to {address}"] += 1
        for sending in sockets:
            sending.close()

    def end(self) -> None:
        """Stop."""
        self._ended.set()
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)
        self._socket.close()

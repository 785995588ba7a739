"""Exec and port-forward sessions of kubectl with a pod."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import pty
import re
import select
import socket
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.testbed.kubectl import ALL_PROGRAMS, version_of
from tests.testbed.lab.cluster import Cluster
from tests.testbed.namespaces import inside
from tests.testbed.wait import DEADLINE_SECONDS

KUBECTL_VARIANTS = [
    (program, websockets)
    for program in ALL_PROGRAMS
    for websockets in ("false", "true")
    if websockets == "false" or version_of(program) >= (1, 30)
]
"""Every kubectl with each of the protocols it knows."""


ECHO, GREETER, SUMS, CLOSED_PORT = 7000, 7001, 7002, 9


MEGABYTE = bytes(range(256)) * 4096


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello\n")
    await writer.drain()
    writer.close()


async def _sum(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    digest = hashlib.sha256()
    while data := await reader.read(1 << 16):
        digest.update(data)
    writer.write(digest.hexdigest().encode())
    await writer.drain()
    writer.close()


SERVERS = ((ECHO, _echo), (GREETER, _greet), (SUMS, _sum))


@contextmanager
def serving_pod_ports(pid: str) -> Iterator[None]:
    """Serve on the loopback of a pod, which is given by the PID of one of its processes. One server closes first."""
    listening = [_listener(pid, port) for port, _ in SERVERS]
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        for socket_, (_, server) in zip(listening, SERVERS, strict=True):
            await asyncio.start_server(server, sock=socket_)

    loop.run_until_complete(serve())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        for socket_ in listening:
            socket_.close()


def _listener(pid: str, port: int) -> socket.socket:
    with inside(f"/proc/{pid}/ns/net"):
        return socket.create_server(("127.0.0.1", port))


class Kubectl:
    """One of the programs, speaking one of the protocols."""

    def __init__(self, cluster: Cluster, program: str, websockets: str, home: Path) -> None:
        self.command: tuple[str, ...] = (program, f"--kubeconfig={cluster.lab.kubeconfig}", "-n", "into")
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": websockets,
            "KUBECTL_PORT_FORWARD_WEBSOCKETS": websockets,
        }

    def __str__(self) -> str:
        way = "WebSocket" if self.environment["KUBECTL_REMOTE_COMMAND_WEBSOCKETS"] == "true" else "SPDY"
        return f"{Path(self.command[0]).name} by {way}"

    def run(self, *words: str, stdin: bytes = b"") -> bytes:
        done = subprocess.run(
            [*self.command, *words], input=stdin, capture_output=True, check=False, env=self.environment, timeout=120
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    @contextmanager
    def forwarding(self, pod: str, *ports: int) -> Iterator[dict[int, int]]:
        """Forward ports of a pod to ports of loopback during the block."""
        command = [*self.command, "port-forward", f"pod/{pod}", *(f":{port}" for port in ports)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment) as process:
            try:
                assert process.stdout is not None
                actual: dict[int, int] = {}
                while len(actual) < len(ports):
                    line = process.stdout.readline().decode()
                    assert line, process.communicate()[1].decode()
                    if reported := re.match(r"Forwarding from 127\.0\.0\.1:(\d+) -> (\d+)", line):
                        actual[int(reported[2])] = int(reported[1])
                yield actual
            finally:
                process.kill()


def run_for_all(everyone: list[Kubectl], does: Callable[[Kubectl], None]) -> None:
    """Run a function for all versions of kubectl. Errors are reported with the version."""
    with ThreadPoolExecutor(4) as threads:
        done = [(kubectl, threads.submit(does, kubectl)) for kubectl in everyone]
    wrong = [f"{kubectl}: {error!r}" for kubectl, each in done if (error := each.exception()) is not None]
    assert not wrong, "\n".join(wrong)


class Terminal:
    """An interactive terminal."""

    def __init__(self, kubectl: Kubectl, *words: str) -> None:
        self._master, slave = pty.openpty()
        self.resize(30, 100)
        self._output = b""
        self.process = subprocess.Popen(
            [*kubectl.command, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=kubectl.environment,
            start_new_session=True,
        )
        os.close(slave)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, line: str, until: str = "") -> None:
        """Once; or again and again until that comes."""
        os.write(self._master, line.encode())
        if until:
            self.expect(until, again=line)

    def expect(self, pattern: str, again: str = "") -> None:
        """Wait until the output matches a pattern. `again` is typed every second meanwhile."""
        begin = typed = time.monotonic()
        while not (actual := re.search(pattern.encode(), self._output)):
            assert time.monotonic() < begin + DEADLINE_SECONDS, self._output
            if again and time.monotonic() > typed + 1:
                os.write(self._master, again.encode())
                typed = time.monotonic()
            if select.select([self._master], [], [], 0.1)[0]:
                self._output += os.read(self._master, 4096)
        self._output = self._output[actual.end() :]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


async def exchange(port: int, *pieces: bytes) -> bytes:
    """Send data over a connection, and return the response after the end of the input."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def say() -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.write_eof()

    telling = asyncio.create_task(say())
    try:
        return await reader.read()
    finally:
        await asyncio.gather(telling, return_exceptions=True)
        writer.close()

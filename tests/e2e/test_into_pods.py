"""Talking to what runs in pods: terminals, ports, many at once, and a client that is no kubectl."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import DEADLINE_SECONDS, Cluster, wait_until
from tests.e2e.test_commands import PROGRAMS, version_of

POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: NAME}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: echo, image: podlane/toolbox, command: [tcpsvd, -E, "127.0.0.1", "7000", cat]}
  - {name: greeter, image: podlane/toolbox, command: [tcpsvd, -E, "::1", "7001", echo, hello]}
  - {name: sink, image: podlane/toolbox, command: [tcpsvd, -E, "127.0.0.1", "7002", sha256sum]}
"""
PROTOCOLS = ("true", "false")
MEGABYTE = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def pod(cluster: Cluster) -> Iterator[str]:
    """A pod of the project `into` that has servers on ports of its own loopback."""
    cluster.kubectl("create", "namespace", "into")
    cluster.kubectl("-n", "into", "create", "-f", "-", stdin=POD.replace("NAME", "talker"))
    cluster.wait_running("into", "talker")
    yield "talker"
    cluster.kubectl("delete", "namespace", "into")


class Kubectl:
    """One of the programs, speaking one of the protocols."""

    def __init__(self, cluster: Cluster, program: str, websockets: str, home: Path) -> None:
        self.command = (program, f"--kubeconfig={cluster.lab.kubeconfig}", "-n", "into")
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": websockets,
            "KUBECTL_PORT_FORWARD_WEBSOCKETS": websockets,
        }

    def run(self, *words: str, stdin: bytes = b"") -> bytes:
        done = subprocess.run(
            [*self.command, *words], input=stdin, capture_output=True, check=False, env=self.environment, timeout=120
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    @contextmanager
    def forwarding(self, pod: str, *ports: int) -> Iterator[dict[int, int]]:
        """In the block, ports of the pod are ports of loopback."""
        command = [*self.command, "port-forward", f"pod/{pod}", *(f":{port}" for port in ports)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment) as process:
            try:
                assert process.stdout is not None
                found: dict[int, int] = {}
                while len(found) < len(ports):
                    line = process.stdout.readline().decode()
                    assert line, process.communicate()[1].decode()
                    if told := re.match(r"Forwarding from 127\.0\.0\.1:(\d+) -> (\d+)", line):
                        found[int(told[2])] = int(told[1])
                yield found
            finally:
                process.kill()


@pytest.fixture(params=[(program, way) for program in PROGRAMS for way in PROTOCOLS], ids=lambda row: f"{Path(row[0]).name}-{row[1]}")
def kubectl(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Kubectl:
    program, way = request.param
    if way == "true" and version_of(program) < (1, 30):
        pytest.skip("speaks no WebSocket") if False else None
    return Kubectl(cluster, program, way, tmp_path)


class Terminal:
    """A terminal with somebody at it."""

    def __init__(self, kubectl: Kubectl, *words: str) -> None:
        self._master, slave = pty.openpty()
        self.resize(30, 100)
        self._said = b""
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

    def types(self, line: str) -> None:
        os.write(self._master, line.encode())

    def sees(self, pattern: str) -> None:
        """Wait until it has come."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (found := re.search(pattern.encode(), self._said)):
            assert time.monotonic() < deadline, self._said
            if select.select([self._master], [], [], 0.1)[0]:
                self._said += os.read(self._master, 4096)
        self._said = self._said[found.end() :]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_a_terminal_has_the_size_of_the_users_and_follows_it(kubectl: Kubectl, pod: str) -> None:
    terminal = Terminal(kubectl, "exec", "-it", pod, "-c", "echo", "--", "sh")
    try:
        terminal.sees("# ")
        terminal.types("stty size\n")
        terminal.sees(r"\n30 100\r\n")
        terminal.resize(40, 120)
        terminal.process.send_signal(signal.SIGWINCH)

        def followed() -> bool:
            terminal.types("stty size; echo looked\n")
            terminal.sees(r"\nlooked\r\n|\n40 120\r\n")
            return b"" == b""

        followed()
        terminal.types("test $(stty size | cut -d' ' -f2) = 120 && echo wide; exit 4\n")
        terminal.sees(r"\nwide\r\n")
        assert terminal.process.wait(DEADLINE_SECONDS) == 4
    finally:
        terminal.close()


async def said(port: int, *pieces: bytes) -> bytes:
    """What comes back of a connection when everything is said."""
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
        await telling
        writer.close()


async def test_many_connections_to_many_ports(kubectl: Kubectl, pod: str) -> None:
    with kubectl.forwarding(pod, 7000, 7001, 7002) as ports:
        wanted = [f"{number} ".encode() * 5000 for number in range(30)]
        assert await asyncio.gather(*(said(ports[7000], one) for one in wanted)) == wanted
        assert await said(ports[7001]) == b"hello\n", "the server closes first, on IPv6"
        digest = hashlib.sha256(MEGABYTE * 20).hexdigest()
        assert (await said(ports[7002], *[MEGABYTE] * 20)).decode().split()[0] == digest


async def test_a_port_on_which_nobody_listens_spoils_nothing(kubectl: Kubectl, pod: str) -> None:
    with kubectl.forwarding(pod, 7000, 9) as ports:
        assert await said(ports[7000], b"before") == b"before"
        with pytest.raises(OSError) if False else contextless():
            assert await said(ports[9], b"x") == b""

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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
  - {name: echo, image: podlane/toolbox, command: [nc, -ll, -p, "7000", -e, cat]}
  - {name: greeter, image: podlane/toolbox, command: [nc, -ll, -p, "7001", -e, hostname]}
  - {name: sums, image: podlane/toolbox, command: [nc, -ll, -p, "7002", -e, sha256sum]}
"""
SPEAKERS = [
    (program, websockets)
    for program in PROGRAMS
    for websockets in ("false", "true")
    if websockets == "false" or version_of(program) >= (1, 30)
]
"""Every kubectl with each of the protocols it knows."""
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


@pytest.fixture
def everyone(cluster: Cluster, tmp_path: Path) -> list[Kubectl]:
    return [Kubectl(cluster, program, websockets, tmp_path) for program, websockets in SPEAKERS]


def all_at_once(everyone: list[Kubectl], does: Callable[[Kubectl], None]) -> None:
    """Everyone does the same; what goes wrong is told with the name of the one who did it."""
    with ThreadPoolExecutor(4) as threads:
        done = [(kubectl, threads.submit(does, kubectl)) for kubectl in everyone]
    wrong = [f"{kubectl}: {error!r}" for kubectl, each in done if (error := each.exception()) is not None]
    assert not wrong, "\n".join(wrong)


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


def test_a_terminal_has_the_size_of_the_users_and_follows_it(everyone: list[Kubectl], pod: str) -> None:
    all_at_once(everyone, lambda kubectl: _resized(kubectl, pod))


def _resized(kubectl: Kubectl, pod: str) -> None:
    terminal = Terminal(kubectl, "exec", "-it", pod, "-c", "echo", "--", "sh")
    try:
        terminal.sees("# ")
        terminal.types("stty size\n")
        terminal.sees(r"\n30 100\r\n")
        terminal.resize(40, 120)
        terminal.process.send_signal(signal.SIGWINCH)

        terminal.types("until test $(stty size | cut -d' ' -f2) = 120; do sleep 0.1; done; stty size\n")
        terminal.sees(r"\n40 120\r\n")
        terminal.types("exit 4\n")
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
        await asyncio.gather(telling, return_exceptions=True)
        writer.close()


def test_many_connections_to_many_ports(everyone: list[Kubectl], pod: str) -> None:
    all_at_once(everyone, lambda kubectl: asyncio.run(_forwarded(kubectl, pod)))


async def _forwarded(kubectl: Kubectl, pod: str) -> None:
    with kubectl.forwarding(pod, 7000, 7001, 7002) as ports:
        wanted = [f"{number} ".encode() * 5000 for number in range(30)]
        assert await asyncio.gather(*(said(ports[7000], one) for one in wanted)) == wanted
        assert await said(ports[7001]) == b"talker\n", "the server closes first"
        digest = hashlib.sha256(MEGABYTE * 20).hexdigest()
        assert (await said(ports[7002], *[MEGABYTE] * 20)).decode().split()[0] == digest


def test_what_goes_in_comes_out(everyone: list[Kubectl], pod: str) -> None:
    all_at_once(everyone, lambda kubectl: _carried(kubectl, pod))


def _carried(kubectl: Kubectl, pod: str) -> None:
    data = MEGABYTE * 8
    assert kubectl.run("exec", "-i", pod, "-c", "echo", "--", "cat", stdin=data) == data
    said = kubectl.run("exec", "-i", pod, "-c", "echo", "--", "sha256sum", stdin=data)
    assert said.decode().split()[0] == hashlib.sha256(data).hexdigest()


def test_a_program_ends_with_its_caller(everyone: list[Kubectl], pod: str, cluster: Cluster) -> None:
    all_at_once(everyone, lambda kubectl: _left(kubectl, pod, cluster, str(5000 + everyone.index(kubectl))))


def _left(kubectl: Kubectl, pod: str, cluster: Cluster, mark: str) -> None:
    words = [*kubectl.command, "exec", pod, "-c", "echo", "--", "sleep", mark]
    with subprocess.Popen(words, env=kubectl.environment, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: f"sleep {mark}" in _programs(cluster), "it runs")
        process.kill()
    wait_until(lambda: f"sleep {mark}" not in _programs(cluster), "it is gone")


def _programs(cluster: Cluster) -> str:
    return cluster.execute("into", "talker", "ps").stdout


# --- other clients ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python_client(cluster: Cluster) -> Any:
    from kubernetes import client, config

    return client.CoreV1Api(config.new_client_from_config(str(cluster.lab.kubeconfig)))


def test_the_python_client_runs_programs(python_client: Any, pod: str) -> None:
    from kubernetes.stream import stream

    ask = python_client.connect_get_namespaced_pod_exec
    words = ["sh", "-c", "echo out; echo err >&2; read line; echo got $line; exit 5"]
    talk = stream(
        ask, pod, "into", container="echo", command=words, stdin=True, stdout=True, stderr=True, tty=False,
        _preload_content=False,
    )  # fmt: skip
    talk.write_stdin("this\n")
    talk.run_forever(timeout=DEADLINE_SECONDS)
    assert (talk.read_stdout(), talk.read_stderr()) == ("out\ngot this\n", "err\n")
    assert talk.returncode == 5
    talk.close()


def test_the_python_client_forwards_ports(python_client: Any, pod: str) -> None:
    from kubernetes.stream import portforward

    forward = portforward(python_client.connect_get_namespaced_pod_portforward, pod, "into", ports="7000,7001")
    with forward.socket(7000) as echo, forward.socket(7001) as greeter:
        echo.setblocking(True)
        echo.sendall(b"there and back")
        assert echo.recv(100) == b"there and back"
        greeter.setblocking(True)
        assert greeter.recv(100) == b"talker\n"
    assert forward.error(7000) is None


async def test_a_hundred_programs_at_once(cluster: Cluster, pod: str, tmp_path: Path) -> None:
    kubectl = Kubectl(cluster, *SPEAKERS[-1], tmp_path)
    data = MEGABYTE[: 64 << 10]

    async def one() -> bool:
        process = await asyncio.create_subprocess_exec(
            *kubectl.command, "exec", "-i", pod, "-c", "echo", "--", "cat",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=kubectl.environment,
        )  # fmt: skip
        return (await process.communicate(data))[0] == data

    assert await asyncio.gather(*(one() for _ in range(100))) == [True] * 100

"""Talking to what runs in pods: terminals, ports, many at once, and a client that is no kubectl."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import hashlib
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.bare import inside
from tests.e2e.cluster import DEADLINE_SECONDS, Cluster, wait_until
from tests.e2e.test_commands import PROGRAMS, version_of

POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: NAME}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: podlane/toolbox, command: [sleep, "100000"]}
  - {name: other, image: podlane/toolbox, command: [sleep, "100000"]}
"""
SPEAKERS = [
    (program, websockets)
    for program in PROGRAMS
    for websockets in ("false", "true")
    if websockets == "false" or version_of(program) >= (1, 30)
]
"""Every kubectl with each of the protocols it knows."""
ECHO, GREETER, SUMS, NOBODY = 7000, 7001, 7002, 9
MEGABYTE = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def pod(cluster: Cluster) -> Iterator[str]:
    """A pod of the project `into` that has servers on ports of its own loopback."""
    cluster.kubectl("create", "namespace", "into")
    cluster.kubectl("-n", "into", "create", "-f", "-", stdin=POD.replace("NAME", "talker"))
    cluster.wait_running("into", "talker")
    (pid,) = cluster.docker(
        cluster.node_of("into", "talker"), "inspect", "-f", "{{.State.Pid}}", cluster.container("into", "talker")
    ).split()
    with serving(pid):
        yield "talker"
    cluster.kubectl("delete", "namespace", "into")


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
def serving(pid: str) -> Iterator[None]:
    """In the block, servers listen on the loopback of the pod of which that is a process; one closes first."""
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

    def types(self, line: str, until: str = "") -> None:
        """Once; or again and again until that comes."""
        os.write(self._master, line.encode())
        if until:
            self.sees(until, again=line)

    def sees(self, pattern: str, again: str = "") -> None:
        """Wait until it has come; what is to be typed again is, each second."""
        begin = typed = time.monotonic()
        while not (found := re.search(pattern.encode(), self._said)):
            assert time.monotonic() < begin + DEADLINE_SECONDS, self._said
            if again and time.monotonic() > typed + 1:
                os.write(self._master, again.encode())
                typed = time.monotonic()
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
    terminal = Terminal(kubectl, "exec", "-it", pod, "-c", "main", "--", "sh")
    try:
        terminal.sees("# ")
        # Docker gives a terminal its size when the program has begun, and a shell that learns of it may drop a line.
        terminal.types("stty size\n", until=r"\n30 100\r\n")
        terminal.resize(40, 120)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.types("stty size\n", until=r"\n40 120\r\n")
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
    with kubectl.forwarding(pod, ECHO, GREETER, SUMS) as ports:
        wanted = [f"{number} ".encode() * 5000 for number in range(30)]
        assert await asyncio.gather(*(said(ports[ECHO], one) for one in wanted)) == wanted
        assert await said(ports[GREETER]) == b"hello\n", "the server closes first"
        digest = hashlib.sha256(MEGABYTE * 20).hexdigest()
        assert (await said(ports[SUMS], *[MEGABYTE] * 20)).decode() == digest


def test_what_goes_in_comes_out(everyone: list[Kubectl], pod: str) -> None:
    all_at_once(everyone, lambda kubectl: _carried(kubectl, pod))


def _carried(kubectl: Kubectl, pod: str) -> None:
    data = MEGABYTE * 8
    assert kubectl.run("exec", "-i", pod, "-c", "main", "--", "cat", stdin=data) == data
    assert kubectl.run("exec", pod, "-c", "main", "--", "echo", "a" * 50_000) == b"a" * 50_000 + b"\n", "a long word"
    said = kubectl.run("exec", "-i", pod, "-c", "main", "--", "sha256sum", stdin=data)
    assert said.decode().split()[0] == hashlib.sha256(data).hexdigest()


def test_a_program_ends_with_its_caller(everyone: list[Kubectl], pod: str, cluster: Cluster) -> None:
    all_at_once(everyone, lambda kubectl: _left(kubectl, pod, cluster, str(5000 + everyone.index(kubectl))))


def _left(kubectl: Kubectl, pod: str, cluster: Cluster, mark: str) -> None:
    words = [*kubectl.command, "exec", pod, "-c", "main", "--", "sleep", mark]
    with subprocess.Popen(words, env=kubectl.environment, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: f"sleep {mark}" in _programs(cluster), "it runs")
        process.kill()
    wait_until(lambda: f"sleep {mark}" not in _programs(cluster), "it is gone")


def test_a_program_that_reads_nothing_ends_with_its_caller_too(
    everyone: list[Kubectl], pod: str, cluster: Cluster
) -> None:
    """Whatever waits on the way to it, input fills all of it, and the caller is killed."""
    callers = []
    for mark, kubectl in zip(("6001", "6002"), everyone[-2:], strict=True):
        words = [*kubectl.command, "exec", "-i", pod, "-c", "main", "--", "sleep", mark]
        with open("/dev/zero", "rb") as zeros:
            callers.append(subprocess.Popen(words, env=kubectl.environment, stdin=zeros))
    wait_until(lambda: _programs(cluster).count("sleep 600") == 2, "they run")
    for caller in callers:
        wait_until(lambda caller=caller: _is_held_up(caller), "its input backs up")  # type: ignore[misc]
        caller.kill()
        caller.wait()
    wait_until(lambda: "sleep 600" not in _programs(cluster), "they are gone")


def _is_held_up(caller: subprocess.Popen[bytes]) -> bool:
    """Whether it reads its input no more."""
    process = psutil.Process(caller.pid)
    before = process.io_counters().read_chars
    time.sleep(0.5)
    return before > 1 << 20 and process.io_counters().read_chars == before


def _programs(cluster: Cluster) -> str:
    return cluster.execute("into", "talker", "ps").stdout


# --- other clients ----------------------------------------------------------------------------------------------------


@pytest.fixture
def python_client(cluster: Cluster) -> Iterator[Any]:
    """It leaves sockets open whatever one does: none is left to the next test."""
    from kubernetes import client, config

    with config.new_client_from_config(str(cluster.lab.kubeconfig)) as connection:
        yield client.CoreV1Api(connection)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_the_python_client_runs_programs(python_client: Any, pod: str) -> None:
    from kubernetes.stream import stream

    ask = python_client.connect_get_namespaced_pod_exec
    words = ["sh", "-c", "echo out; echo err >&2; read line; echo got $line; exit 5"]
    talk = stream(
        ask, pod, "into", container="main", command=words, stdin=True, stdout=True, stderr=True, tty=False,
        _preload_content=False,
    )  # fmt: skip
    talk.write_stdin("this\n")
    talk.run_forever(timeout=DEADLINE_SECONDS)
    assert (talk.read_stdout(), talk.read_stderr()) == ("out\ngot this\n", "err\n")
    assert talk.returncode == 5
    talk.close()


def test_the_python_client_forwards_ports(python_client: Any, pod: str) -> None:
    from kubernetes.stream import portforward

    ports = f"{ECHO},{GREETER},{NOBODY}"
    forward = portforward(python_client.connect_get_namespaced_pod_portforward, pod, "into", ports=ports)
    echo, greeter = forward.socket(ECHO), forward.socket(GREETER)
    for one in (echo, greeter):
        one.setblocking(True)
    echo.sendall(b"there and back")
    assert echo.recv(100) == b"there and back"
    assert greeter.recv(100) == b"hello\n"
    assert forward.error(ECHO) is None
    wait_until(lambda: "connection refused" in (forward.error(NOBODY) or ""), "an error for the port of nobody")
    forward.close()


async def test_a_hundred_programs_at_once(cluster: Cluster, pod: str, tmp_path: Path) -> None:
    kubectl = Kubectl(cluster, *SPEAKERS[-1], tmp_path)
    data = MEGABYTE[: 64 << 10]

    async def one() -> bool:
        process = await asyncio.create_subprocess_exec(
            *kubectl.command, "exec", "-i", pod, "-c", "main", "--", "cat",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=kubectl.environment,
        )  # fmt: skip
        return (await process.communicate(data))[0] == data

    assert await asyncio.gather(*(one() for _ in range(100))) == [True] * 100

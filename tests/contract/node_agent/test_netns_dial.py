"""Connections into the network namespace of a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.process import run
from node_agent.network import dial
from node_agent.network.dial import dial_in_namespace
from reconcile.errors import Gone, Refused
from streams.connection import Connection
from tests.testbed.docker.containers import open_sockets, until
from tests.testbed.namespaces import inside


@pytest.fixture
def inhabitant(pod: str) -> Iterator[int]:
    """Run a process in the pod, and yield its PID."""
    name = Path(pod).name
    run("ip", "-n", name, "link", "set", "lo", "up")
    with subprocess.Popen(["ip", "netns", "exec", name, "sleep", "1000"]) as process:
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{process.pid}/ns/net") == own:
            pass
        yield process.pid
        process.kill()


def listening(pod: str, family: socket.AddressFamily, address: str, port: int = 0) -> socket.socket:
    with inside(Path(pod).name):
        return socket.create_server((address, port), family=family)


def answer(server: socket.socket) -> bytes:
    """Return all input of the next connection, and answer with a goodbye."""
    with server.accept()[0] as client:
        output = b""
        while data := client.recv(1 << 16):
            output += data
        client.sendall(b"goodbye")
    return output


def namespaces() -> set[str]:
    """Return the network namespaces of all threads of this process."""
    actual = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # One that ends.
            actual.add(os.readlink(task / "ns/net"))
    return actual


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
async def test_server_on_ipv4_or_ipv6_loopback_is_reached(
    pod: str, inhabitant: int, family: socket.AddressFamily, address: str
) -> None:
    before = open_sockets()
    with listening(pod, family, address) as server:
        output = asyncio.create_task(asyncio.to_thread(answer, server))
        connection = await dial_in_namespace(inhabitant, server.getsockname()[1])
        await connection.write(b"hello" * 100_000)
        await connection.end()
        assert await connection.read() == b"goodbye"
        assert await connection.read() == b""
        assert await output == b"hello" * 100_000
        connection.abort()
    await until(lambda: open_sockets() <= before, "no socket is left")


async def test_ipv4_loopback_is_preferred(pod: str, inhabitant: int) -> None:
    with listening(pod, socket.AF_INET, "127.0.0.1") as first:
        port = first.getsockname()[1]
        with listening(pod, socket.AF_INET6, "::1", port) as second:
            second.setblocking(False)
            connection = await dial_in_namespace(inhabitant, port)
            first.accept()[0].close()
            connection.abort()
            with pytest.raises(BlockingIOError):
                second.accept()


async def test_refused_connection_has_the_reference_message(inhabitant: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        with pytest.raises(Refused) as caught:
            await dial_in_namespace(inhabitant, port)
    assert str(caught.value) == (
        f'failed to connect to localhost:{port} inside namespace "/proc/{inhabitant}/ns/net", '
        f"IPv4: dial tcp4 127.0.0.1:{port}: connect: connection refused "
        f"IPv6 dial tcp6 [::1]:{port}: connect: connection refused"
    )


async def test_refused_connection_without_ipv6_has_the_reference_message(pod: str, inhabitant: int) -> None:
    run("ip", "netns", "exec", Path(pod).name, "sysctl", "-qw", "net.ipv6.conf.lo.disable_ipv6=1")
    with pytest.raises(Refused, match=r"IPv6 dial tcp6 \[::1\]:9: connect: cannot assign requested address$"):
        await dial_in_namespace(inhabitant, 9)


async def test_unresponsive_server_times_out(pod: str, inhabitant: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "CONNECT_TIMEOUT_SECONDS", 0.2)
    with listening(pod, socket.AF_INET, "127.0.0.1") as server:
        server.listen(0)
        queue: list[Connection] = []
        with pytest.raises(Refused, match=r"dial tcp4 127.0.0.1:\d+: i/o timeout IPv6 dial"):
            await stand_in_line(queue, inhabitant, server.getsockname()[1])
        for connection in queue:
            connection.abort()


async def stand_in_line(queue: list[Connection], inhabitant: int, port: int) -> None:
    while True:
        queue.append(await dial_in_namespace(inhabitant, port))


@pytest.fixture
def nobody() -> int:
    """Return the PID of an ended process."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


async def test_dial_to_an_ended_process_fails(nobody: int) -> None:
    with pytest.raises(Gone, match=f"/proc/{nobody}/ns/net: No such file or directory; the sandbox is gone"):
        await dial_in_namespace(nobody, 80)


async def test_dial_leaves_no_thread_in_the_namespace(pod: str, inhabitant: int) -> None:
    before, threads = open_sockets(), threading.active_count()
    with listening(pod, socket.AF_INET, "127.0.0.1") as server:
        server.listen(200)
        port = server.getsockname()[1]
        connections = await asyncio.gather(*(dial_in_namespace(inhabitant, port) for _ in range(100)))
        await until(lambda: namespaces() == {os.readlink("/proc/self/ns/net")}, "every thread has ended there")
        for connection in connections:
            connection.abort()
    for number in range(20):
        dialling = asyncio.create_task(dial_in_namespace(inhabitant, 9))
        for _ in range(number):
            await asyncio.sleep(0)
        dialling.cancel()
        await asyncio.gather(dialling, return_exceptions=True)
    await until(lambda: threading.active_count() <= threads and open_sockets() <= before, "all is as it was")

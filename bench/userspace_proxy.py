"""The userspace proxy: memory, connections and bytes, compared with direct connections to the backend in the
same run.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from bench.measurement import Measure, Measurement, Progress
from tests.testbed.namespaces import inside
from tests.testbed.netns.userspace_proxy import (
    CLIENT_NAMESPACE,
    FRONTS,
    NODE,
    NODE_NAMESPACE,
    listening,
    proxy_namespaces,
    redirect,
    socket_in,
)

BLOCK = 1 << 20
FRONT = FRONTS[1]
ECHO, SWALLOW = b"e", b"s"

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Size:
    """How many services the proxy has, and for each round, how many connections are open at once, how many calls there
    are, and how many megabytes one connection carries.
    """

    services: int
    connections: int
    rounds: int
    calls: int
    megabytes: int


FULL = Size(services=10_000, connections=1000, rounds=3, calls=500, megabytes=400)
SMALLEST = Size(services=2, connections=2, rounds=1, calls=2, megabytes=1)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Run one backend that echoes short messages and discards long ones, in a thread each."""
    threading.stack_size(1 << 18)
    with proxy_namespaces(), listening() as backend:
        backend.settimeout(None)
        threading.Thread(target=_serve, args=(backend,), daemon=True).start()
        straight, by_proxy = (str(NODE), backend.getsockname()[1]), (str(FRONT), 80)
        with _proxy(straight, size.services) as (process, milliseconds):
            progress(f"{size.connections:,} connections")
            memory = tuple(_memory(size, process, by_proxy))
            progress("calls and bytes")
            calls = [(_calls(by_proxy, size.calls), _calls(straight, size.calls)) for _ in range(size.rounds)]
            bytes_ = [(_bytes(by_proxy, size.megabytes), _bytes(straight, size.megabytes)) for _ in range(size.rounds)]
    ours, floors = zip(*calls, strict=True)
    fast, faster = zip(*bytes_, strict=True)
    return [
        Measurement(f"proxy: {size.services:,} services are taken in", "ms", (milliseconds,)),
        Measurement(f"proxy: memory of {size.connections:,} connections more", "MB", memory),
        Measurement(
            "proxy: calls one after the other", "/s", ours, floor="straight to the backend", floor_samples=floors
        ),
        Measurement("proxy: one connection", "MB/s", fast, floor="straight to the backend", floor_samples=faster),
    ]


MEASURE = Measure("memory, calls and bytes of the userspace proxy, beside direct connections", measure, FULL, SMALLEST)


@contextlib.contextmanager
def _proxy(backend: Address, services: int) -> Iterator[tuple[psutil.Process, float]]:
    words = [
        sys.executable,
        "-m",
        "bench.userspace_proxy_process",
        backend[0],
        str(backend[1]),
        str(FRONT),
        str(services),
    ]
    with inside(NODE_NAMESPACE):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port, milliseconds = process.stdout.readline().split()
        redirect(int(port))
        yield psutil.Process(process.pid), float(milliseconds)
    finally:
        process.kill()
        process.communicate()


def _serve(backend: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=_answer, args=(backend.accept()[0],), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        while data := connection.recv(BLOCK):
            if data.startswith(ECHO):
                connection.sendall(data)


def _called(address: Address) -> socket.socket:
    connection = socket_in(CLIENT_NAMESPACE)
    connection.connect(address)
    return connection


def _memory(size: Size, process: psutil.Process, address: Address) -> Iterator[float]:
    """Yield the increase of memory in each round."""
    before = process.memory_info().rss
    for _ in range(size.rounds):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(_called(address)) for _ in range(size.connections)]
            for client in clients:
                client.sendall(ECHO)
            for client in clients:
                client.recv(1)
            yield (process.memory_info().rss - before) / 1e6


def _calls(address: Address, count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        with _called(address) as client:
            client.sendall(ECHO)
            client.recv(1)
    return count / (time.perf_counter() - begin)


def _bytes(address: Address, megabytes: int) -> float:
    block = SWALLOW * BLOCK
    with _called(address) as client:
        begin = time.perf_counter()
        for _ in range(megabytes):
            client.sendall(block)
        client.shutdown(socket.SHUT_WR)
        client.recv(1)
        return megabytes * BLOCK / 1e6 / (time.perf_counter() - begin)

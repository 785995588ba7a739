"""The number of DNS queries that are answered in a second of one core, and the cost of a change of the data."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

import dns.message
import psutil

from bench import name_server_process
from bench.measurement import Measurement
from nameserver.service_store import ServiceStore

ROUNDS = 5
QUESTIONS = 150_000
IN_FLIGHT = 64
DIFFERENT = 1_000


def measure(say: Callable[[str], None]) -> list[Measurement]:
    """Measure rates by the clock, with a client in another process, and by processor time. A bare echo server is the
    baseline.
    """
    questions = {
        "cluster IP": _questions([number for number in range(DIFFERENT * 2) if number % 10 != 9]),
        "headless, 10 endpoints": _questions([number for number in range(DIFFERENT * 10) if number % 10 == 9]),
        "no such name": [_question(f"x{number}.n1.svc.cluster.local") for number in range(DIFFERENT)],
    }
    figures = []
    with _process("names") as server, _process("echo") as bare:
        for what, queries in questions.items():
            say(f"{what}: {ROUNDS} rounds of {QUESTIONS:,} questions")
            rates, floors, cores, clients = [], [], [], []
            _send_queries(server, queries, len(queries))
            for _ in range(ROUNDS):
                rate, core, client = _send_queries(server, queries, QUESTIONS)
                rates.append(rate)
                cores.append(core)
                clients.append(client)
                floors.append(_send_queries(bare, queries, QUESTIONS)[0])
            figures.append(
                Measurement(f"names: {what}", "answers/s", tuple(rates), "20,000", "UDP echo", tuple(floors))
            )
            figures.append(Measurement(f"names: {what}, of a core alone", "answers/s", tuple(cores)))
            figures.append(Measurement(f"names: {what}, the client's core", "questions/s", tuple(clients)))
    return [*figures, *_changes(say)]


def _changes(say: Callable[[str], None]) -> list[Measurement]:
    say(
        f"{name_server_process.SERVICES:,} services of {name_server_process.ENDPOINTS} endpoints, "
        "and one of them changed"
    )
    services, slices = name_server_process.services(), name_server_process.slices()
    loads, changes = [], []
    for _ in range(ROUNDS):
        directory = ServiceStore()
        begin = time.perf_counter()
        directory.replace(services, slices)
        loads.append((time.perf_counter() - begin) * 1000)
        for endpoint_slice in slices[:100]:
            begin = time.perf_counter()
            directory.put_slice((endpoint_slice.metadata.namespace, endpoint_slice.metadata.name), endpoint_slice)
            changes.append((time.perf_counter() - begin) * 1000)
    return [Measurement("names: load all", "ms", tuple(loads)), Measurement("names: change one", "ms", tuple(changes))]


def _questions(numbers: list[int]) -> list[bytes]:
    return [_question(f"s{number}.n{number % 100}.svc.cluster.local") for number in numbers]


def _question(name: str) -> bytes:
    return dns.message.make_query(name, "A", use_edns=0).to_wire()


@contextmanager
def _process(kind: str) -> Iterator[tuple[psutil.Process, int]]:
    """Run a server process, and yield it with its port."""
    program = [sys.executable, "-m", "bench.name_server_process", kind]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield psutil.Process(child.pid), int(child.stdout.readline())
        finally:
            child.kill()


def _send_queries(server: tuple[psutil.Process, int], questions: list[bytes], count: int) -> tuple[float, float, float]:
    """Send queries, several in flight. Return answers a second by the clock, by the server's and by the client's
    processor time.
    """
    process, port = server
    queries = cycle(questions)
    with socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.connect(("127.0.0.1", port))
        udp.settimeout(5)
        begin, own, clock = _seconds(process), time.process_time(), time.perf_counter()
        for _ in range(count // IN_FLIGHT):
            for _ in range(IN_FLIGHT):
                udp.send(next(queries))
            for _ in range(IN_FLIGHT):
                udp.recv(4096)
        done = count // IN_FLIGHT * IN_FLIGHT
        took = time.perf_counter() - clock
        return done / took, done / (_seconds(process) - begin), done / (time.process_time() - own)


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)

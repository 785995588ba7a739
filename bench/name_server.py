"""The number of DNS queries that are answered in a second of one core, and the cost of a change of the data."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle

import dns.message

from bench import name_server_process
from bench.measurement import Budget, Measure, Measurement, Progress
from bench.process_time import cpu_seconds
from nameserver.service_store import ServiceStore

IN_FLIGHT = 64


@dataclass(frozen=True, slots=True)
class Size:
    """How many questions of how many different ones are asked in a round, of how many services, which are at least ten
    times as many as the different questions. `changes` services are changed in each round.
    """

    services: int
    different: int
    questions: int
    rounds: int
    changes: int


FULL = Size(services=10_000, different=1000, questions=150_000, rounds=5, changes=100)
SMALLEST = Size(services=10, different=1, questions=3 * IN_FLIGHT, rounds=1, changes=1)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Measure rates by the clock, with a client in another process, and by processor time. A bare echo server is the
    baseline.
    """
    questions = {
        "cluster IP": _questions([number for number in range(size.different * 2) if number % 10 != 9]),
        "headless, 10 endpoints": _questions([number for number in range(size.different * 10) if number % 10 == 9]),
        "no such name": [_question(f"x{number}.n1.svc.cluster.local") for number in range(size.different)],
    }
    figures = []
    with _process("names", size.services) as server, _process("echo", 0) as bare:
        for what, queries in questions.items():
            progress(f"{what}: {size.rounds} rounds of {size.questions:,} questions")
            rates, floors, cores, clients = [], [], [], []
            _send_queries(server, queries, max(len(queries), IN_FLIGHT))
            for _ in range(size.rounds):
                rate, core, client = _send_queries(server, queries, size.questions)
                rates.append(rate)
                cores.append(core)
                clients.append(client)
                floors.append(_send_queries(bare, queries, size.questions)[0])
            figures.append(Measurement(f"names: {what}", "answers/s", tuple(rates), None, "UDP echo", tuple(floors)))
            figures.append(Measurement(f"names: {what}, of a core alone", "answers/s", tuple(cores), Budget(100_000)))
            figures.append(Measurement(f"names: {what}, the client's core", "questions/s", tuple(clients)))
    return [*figures, *_changes(size, progress)]


MEASURE = Measure("DNS answers a second, and the load of all services", measure, FULL, SMALLEST)


def _changes(size: Size, progress: Progress) -> list[Measurement]:
    progress(f"{size.services:,} services of {name_server_process.ENDPOINTS} endpoints, and one of them changed")
    services, slices = name_server_process.services(size.services), name_server_process.slices(size.services)
    loads, changes = [], []
    for _ in range(size.rounds):
        directory = ServiceStore()
        begin = time.perf_counter()
        directory.replace(services, slices)
        loads.append((time.perf_counter() - begin) * 1000)
        for endpoint_slice in slices[: size.changes]:
            begin = time.perf_counter()
            directory.put_slice((endpoint_slice.metadata.namespace, endpoint_slice.metadata.name), endpoint_slice)
            changes.append((time.perf_counter() - begin) * 1000)
    return [Measurement("names: load all", "ms", tuple(loads)), Measurement("names: change one", "ms", tuple(changes))]


def _questions(numbers: list[int]) -> list[bytes]:
    return [_question(f"s{number}.n{number % 100}.svc.cluster.local") for number in numbers]


def _question(name: str) -> bytes:
    return dns.message.make_query(name, "A", use_edns=0).to_wire()


@contextmanager
def _process(kind: str, services: int) -> Iterator[tuple[int, int]]:
    """Run a server process, and yield its PID and port."""
    program = [sys.executable, "-m", "bench.name_server_process", kind, str(services)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child.pid, int(child.stdout.readline())
        finally:
            child.kill()


def _send_queries(server: tuple[int, int], questions: list[bytes], count: int) -> tuple[float, float, float]:
    """Send queries, several in flight. Return answers a second by the clock, by the server's and by the client's
    processor time.
    """
    process, port = server
    queries = cycle(questions)
    with socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.connect(("127.0.0.1", port))
        udp.settimeout(5)
        begin, own, clock = cpu_seconds(process), time.process_time(), time.perf_counter()
        for _ in range(count // IN_FLIGHT):
            for _ in range(IN_FLIGHT):
                udp.send(next(queries))
            for _ in range(IN_FLIGHT):
                udp.recv(4096)
        done = count // IN_FLIGHT * IN_FLIGHT
        took = time.perf_counter() - clock
        return done / took, done / (cpu_seconds(process) - begin), done / (time.process_time() - own)

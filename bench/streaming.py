"""Bytes into a pod and out of it through master and agent, compared with docker exec; and many streams at once."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import psutil

from bench.measurement import Measure, Measurement, Progress, at_peer
from lab.process import run
from tests.testbed.kubectl import ALL_PROGRAMS
from tests.testbed.namespaces import inside
from tests.testbed.node.single_node import SingleNode
from tests.testbed.wait import wait_until

ADDRESS = "10.245.49.3"
PIECE = 1 << 20
IN, OUT = 7000, 7001
POD = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: carrier}}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{{name: data, hostPath: {{path: FOLDER}}}}]
  containers:
  - name: main
    image: podlane/toolbox
    command: [nc, -ll, -p, "{IN}", -e, sha256sum]
    volumeMounts: [{{name: data, mountPath: /data}}]
  - name: source
    image: podlane/toolbox
    command: [nc, -ll, -p, "{OUT}", -e, cat, /data/big]
    volumeMounts: [{{name: data, mountPath: /data}}]
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How many megabytes are carried each way, how often, and how many streams there are at once."""

    megabytes: int
    rounds: int
    crowd: int


FULL = Size(megabytes=1024, rounds=3, crowd=100)
SMALLEST = Size(megabytes=1, rounds=1, crowd=2)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Measure both ways by both protocols. Every byte is compared by its checksum."""
    with StreamingNode() as node:
        node.agent(f"--node-ip={ADDRESS}", "--address=0.0.0.0", "--heartbeat-seconds=10")
        big = Big(node.root / "data", size.megabytes)
        node.kubectl("apply", "-f", "-", stdin=POD.replace("FOLDER", str(big.path.parent)))
        wait_until(lambda: node.is_ready("carrier"), "the pod")
        figures = []
        with Memory(node) as memory:
            docker = Docker(node, big)
            for name, websockets in (("SPDY", False), ("WebSocket", True)):
                figures += _rates(name, Caller(node, big, websockets), docker, size.rounds, progress)
            progress(f"{size.crowd} at once")
            figures += [_crowd(Caller(node, big, True), size.crowd)]
        return [*figures, *memory.figures()]


MEASURE = Measure("exec and port-forward, beside docker exec", measure, FULL, SMALLEST)


def _rates(name: str, caller: Caller, docker: Docker, rounds: int, progress: Progress) -> list[Measurement]:
    ways = (("exec, in", caller.exec_in, docker.exec_in), ("exec, out", caller.exec_out, docker.exec_out))
    figures = []
    for what, way, floor in ways:
        progress(f"{name}: {what}")
        pairs = [(caller.rate(way), docker.rate(floor)) for _ in range(rounds)]
        ours, theirs = (tuple(samples) for samples in zip(*pairs, strict=True))
        figures.append(
            Measurement(f"{what} by {name}", "MB/s", ours, at_peer(0.8), peer="docker exec", peer_samples=theirs)
        )
    for what, way in (("port-forward, in", caller.forward_in), ("port-forward, out", caller.forward_out)):
        progress(f"{name}: {what}")
        figures.append(Measurement(f"{what} by {name}", "MB/s", tuple(caller.rate(way) for _ in range(rounds))))
    return figures


def _crowd(caller: Caller, count: int) -> Measurement:
    begin = time.monotonic()
    with ThreadPoolExecutor(count) as threads:
        assert all(threads.map(lambda _: caller.echoes(1 << 20), range(count)))
    return Measurement(f"{count} kubectl exec at once, 1 MB there and back each", "s", (time.monotonic() - begin,))


class Big:
    """A file of random megabytes in a directory of its own, and its checksum."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        folder.mkdir()
        self.size = megabytes * PIECE
        self.path = folder / "big"
        piece, digest = os.urandom(PIECE), hashlib.sha256()
        with self.path.open("wb") as file:
            for _ in range(megabytes):
                file.write(piece)
                digest.update(piece)
        self.digest = digest.hexdigest()


class StreamingNode(SingleNode):
    """A node with an address that its master can reach, in a network namespace of its own."""

    def __init__(self) -> None:
        self.namespace = f"podbench-{os.getpid()}"
        # The certificate of the agent's server is its own: a single node has none of the cluster's authority.
        super().__init__(
            master=("--verify-node-certificates=false",),
            command_prefix=("nsenter", f"--net=/run/netns/{self.namespace}"),
        )

    def __enter__(self) -> Self:
        run("ip", "netns", "add", self.namespace)
        for words in (("set", "lo", "up"), ("add", "node0", "type", "bridge"), ("set", "node0", "up")):
            run("ip", "-n", self.namespace, "link", *words)
        run("ip", "-n", self.namespace, "addr", "add", f"{ADDRESS}/24", "dev", "node0")
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        run("ip", "netns", "del", self.namespace)

    def _start_master(self) -> None:
        with inside(self.namespace):
            super()._start_master()


class _Carrier:
    """Sends the file or takes it, and compares checksums."""

    def __init__(self, big: Big, environment: dict[str, str]) -> None:
        self._big = big
        self._environment = environment

    def rate(self, carry: Callable[[], None]) -> float:
        """Return megabytes a second of a function that carries the file."""
        begin = time.monotonic()
        carry()
        return self._big.size / 1e6 / (time.monotonic() - begin)

    def _in(self, *command: str) -> None:
        with self._big.path.open("rb") as data:
            done = subprocess.run(command, stdin=data, stdout=subprocess.PIPE, check=True, env=self._environment)
        assert done.stdout.decode().split()[0] == self._big.digest

    def _out(self, *command: str) -> None:
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=self._environment) as process:
            assert process.stdout is not None
            assert (
                hashlib.file_digest(cast("io.BufferedReader", process.stdout), "sha256").hexdigest() == self._big.digest
            )
        assert process.returncode == 0


class Caller(_Carrier):
    """The newest kubectl, through master and agent."""

    def __init__(self, node: StreamingNode, big: Big, websockets: bool) -> None:
        way = str(websockets).lower()
        ways = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": way, "KUBECTL_PORT_FORWARD_WEBSOCKETS": way}
        super().__init__(big, {**os.environ, "HOME": str(node.root), **ways})
        self._namespace = node.namespace
        self._kubectl = (*node.command_prefix, ALL_PROGRAMS[-1], f"--kubeconfig={node.root}/admin")

    def exec_in(self) -> None:
        self._in(*self._kubectl, "exec", "-i", "carrier", "-c", "main", "--", "sha256sum")

    def exec_out(self) -> None:
        self._out(*self._kubectl, "exec", "carrier", "-c", "main", "--", "cat", "/data/big")

    def echoes(self, size: int) -> bool:
        data = os.urandom(size)
        command = (*self._kubectl, "exec", "-i", "carrier", "-c", "main", "--", "cat")
        done = subprocess.run(command, input=data, capture_output=True, check=True, env=self._environment)
        return done.stdout == data

    def forward_in(self) -> None:
        with self._connected(IN) as connection, self._big.path.open("rb") as data:
            connection.sendfile(data)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100).decode().split()[0] == self._big.digest

    def forward_out(self) -> None:
        with self._connected(OUT) as connection, connection.makefile("rb") as answer:
            assert hashlib.file_digest(answer, "sha256").hexdigest() == self._big.digest

    @contextlib.contextmanager
    def _connected(self, port: int) -> Iterator[socket.socket]:
        command = [*self._kubectl, "port-forward", "pod/carrier", f":{port}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=self._environment) as process:
            try:
                assert process.stdout is not None
                local = re.search(rb"127\.0\.0\.1:(\d+)", process.stdout.readline())
                assert local is not None
                with inside(self._namespace):
                    connection = socket.socket()
                with connection:
                    connection.connect(("127.0.0.1", int(local[1])))
                    yield connection
            finally:
                process.kill()


class Docker(_Carrier):
    """The same by Docker's own client, without a network between."""

    def __init__(self, node: StreamingNode, big: Big) -> None:
        super().__init__(big, dict(os.environ))
        (container,) = node.docker("ps", "-q", "--filter", "name=k8s_main_carrier").split()
        self._exec = ("docker", "-H", f"unix://{node.docker_socket}", "exec", "-i", container)

    def exec_in(self) -> None:
        self._in(*self._exec, "sha256sum")

    def exec_out(self) -> None:
        self._out(*self._exec, "cat", "/data/big")


class Memory:
    """The largest increase of the daemons' resident memory during the block."""

    def __init__(self, node: StreamingNode) -> None:
        self._processes = {name: psutil.Process(node.pid(name)) for name in ("podlane-master", "podlane-node-agent")}
        self._before = {name: process.memory_info().rss for name, process in self._processes.items()}
        self._most = dict(self._before)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            for name, process in self._processes.items():
                self._most[name] = max(self._most[name], process.memory_info().rss)

    def figures(self) -> list[Measurement]:
        return [
            Measurement(f"{name}, growth at most", "MB", ((self._most[name] - before) / 1e6,))
            for name, before in self._before.items()
        ]

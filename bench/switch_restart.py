"""How long pods are cut off when the switch is killed and started again, seen by pings 10 ms apart."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass
from ipaddress import IPv4Address

from bench.measurement import Budget, Measure, Measurement, Progress
from bench.pod_attach import Pods, echo_request
from tests.testbed.namespaces import inside
from tests.testbed.netns.cluster import NetnsCluster, bench_lab
from tests.testbed.wait import wait_until

INTERVAL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Size:
    """How many pods are attached, and how often switch and daemon are killed."""

    pods: int
    rounds: int


FULL = Size(pods=20, rounds=5)
SMALLEST = Size(pods=2, rounds=1)


def measure(size: Size, progress: Progress) -> list[Measurement]:
    """Measure the time from the switch's first answer to the first forwarded packet, and the packets that daemon kills
    lose.
    """
    with NetnsCluster(bench_lab(1)) as cluster:
        (node,) = cluster.lab.nodes
        spaces = cluster.add_namespaces([f"o{number}" for number in range(size.pods)])
        addresses = Pods.attach_all(node, spaces)
        after, lost = [], []
        for number in range(size.rounds):
            progress(f"ovs-vswitchd killed, {number + 1} of {size.rounds}")
            with Stream(spaces[0], addresses[1]) as stream:
                cluster.kill(f"{node.name} ovs-vswitchd")
                answers = cluster.start_switch(node.name)
                after.append(stream.first_answer_after(answers) - answers)
        for number in range(size.rounds):
            progress(f"podlane-sdn killed, {number + 1} of {size.rounds}")
            with Stream(spaces[0], addresses[1]) as stream:
                stream.first_answer_after(time.monotonic())
                cluster.kill(f"{node.name} sdn")
                cluster.start(f"{node.name} sdn")
                wait_until(lambda: cluster.network_ready(node.name), "the daemon")
                stream.first_answer_after(time.monotonic())
                lost.append(float(stream.lost()))
    return [
        Measurement(
            f"ovs-vswitchd killed, {size.pods} pods: from its first answer to packets", "s", tuple(after), Budget(1)
        ),
        Measurement("podlane-sdn killed and started, packets lost", "lost", tuple(lost), Budget(0)),
    ]


MEASURE = Measure("packets between pods while the switch or the sdn daemon is killed", measure, FULL, SMALLEST)


class Stream:
    """Pings from one pod to another until the end of the block."""

    def __init__(self, space: str, target: IPv4Address) -> None:
        with inside(space):
            self._wire = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._wire.settimeout(INTERVAL_SECONDS)
        self._target = (str(target), 0)
        self._sent: dict[int, float] = {}
        self._answered: dict[int, float] = {}
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]

    def __enter__(self) -> Stream:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._wire.close()

    def first_answer_after(self, moment: float) -> float:
        """Return the time of the first answer to a ping that was sent after this time (steady clock)."""

        def answers_after_moment() -> list[float]:
            return [self._answered[number] for number in list(self._answered) if self._sent[number] > moment]

        return min(wait_until(answers_after_moment, "an answer", pause=0.001))

    def lost(self) -> int:
        """Return the number of unanswered pings before the last answered one."""
        last = max(self._answered)
        return sum(number not in self._answered for number in list(self._sent) if number < last)

    def _send(self) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            self._sent[number] = time.monotonic()
            with contextlib.suppress(OSError):
                self._wire.sendto(echo_request(number & 0xFFFF), self._target)
            self._ended.wait(INTERVAL_SECONDS)

    def _receive(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                data = self._wire.recv(256)
                if data[20] == 0:
                    self._answered.setdefault(struct.unpack_from("!H", data, 26)[0], time.monotonic())

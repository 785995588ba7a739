"""Which pod goes to which node: spread, fewest pods first. Pure.

A node takes a pod when it is Ready and schedulable, has the labels of the pod's nodeSelector, and what the pod requests
fits into what is left of its allocatable. Among those the one with the fewest pods is taken, then the one with most
CPU left, then the first by name; so the same snapshot always gives the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from api import quantity
from api.objects import Node, Pod
from api.resources import needed, requested_cpu, requested_memory
from master.kinds.node import ready
from master.kinds.pod import ENDED

SCHEDULER = "default-scheduler"
"""Pods that name another scheduler are left to it."""


class Amount(NamedTuple):
    """CPU in thousandths, memory in bytes, and pods."""

    cpu: int
    memory: int
    pods: int

    def plus(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(self.cpu + other.cpu, self.memory + other.memory, self.pods + other.pods)


NOTHING = Amount(0, 0, 0)

UNKNOWN_IS_ENOUGH = 1 << 62
"""What a node has of something that it does not report."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The pod goes to that node."""

    pod: Pod
    node: str


@dataclass(frozen=True, slots=True)
class Unplaced:
    """No node takes the pod; the sentence says why."""

    pod: Pod
    sentence: str


@dataclass
class _Seat:
    """A node with what is in use of it, in the course of one pass."""

    node: Node
    room: Amount
    used: Amount


def schedule(nodes: Iterable[Node], pods: Iterable[Pod]) -> Iterator[Placed | Unplaced]:
    """An answer for every pod that waits for a node, oldest first."""
    everything = tuple(pods)
    used: dict[str, Amount] = {}
    for pod in everything:
        if pod.spec.node_name and pod.status.phase not in ENDED:
            used[pod.spec.node_name] = used.get(pod.spec.node_name, NOTHING).plus(requests(pod))
    seats = [_Seat(node, allocatable(node), used.get(node.metadata.name, NOTHING)) for node in nodes]
    seats.sort(key=lambda seat: seat.node.metadata.name)
    for pod in sorted(filter(waits, everything), key=_age):
        yield _place(pod, seats)


def waits(pod: Pod) -> bool:
    """Whether the pod is for us to place."""
    return (
        not pod.spec.node_name
        and not pod.metadata.deletion_timestamp
        and pod.status.phase not in ENDED
        and pod.spec.scheduler_name in ("", SCHEDULER)
        and not pod.spec.scheduling_gates
    )


def requests(pod: Pod) -> Amount:
    """What the pod asks for as a whole."""
    return Amount(needed(pod.spec, requested_cpu), needed(pod.spec, requested_memory), 1)


def allocatable(node: Node) -> Amount:
    """What the node has for pods; what it does not report is no limit."""
    found = {**node.status.capacity, **node.status.allocatable}
    return Amount(
        cpu=_reported(found, "cpu", 1000),
        memory=_reported(found, "memory", 1),
        pods=_reported(found, "pods", 1),
    )


def _reported(found: Mapping[str, str], name: str, factor: int) -> int:
    try:
        return quantity.milli(found[name]) if factor == 1000 else quantity.whole(found[name])
    except (KeyError, quantity.BadQuantity):
        return UNKNOWN_IS_ENOUGH


def _age(pod: Pod) -> tuple[str, str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.namespace, pod.metadata.name


def _place(pod: Pod, seats: list[_Seat]) -> Placed | Unplaced:
    wanted = requests(pod)
    reasons: Counter[str] = Counter()
    fitting: list[_Seat] = []
    for seat in seats:
        reason = _reason_against(pod, wanted, seat)
        if reason:
            reasons[reason] += 1
        else:
            fitting.append(seat)
    if not fitting:
        return Unplaced(pod, _sentence(len(seats), reasons))
    best = min(fitting, key=lambda seat: (seat.used.pods, seat.used.cpu - seat.room.cpu, seat.node.metadata.name))
    best.used = best.used.plus(wanted)
    return Placed(pod, best.node.metadata.name)


def _reason_against(pod: Pod, wanted: Amount, seat: _Seat) -> str:
    node, after = seat.node, seat.used.plus(wanted)
    labels = node.metadata.labels
    checks = (
        (ready(node) != "True", "not Ready"),
        (node.spec.unschedulable, "unschedulable (cordoned)"),
        (
            any(labels.get(key) != value for key, value in pod.spec.node_selector.items()),
            "without the labels of the pod's nodeSelector",
        ),
        (
            wanted.cpu > 0 and after.cpu > seat.room.cpu,
            f"short of cpu (the pod requests {quantity.of_milli(wanted.cpu)})",
        ),
        (
            wanted.memory > 0 and after.memory > seat.room.memory,
            f"short of memory (the pod requests {wanted.memory} bytes)",
        ),
        (after.pods > seat.room.pods, "full (no more pods)"),
    )
    return next((reason for against, reason in checks if against), "")


def _sentence(total: int, reasons: Counter[str]) -> str:
    if not total:
        return "0/0 nodes are available: no node has registered."
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f"0/{total} nodes are available: {listed}."

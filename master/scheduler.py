"""Which pod goes to which node: spread, fewest pods first. Pure.

A node takes a pod when it has the labels that the pod's nodeSelector and node affinity require and no taint that the
pod does not tolerate, when what the pod requests fits into what is left of its allocatable, and when the pod's host
ports are free there; that it is not Ready, or cordoned, or short of something is a taint, too. Among those the one with
the fewest pods is taken, then the one with most CPU left, then the first by name; so the same snapshot always gives the
same answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from api import placement, quantity
from api.capacity import NOTHING, Amount, allocatable, requests
from api.objects import FINAL_PHASES, ContainerPort, Node, Pod
from api.placement import NOT_READY, UNREACHABLE, UNSCHEDULABLE
from api.ports import clash, host_ports
from master.node_taints import standing

SCHEDULER = "default-scheduler"
"""Pods that name another scheduler are left to it."""

KNOWN_TAINTS = {NOT_READY: "not Ready", UNREACHABLE: "not Ready", UNSCHEDULABLE: "unschedulable (cordoned)"}
"""Key of a taint → what it says of the node."""


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
    ports: list[ContainerPort]


def schedule(nodes: Iterable[Node], pods: Iterable[Pod]) -> Iterator[Placed | Unplaced]:
    """An answer for every pod that waits for a node, oldest first."""
    everything = tuple(pods)
    used: dict[str, Amount] = {}
    ports: defaultdict[str, list[ContainerPort]] = defaultdict(list)
    for pod in everything:
        if pod.spec.node_name and pod.status.phase not in FINAL_PHASES:
            used[pod.spec.node_name] = used.get(pod.spec.node_name, NOTHING).plus(requests(pod))
            ports[pod.spec.node_name].extend(host_ports(pod))
    named = sorted(((node.metadata.name, node) for node in nodes), key=lambda row: row[0])
    seats = [_Seat(node, allocatable(node), used.get(name, NOTHING), ports[name]) for name, node in named]
    for pod in sorted(filter(waits, everything), key=_age):
        yield _place(pod, seats)


def waits(pod: Pod) -> bool:
    """Whether the pod is for us to place."""
    return (
        not pod.spec.node_name
        and not pod.metadata.deletion_timestamp
        and pod.status.phase not in FINAL_PHASES
        and pod.spec.scheduler_name in ("", SCHEDULER)
        and not pod.spec.scheduling_gates
    )


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
    best.ports.extend(host_ports(pod))
    return Placed(pod, best.node.metadata.name)


def _reason_against(pod: Pod, wanted: Amount, seat: _Seat) -> str:
    node, after = seat.node, seat.used.plus(wanted)
    taint = placement.untolerated(pod.spec, standing(node), ("NoSchedule", "NoExecute"))
    key = taint.key if taint is not None else ""
    checks = (
        (key in KNOWN_TAINTS, KNOWN_TAINTS.get(key, "")),
        (
            not placement.suits(pod.spec, node.metadata.name, node.metadata.labels),
            "without what the pod's nodeSelector or node affinity requires",
        ),
        (taint is not None, f"tainted in a way that the pod does not tolerate ({key})"),
        (
            wanted.cpu > 0 and after.cpu > seat.room.cpu,
            f"short of cpu (the pod requests {quantity.of_milli(wanted.cpu)})",
        ),
        (
            wanted.memory > 0 and after.memory > seat.room.memory,
            f"short of memory (the pod requests {wanted.memory} bytes)",
        ),
        (after.pods > seat.room.pods, "full (no more pods)"),
        (clash(host_ports(pod), seat.ports), "without free ports for the host ports of the pod"),
    )
    return next((reason for against, reason in checks if against), "")


def _sentence(total: int, reasons: Counter[str]) -> str:
    if not total:
        return "0/0 nodes are available: no node has registered."
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f"0/{total} nodes are available: {listed}."

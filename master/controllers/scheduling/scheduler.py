"""Which pod goes to which node. Pure.

A node takes a pod when it has the labels that the pod's nodeSelector and node affinity require and no taint that the
pod does not tolerate, when what the pod requests fits into what is left of its allocatable, when the pod's host ports
are free there, and when its neighbours are such as the pod demands, and they bear it; that it is not Ready, cordoned or
short of something is a taint, too. Among those nodes the pod's preferences count first, then how many pods of the same
owner there are, how many pods, and how much CPU is left; at last the name, so that the same snapshot always gives the
same answer. The more important pod is placed first, then the older one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from api.core import placement
from api.core.node import Namespace, Node, Taint
from api.core.placement import UNSCHEDULABLE
from api.core.pod import FINAL_PHASES, ContainerPort, Pod
from api.core.resources import Amounts, allocatable, conflicting_port, host_ports, pod_requests, shortages
from api.meta import quantity
from master.controllers.dependents import controller_of
from master.controllers.nodes.node_taints import standing
from master.controllers.scheduling.neighbours import Demands, Neighbours

SCHEDULER = "default-scheduler"
"""Pods that name another scheduler are left to it."""

CORDONED = "node(s) were unschedulable"
UNSUITED = "node(s) didn't match Pod's node affinity/selector"
PORTS = "node(s) didn't have free ports for the requested pod ports"
CROWDED = "Too many pods"


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
    """A node with what is in use of it, in the course of one pass; `broods` counts its pods by their owner's uid."""

    node: Node
    room: Amounts
    taints: tuple[Taint, ...]
    used: Counter[str] = field(default_factory=Counter)
    ports: list[ContainerPort] = field(default_factory=list)
    broods: Counter[str] = field(default_factory=Counter)

    def take(self, pod: Pod) -> None:
        self.used.update(pod_requests(pod))
        self.ports.extend(host_ports(pod))
        self.broods[_owner(pod)] += 1


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a pod needs, worked out once for all nodes."""

    pod: Pod
    wanted: Amounts
    ports: tuple[ContainerPort, ...]
    demands: Demands


def schedule(
    nodes: Iterable[Node], pods: Iterable[Pod], namespaces: Iterable[Namespace] = ()
) -> Iterator[Placed | Unplaced]:
    """An answer for every pod that waits for a node."""
    everything = tuple(pods)
    ordered = sorted(nodes, key=lambda node: node.metadata.name)
    seats = {node.metadata.name: _seat(node) for node in ordered}
    there = [pod for pod in everything if pod.spec.node_name in seats and pod.status.phase not in FINAL_PHASES]
    for pod in there:
        seats[pod.spec.node_name].take(pod)
    neighbours = Neighbours(ordered, there, {one.metadata.name: one.metadata.labels for one in namespaces})
    for pod in sorted(filter(waits, everything), key=_rank):
        answer = _place(_wish(pod, neighbours), tuple(seats.values()))
        if isinstance(answer, Placed):
            seats[answer.node].take(pod)
            neighbours.add(pod, answer.node)
        elif pod.status.nominated_node_name in seats:
            seats[pod.status.nominated_node_name].take(pod)  # Those that matter less do not take what is made free.
        yield answer


def fits(
    pod: Pod, node: str, nodes: Iterable[Node], there: Iterable[Pod], namespaces: Iterable[Namespace] = ()
) -> bool:
    """Whether the node of that name takes the pod, while those pods are there."""
    everywhere, placed = tuple(nodes), tuple(there)
    seat = _seat(next(one for one in everywhere if one.metadata.name == node))
    for other in placed:
        if other.spec.node_name == node:
            seat.take(other)
    neighbours = Neighbours(everywhere, placed, {one.metadata.name: one.metadata.labels for one in namespaces})
    return not _reasons_against(_wish(pod, neighbours), seat)


def _seat(node: Node) -> _Seat:
    return _Seat(node, allocatable(node), standing(node))


def _wish(pod: Pod, neighbours: Neighbours) -> _Wish:
    return _Wish(pod, pod_requests(pod), tuple(host_ports(pod)), neighbours.demands(pod))


def waits(pod: Pod) -> bool:
    """Whether the pod is for us to place."""
    return (
        not pod.spec.node_name
        and not pod.metadata.deletion_timestamp
        and pod.status.phase not in FINAL_PHASES
        and pod.spec.scheduler_name in ("", SCHEDULER)
        and not pod.spec.scheduling_gates
    )


def _rank(pod: Pod) -> tuple[int, str, str, str]:
    meta = pod.metadata
    return -(pod.spec.priority or 0), meta.creation_timestamp or "", meta.namespace, meta.name


def _owner(pod: Pod) -> str:
    owner = controller_of(pod.metadata)
    return "" if owner is None else owner.uid


def _place(wish: _Wish, seats: Sequence[_Seat]) -> Placed | Unplaced:
    reasons, fitting = Counter[str](), list[_Seat]()
    for seat in seats:
        if found := _reasons_against(wish, seat):
            reasons.update(found)
        else:
            fitting.append(seat)
    if not fitting:
        return Unplaced(wish.pod, _sentence(len(seats), reasons))
    best = min(fitting, key=lambda seat: _cost(wish.pod, seat, wish.demands))
    return Placed(wish.pod, best.node.metadata.name)


def _cost(pod: Pod, seat: _Seat, demands: Demands) -> tuple[object, ...]:
    meta, owner = seat.node.metadata, _owner(pod)
    return (
        placement.find_untolerated_taint(pod.spec, seat.node.spec.taints, ("PreferNoSchedule",)) is not None,
        -placement.preference_score(pod.spec, meta.name, meta.labels) - demands.liking(meta.labels),
        demands.crowding(meta.labels),
        seat.broods[owner] if owner else 0,
        seat.used["pods"],
        seat.used["cpu"] - seat.room["cpu"],
        meta.name,
    )


def _reasons_against(wish: _Wish, seat: _Seat) -> list[str]:
    """In the words of Kubernetes: the first thing that speaks against the node; everything of which it is short."""
    meta, spec = seat.node.metadata, wish.pod.spec
    if (
        seat.taints
        and (taint := placement.find_untolerated_taint(spec, seat.taints, ("NoSchedule", "NoExecute"))) is not None
    ):
        words = f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
        return [CORDONED if taint.key == UNSCHEDULABLE else words]
    if not placement.matches_node(spec, meta.name, meta.labels):
        return [UNSUITED]
    if wish.ports and conflicting_port(wish.ports, seat.ports):
        return [PORTS]
    short = [_shortage(row.name, row.wanted) for row in shortages(wish.wanted, seat.used, seat.room)]
    reason = wish.demands.against(meta.labels)
    return short or ([reason] if reason else [])


def _shortage(name: str, wanted: int) -> str:
    if name == "pods":
        return CROWDED
    return f"Insufficient {name} (the pod requests {quantity.of_milli(wanted) if name == 'cpu' else wanted})"


def _sentence(total: int, reasons: Counter[str]) -> str:
    if not total:
        return "0/0 nodes are available: no node has registered."
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f"0/{total} nodes are available: {listed}."

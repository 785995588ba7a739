"""The scheduling algorithm: filter and score nodes for a pod. Pure.

A node is feasible if it has the labels that nodeSelector and node affinity require and no taint that the pod does not
tolerate, if its allocatable covers the requests of its pods and this one, if the host ports are free, and if the pod
affinity of the pod and of the placed pods allows it. Scores compare the pod's preferences first, then the number of
pods of the same owner, the number of pods, free CPU, and the name, so that the same snapshot has the same result.
Pods are scheduled by priority, then by age.
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
from master.controllers.events import SCHEDULER
from master.controllers.nodes.taints import effective_taints
from master.controllers.scheduling.pod_affinity import PlacedPods, PodConstraints
from master.resources.metadata import controller_of

NODE_UNSCHEDULABLE = "node(s) were unschedulable"
AFFINITY_MISMATCH = "node(s) didn't match Pod's node affinity/selector"
PORT_CONFLICT = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY_PODS = "Too many pods"


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The pod goes to that node."""

    pod: Pod
    node: str


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """No node takes the pod; the sentence says why."""

    pod: Pod
    sentence: str


@dataclass
class NodeInfo:
    """A node with what is in use of it, in the course of one pass; `broods` counts its pods by their owner's uid."""

    node: Node
    room: Amounts
    taints: tuple[Taint, ...]
    used: Counter[str] = field(default_factory=Counter)
    ports: list[ContainerPort] = field(default_factory=list)
    broods: Counter[str] = field(default_factory=Counter)

    def take(self, pod: Pod) -> None:
        """Count a pod as placed on the node."""
        self.used.update(pod_requests(pod))
        self.ports.extend(host_ports(pod))
        self.broods[_owner_uid(pod)] += 1


@dataclass(frozen=True, slots=True)
class PodRequirements:
    """What a pod needs, worked out once for all nodes."""

    pod: Pod
    wanted: Amounts
    ports: tuple[ContainerPort, ...]
    demands: PodConstraints


def schedule(
    nodes: Iterable[Node], pods: Iterable[Pod], namespaces: Iterable[Namespace] = ()
) -> Iterator[Scheduled | Unschedulable]:
    """An answer for every pod that waits for a node."""
    everything = tuple(pods)
    ordered = sorted(nodes, key=lambda node: node.metadata.name)
    seats = {node.metadata.name: _node_info(node) for node in ordered}
    there = [pod for pod in everything if pod.spec.node_name in seats and pod.status.phase not in FINAL_PHASES]
    for pod in there:
        seats[pod.spec.node_name].take(pod)
    neighbours = PlacedPods(ordered, there, {one.metadata.name: one.metadata.labels for one in namespaces})
    for pod in sorted(filter(needs_scheduling, everything), key=_queue_order):
        answer = _select_node(_requirements(pod, neighbours), tuple(seats.values()))
        if isinstance(answer, Scheduled):
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
    seat = _node_info(next(one for one in everywhere if one.metadata.name == node))
    for other in placed:
        if other.spec.node_name == node:
            seat.take(other)
    neighbours = PlacedPods(everywhere, placed, {one.metadata.name: one.metadata.labels for one in namespaces})
    return not _filter(_requirements(pod, neighbours), seat)


def _node_info(node: Node) -> NodeInfo:
    return NodeInfo(node, allocatable(node), effective_taints(node))


def _requirements(pod: Pod, neighbours: PlacedPods) -> PodRequirements:
    return PodRequirements(pod, pod_requests(pod), tuple(host_ports(pod)), neighbours.demands(pod))


def needs_scheduling(pod: Pod) -> bool:
    """Whether the pod is for us to place."""
    return (
        not pod.spec.node_name
        and not pod.metadata.deletion_timestamp
        and pod.status.phase not in FINAL_PHASES
        and pod.spec.scheduler_name in ("", SCHEDULER)
        and not pod.spec.scheduling_gates
    )


def _queue_order(pod: Pod) -> tuple[int, str, str, str]:
    meta = pod.metadata
    return -(pod.spec.priority or 0), meta.creation_timestamp or "", meta.namespace, meta.name


def _owner_uid(pod: Pod) -> str:
    owner = controller_of(pod.metadata)
    return "" if owner is None else owner.uid


def _select_node(wish: PodRequirements, seats: Sequence[NodeInfo]) -> Scheduled | Unschedulable:
    reasons, fitting = Counter[str](), list[NodeInfo]()
    for seat in seats:
        if found := _filter(wish, seat):
            reasons.update(found)
        else:
            fitting.append(seat)
    if not fitting:
        return Unschedulable(wish.pod, _unschedulable_message(len(seats), reasons))
    best = min(fitting, key=lambda seat: _score(wish.pod, seat, wish.demands))
    return Scheduled(wish.pod, best.node.metadata.name)


def _score(pod: Pod, seat: NodeInfo, demands: PodConstraints) -> tuple[object, ...]:
    meta, owner = seat.node.metadata, _owner_uid(pod)
    return (
        placement.find_untolerated_taint(pod.spec, seat.node.spec.taints, ("PreferNoSchedule",)) is not None,
        -placement.preference_score(pod.spec, meta.name, meta.labels) - demands.liking(meta.labels),
        demands.crowding(meta.labels),
        seat.broods[owner] if owner else 0,
        seat.used["pods"],
        seat.used["cpu"] - seat.room["cpu"],
        meta.name,
    )


def _filter(wish: PodRequirements, seat: NodeInfo) -> list[str]:
    """In the words of Kubernetes: the first thing that speaks against the node; everything of which it is short."""
    meta, spec = seat.node.metadata, wish.pod.spec
    if (
        seat.taints
        and (taint := placement.find_untolerated_taint(spec, seat.taints, ("NoSchedule", "NoExecute"))) is not None
    ):
        words = f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
        return [NODE_UNSCHEDULABLE if taint.key == UNSCHEDULABLE else words]
    if not placement.matches_node(spec, meta.name, meta.labels):
        return [AFFINITY_MISMATCH]
    if wish.ports and conflicting_port(wish.ports, seat.ports):
        return [PORT_CONFLICT]
    short = [_insufficient(row.name, row.wanted) for row in shortages(wish.wanted, seat.used, seat.room)]
    reason = wish.demands.against(meta.labels)
    return short or ([reason] if reason else [])


def _insufficient(name: str, wanted: int) -> str:
    if name == "pods":
        return TOO_MANY_PODS
    return f"Insufficient {name} (the pod requests {quantity.of_milli(wanted) if name == 'cpu' else wanted})"


def _unschedulable_message(total: int, reasons: Counter[str]) -> str:
    if not total:
        return "0/0 nodes are available: no node has registered."
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f"0/{total} nodes are available: {listed}."

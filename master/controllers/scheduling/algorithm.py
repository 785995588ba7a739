"""The scheduling algorithm: filter and score nodes for a pod. Pure.

A node is feasible if it has the labels that nodeSelector and node affinity require and no taint that the pod does not
tolerate, if its allocatable covers the requests of its pods and this one, if the host ports are free, if the volumes of
the pod can be used there, and if the pod affinity of the pod and of the placed pods allows it. Scores compare the pod's
preferences first, then the number of pods of the same owner, the number of pods, free CPU, and the name, so that the
same snapshot has the same result. Pods are scheduled by priority, then by age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from api.core import placement
from api.core.node import Namespace, Node, Taint
from api.core.placement import UNSCHEDULABLE
from api.core.pod import FINAL_PHASES, ContainerPort, Pod
from api.core.resource_requests import (
    Amounts,
    allocatable,
    has_port_conflict,
    host_ports,
    insufficient_resources,
    pod_requests,
)
from api.meta import quantity
from master.controllers.actions import Failed, Update, isolate_errors
from master.controllers.events import SCHEDULER
from master.controllers.nodes.taints import effective_taints
from master.controllers.scheduling.pod_affinity import PlacedPods, PodConstraints
from master.controllers.scheduling.volume_binding import (
    NO_STORAGE,
    PodVolumes,
    StorageObjects,
    VolumeBinder,
    fill_binder,
)
from master.resources.metadata import controller_of

NODE_UNSCHEDULABLE = "node(s) were unschedulable"
AFFINITY_MISMATCH = "node(s) didn't match Pod's node affinity/selector"
PORT_CONFLICT = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY_PODS = "Too many pods"


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A pod and the node selected for it."""

    pod: Pod
    node: str


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """A pod for which no node is feasible, with the message that says why."""

    pod: Pod
    message: str


@dataclass(frozen=True, slots=True)
class WaitingForVolumes:
    """A pod whose node is selected and whose claims are not bound yet.

    `choices` are the writes that choose volumes or the node for the claims. `problem` is why a volume is not
    provisioned; empty if none is known.
    """

    pod: Pod
    choices: tuple[Update, ...]
    problem: str


@dataclass
class NodeInfo:
    """A node and its pods, in the course of one pass. `pods_by_owner` counts them by the uid of their owner."""

    node: Node
    allocatable: Amounts
    taints: tuple[Taint, ...]
    used: Counter[str] = field(default_factory=Counter)
    ports: list[ContainerPort] = field(default_factory=list)
    pods_by_owner: Counter[str] = field(default_factory=Counter)

    def add_pod(self, pod: Pod) -> None:
        """Count a pod as placed on the node."""
        self.used.update(pod_requests(pod))
        self.ports.extend(host_ports(pod))
        self.pods_by_owner[_owner_uid(pod)] += 1


@dataclass(frozen=True, slots=True)
class PodRequirements:
    """What a pod requires of a node, computed once for all nodes."""

    pod: Pod
    requests: Amounts
    ports: tuple[ContainerPort, ...]
    constraints: PodConstraints
    binder: VolumeBinder
    volumes: PodVolumes


SchedulingResult = Scheduled | WaitingForVolumes | Unschedulable


def schedule(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    namespaces: Iterable[Namespace] = (),
    storage: StorageObjects = NO_STORAGE,
    binder: VolumeBinder | None = None,
) -> Iterator[SchedulingResult | Failed]:
    """Yield a result for every pod that needs a node.

    A node that cannot be read is not feasible. A placed pod that cannot be read requests nothing. `binder` is filled
    with the storage, and shows the choices of the pass.
    """
    binder = VolumeBinder() if binder is None else binder
    all_pods = tuple(pods)
    sorted_nodes = sorted(nodes, key=lambda node: node.metadata.name)
    node_infos: dict[str, NodeInfo] = {}
    placed_pods = PlacedPods(
        sorted_nodes, (), {namespace.metadata.name: namespace.metadata.labels for namespace in namespaces}
    )

    def add_node(node: Node) -> tuple[()]:
        node_infos[node.metadata.name] = _node_info(node)
        return ()

    def add_placed(pod: Pod) -> tuple[()]:
        node_infos[pod.spec.node_name].add_pod(pod)
        placed_pods.add(pod, pod.spec.node_name)
        return ()

    def select(pod: Pod) -> Iterator[SchedulingResult]:
        requirements = _requirements(pod, placed_pods, binder)
        result = _select_node(requirements, tuple(node_infos.values()))
        if isinstance(result, Scheduled):
            node_infos[result.node].add_pod(pod)
            placed_pods.add(pod, result.node)
            if requirements.volumes.unbound:
                choices = tuple(binder.choose(requirements.volumes, node_infos[result.node].node))
                yield WaitingForVolumes(pod, choices, requirements.volumes.waiting)
                return
        elif pod.status.nominated_node_name in node_infos:
            node_infos[pod.status.nominated_node_name].add_pod(pod)  # Reserves the room that preemption makes.
        yield result

    yield from fill_binder(binder, storage)
    yield from isolate_errors(sorted_nodes, add_node)
    placed = (pod for pod in all_pods if pod.spec.node_name in node_infos and pod.status.phase not in FINAL_PHASES)
    yield from isolate_errors(placed, add_placed)
    yield from isolate_errors(sorted(filter(needs_scheduling, all_pods), key=_queue_order), select)


def fits(
    pod: Pod,
    node: str,
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    namespaces: Iterable[Namespace],
    binder: VolumeBinder,
) -> bool:
    """Return whether a node is feasible for the pod, with these pods placed."""
    all_nodes, placed = tuple(nodes), tuple(pods)
    node_info = _node_info(next(candidate for candidate in all_nodes if candidate.metadata.name == node))
    for other in placed:
        if other.spec.node_name == node:
            node_info.add_pod(other)
    placed_pods = PlacedPods(
        all_nodes, placed, {namespace.metadata.name: namespace.metadata.labels for namespace in namespaces}
    )
    return not _filter(_requirements(pod, placed_pods, binder), node_info)


def _node_info(node: Node) -> NodeInfo:
    return NodeInfo(node, allocatable(node), effective_taints(node))


def _requirements(pod: Pod, placed_pods: PlacedPods, binder: VolumeBinder) -> PodRequirements:
    constraints, volumes = placed_pods.constraints_of(pod), binder.volumes_of(pod)
    return PodRequirements(pod, pod_requests(pod), tuple(host_ports(pod)), constraints, binder, volumes)


def needs_scheduling(pod: Pod) -> bool:
    """Return whether this scheduler is to select a node for the pod."""
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


def _select_node(requirements: PodRequirements, node_infos: Sequence[NodeInfo]) -> Scheduled | Unschedulable:
    if requirements.volumes.problem:
        message = f"0/{len(node_infos)} nodes are available: {requirements.volumes.problem}."
        return Unschedulable(requirements.pod, message)
    reasons, feasible = Counter[str](), list[NodeInfo]()
    for node_info in node_infos:
        if node_reasons := _filter(requirements, node_info):
            reasons.update(node_reasons)
        else:
            feasible.append(node_info)
    if not feasible:
        return Unschedulable(requirements.pod, _unschedulable_message(len(node_infos), reasons))
    best = min(feasible, key=lambda node_info: _score(requirements.pod, node_info, requirements.constraints))
    return Scheduled(requirements.pod, best.node.metadata.name)


def _score(pod: Pod, node_info: NodeInfo, constraints: PodConstraints) -> tuple[object, ...]:
    """Return the score of a node as a tuple; the smallest is best."""
    meta, owner = node_info.node.metadata, _owner_uid(pod)
    return (
        placement.find_untolerated_taint(pod.spec, node_info.node.spec.taints, ("PreferNoSchedule",)) is not None,
        -placement.preference_score(pod.spec, meta.name, meta.labels) - constraints.preferred_score(meta.labels),
        constraints.spread_score(meta.labels),
        node_info.pods_by_owner[owner] if owner else 0,
        node_info.used["pods"],
        node_info.used["cpu"] - node_info.allocatable["cpu"],
        meta.name,
    )


def _filter(requirements: PodRequirements, node_info: NodeInfo) -> list[str]:
    """Return why a node is not feasible, in the words of Kubernetes: the first reason, or all resources of which it has
    too little.
    """
    meta, spec = node_info.node.metadata, requirements.pod.spec
    if (
        node_info.taints
        and (taint := placement.find_untolerated_taint(spec, node_info.taints, ("NoSchedule", "NoExecute"))) is not None
    ):
        message = f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
        return [NODE_UNSCHEDULABLE if taint.key == UNSCHEDULABLE else message]
    if not placement.matches_node(spec, meta.name, meta.labels):
        return [AFFINITY_MISMATCH]
    if requirements.ports and has_port_conflict(requirements.ports, node_info.ports):
        return [PORT_CONFLICT]
    insufficient = [
        _insufficient(shortage.name, shortage.requested)
        for shortage in insufficient_resources(requirements.requests, node_info.used, node_info.allocatable)
    ]
    if insufficient:
        return insufficient
    reason = requirements.binder.reason(requirements.volumes, node_info.node)
    reason = reason or requirements.constraints.reason(meta.labels)
    return [reason] if reason else []


def _insufficient(name: str, requested: int) -> str:
    if name == "pods":
        return TOO_MANY_PODS
    return f"Insufficient {name} (the pod requests {quantity.format_milli(requested) if name == 'cpu' else requested})"


def _unschedulable_message(node_count: int, reasons: Counter[str]) -> str:
    if not node_count:
        return "0/0 nodes are available: no node has registered."
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f"0/{node_count} nodes are available: {listed}."

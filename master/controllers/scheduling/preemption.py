"""Preemption: pods of lower priority make room on one node. Pure.

As in Kubernetes, the victims are as few and of as low a priority as possible, and pods without the protection of a
disruption budget come first. Victims have their grace period; meanwhile the pod is nominated to the node and preempts
no further pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from api.core.node import Namespace, Node
from api.core.pod import FINAL_PHASES, Pod
from master.controllers.scheduling.algorithm import fits
from master.controllers.scheduling.volume_binding import VolumeBinder
from master.resources.disruption_budgets import PodDisruptionBudget, covers

NEVER = "Never"
MAX_CANDIDATES = 10
"""Nodes for which the victims are computed: those with the lowest candidate cost."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """A pod, a node, and the pods to delete there for it."""

    pod: Pod
    node: str
    victims: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster as preemption sees it. `pods` have a node each; `lowest` is the lowest of their priorities."""

    nodes: Sequence[Node]
    pods: Sequence[Pod]
    pods_by_node: Mapping[str, Sequence[Pod]]
    lowest_priority: int
    namespaces: Sequence[Namespace]
    budgets: Sequence[PodDisruptionBudget]
    binder: VolumeBinder


def priority(pod: Pod) -> int:
    """Return the priority of a pod."""
    return pod.spec.priority or 0


def cluster_view(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    namespaces: Iterable[Namespace],
    budgets: Iterable[PodDisruptionBudget],
    binder: VolumeBinder,
) -> ClusterView:
    """Return the view of a whole cluster."""
    placed = tuple(pod for pod in pods if pod.spec.node_name and pod.status.phase not in FINAL_PHASES)
    all_nodes = tuple(nodes)
    pods_by_node: dict[str, list[Pod]] = {node.metadata.name: [] for node in all_nodes}
    for pod in placed:
        pods_by_node.get(pod.spec.node_name, []).append(pod)
    lowest_priority = min(map(priority, placed), default=0)
    return ClusterView(all_nodes, placed, pods_by_node, lowest_priority, tuple(namespaces), tuple(budgets), binder)


def preemption(pod: Pod, cluster: ClusterView) -> Preemption | None:
    """Return the preemption that makes room for an unschedulable pod; None if there is none, or one is in progress."""
    if (
        priority(pod) <= cluster.lowest_priority
        or pod.spec.preemption_policy == NEVER
        or _is_preempting(pod, cluster.pods_by_node)
    ):
        return None
    victims_by_node = {name: _lower_priority(pod, node_pods) for name, node_pods in cluster.pods_by_node.items()}
    candidates = sorted(
        (name for name in victims_by_node if victims_by_node[name]),
        key=lambda name: _candidate_cost(name, victims_by_node[name]),
    )
    results: list[tuple[tuple[object, ...], Preemption]] = []
    for name in candidates:
        if len(results) < MAX_CANDIDATES and _fits_without(pod, name, cluster, victims_by_node[name]):
            results.append(_minimal_victims(pod, name, cluster, victims_by_node[name]))
    return min(results, key=lambda result: result[0])[1] if results else None


def _is_preempting(pod: Pod, pods_by_node: Mapping[str, Sequence[Pod]]) -> bool:
    """Return whether pods of lower priority are terminating on the nominated node."""
    nominated_pods = pods_by_node.get(pod.status.nominated_node_name, ())
    return any(other.metadata.deletion_timestamp and priority(other) < priority(pod) for other in nominated_pods)


def _lower_priority(pod: Pod, pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods of lower priority: the highest priority first, then the oldest."""
    lower = (other for other in pods if priority(other) < priority(pod) and not other.metadata.deletion_timestamp)
    return sorted(lower, key=lambda other: (-priority(other), other.status.start_time or "", other.metadata.name))


def _candidate_cost(name: str, victims: Sequence[Pod]) -> tuple[object, ...]:
    return priority(victims[-1]), len(victims), name


def _fits_without(pod: Pod, node: str, cluster: ClusterView, victims: Sequence[Pod]) -> bool:
    uids = {other.metadata.uid for other in victims}
    remaining = [other for other in cluster.pods if other.metadata.uid not in uids]
    return fits(pod, node, cluster.nodes, remaining, cluster.namespaces, cluster.binder)


def _minimal_victims(
    pod: Pod, node: str, cluster: ClusterView, candidates: Sequence[Pod]
) -> tuple[tuple[object, ...], Preemption]:
    """Return as few victims as possible, with their cost; the smallest cost is best."""
    protected = _protected(candidates, cluster.budgets)
    victims = list(candidates)
    for candidate in sorted(candidates, key=lambda candidate: candidate.metadata.uid not in protected):
        fewer = [other for other in victims if other is not candidate]
        if _fits_without(pod, node, cluster, fewer):
            victims = fewer
    violations = sum(candidate.metadata.uid in protected for candidate in victims)
    ranks = [priority(candidate) for candidate in victims]
    youngest_first = tuple(
        -ord(letter) for letter in max((candidate.status.start_time or "" for candidate in victims), default="")
    )
    cost = (violations, max(ranks, default=0), sum(ranks), len(victims), youngest_first, node)
    return cost, Preemption(pod, node, tuple(victims))


def _protected(pods: Iterable[Pod], budgets: Sequence[PodDisruptionBudget]) -> frozenset[str]:
    """Return the uids of pods whose deletion, one after the other, a disruption budget does not allow."""
    used: Counter[str] = Counter()
    protected = set()
    for pod in pods:
        for budget in budgets:
            if covers(budget, pod):
                used[budget.metadata.uid] += 1
                if used[budget.metadata.uid] > budget.status.disruptions_allowed:
                    protected.add(pod.metadata.uid)
    return frozenset(protected)

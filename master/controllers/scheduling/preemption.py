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
from master.resources.disruption_budgets import PodDisruptionBudget, covers

NEVER = "Never"
MAX_CANDIDATES = 10
"""Nodes of which it is worked out how few pods would have to go; the most promising ones."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """The pod gets the room of the victims on that node."""

    pod: Pod
    node: str
    victims: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Everything that a preemption looks at. `pods` have a node each, `lowest` is the least of their priorities."""

    nodes: Sequence[Node]
    pods: Sequence[Pod]
    on_nodes: Mapping[str, Sequence[Pod]]
    lowest: int
    namespaces: Sequence[Namespace]
    budgets: Sequence[PodDisruptionBudget]


def priority(pod: Pod) -> int:
    """Its priority."""
    return pod.spec.priority or 0


def cluster_view(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    namespaces: Iterable[Namespace],
    budgets: Iterable[PodDisruptionBudget],
) -> ClusterView:
    """The same of a whole cluster."""
    placed = tuple(pod for pod in pods if pod.spec.node_name and pod.status.phase not in FINAL_PHASES)
    every_node = tuple(nodes)
    on_nodes: dict[str, list[Pod]] = {node.metadata.name: [] for node in every_node}
    for pod in placed:
        on_nodes.get(pod.spec.node_name, []).append(pod)
    lowest = min(map(priority, placed), default=0)
    return ClusterView(every_node, placed, on_nodes, lowest, tuple(namespaces), tuple(budgets))


def preemption(pod: Pod, within: ClusterView) -> Preemption | None:
    """What makes room for a pod that found none; None if nothing does, or room is already being made."""
    if priority(pod) <= within.lowest or pod.spec.preemption_policy == NEVER or _is_preempting(pod, within.on_nodes):
        return None
    lower = {name: _lower_priority(pod, others) for name, others in within.on_nodes.items()}
    promising = sorted((name for name in lower if lower[name]), key=lambda name: _candidate_cost(name, lower[name]))
    found: list[tuple[tuple[object, ...], Preemption]] = []
    for name in promising:
        if len(found) < MAX_CANDIDATES and _fits_without(pod, name, within, lower[name]):
            found.append(_minimal_victims(pod, name, within, lower[name]))
    return min(found, key=lambda row: row[0])[1] if found else None


def _is_preempting(pod: Pod, on_nodes: Mapping[str, Sequence[Pod]]) -> bool:
    """Whether pods that are less important are on their way out where the pod is to go."""
    there = on_nodes.get(pod.status.nominated_node_name, ())
    return any(other.metadata.deletion_timestamp and priority(other) < priority(pod) for other in there)


def _lower_priority(pod: Pod, others: Iterable[Pod]) -> list[Pod]:
    """Those of lesser importance that would have to go: the most important one first, then the oldest."""
    rows = (row for row in others if priority(row) < priority(pod) and not row.metadata.deletion_timestamp)
    return sorted(rows, key=lambda row: (-priority(row), row.status.start_time or "", row.metadata.name))


def _candidate_cost(name: str, lower: Sequence[Pod]) -> tuple[object, ...]:
    return priority(lower[-1]), len(lower), name


def _fits_without(pod: Pod, node: str, within: ClusterView, gone: Sequence[Pod]) -> bool:
    uids = {row.metadata.uid for row in gone}
    left = [row for row in within.pods if row.metadata.uid not in uids]
    return fits(pod, node, within.nodes, left, within.namespaces)


def _minimal_victims(
    pod: Pod, node: str, within: ClusterView, lower: Sequence[Pod]
) -> tuple[tuple[object, ...], Preemption]:
    """As few victims as there have to be, with what they cost: the smallest is the best."""
    guarded = _protected(lower, within.budgets)
    victims = list(lower)
    for row in sorted(lower, key=lambda row: row.metadata.uid not in guarded):
        without = [other for other in victims if other is not row]
        if _fits_without(pod, node, within, without):
            victims = without
    violations = sum(row.metadata.uid in guarded for row in victims)
    ranks = [priority(row) for row in victims]
    youngest_first = tuple(-ord(letter) for letter in max((row.status.start_time or "" for row in victims), default=""))
    cost = (violations, max(ranks, default=0), sum(ranks), len(victims), youngest_first, node)
    return cost, Preemption(pod, node, tuple(victims))


def _protected(pods: Iterable[Pod], budgets: Sequence[PodDisruptionBudget]) -> frozenset[str]:
    """The uids of those whose end, one after the other, a disruption budget does not allow."""
    spent: Counter[str] = Counter()
    found = set()
    for pod in pods:
        for budget in budgets:
            if covers(budget, pod):
                spent[budget.metadata.uid] += 1
                if spent[budget.metadata.uid] > budget.status.disruptions_allowed:
                    found.add(pod.metadata.uid)
    return frozenset(found)

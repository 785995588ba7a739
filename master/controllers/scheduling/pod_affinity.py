"""Pod affinity, anti-affinity and topology spread over placed pods. Pure.

Counts are kept for each group of pods that a constraint selects, and grow with each pod that is placed in the same
pass. So a burst of equal pods costs one count.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from api.core import placement
from api.core.node import Node
from api.core.placement import (
    DO_NOT_SCHEDULE,
    HONOR,
    IGNORE,
    PodAffinity,
    PodAffinityTerm,
    PodAntiAffinity,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from api.core.pod import Pod
from api.meta.selectors import LabelSelector, Requirement, Selector, compile_selector
from master.controllers.nodes.taints import NO_EXECUTE, NO_SCHEDULE, effective_taints

AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD_CONSTRAINT = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL_MISSING = f"{SPREAD_CONSTRAINT} (missing required label)"

TopologyDomain = tuple[str, str]
"""A topology key and a value that the labels of some nodes have for it."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """The pods with these labels in these namespaces; None stands for all namespaces."""

    labels: Selector
    namespaces: frozenset[str] | None

    def contains(self, pod: Pod) -> bool:
        """Return whether a pod belongs to the group."""
        in_namespaces = self.namespaces is None or pod.metadata.namespace in self.namespaces
        return in_namespaces and self.labels.matches(pod.metadata.labels)


@dataclass(frozen=True, slots=True)
class TopologySpread:
    """How many pods of a group each domain has. `own` is 1 if the pod itself belongs to the group."""

    key: str
    counts: Mapping[str, int]
    minimum: int
    own: int
    max_skew: int

    def exceeds_skew(self, value: str) -> bool:
        """Return whether one more pod in this domain exceeds the allowed skew."""
        return self.counts.get(value, 0) + self.own - self.minimum > self.max_skew


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """The affinity of one pod and of the placed pods towards it, computed for all nodes at once."""

    affinity: tuple[tuple[str, frozenset[str]], ...] = ()
    anti_affinity: frozenset[TopologyDomain] = frozenset()
    repelled: frozenset[TopologyDomain] = frozenset()
    hard_spread: tuple[TopologySpread, ...] = ()
    preferences: Mapping[TopologyDomain, int] = field(default_factory=dict)
    soft_spread: tuple[TopologySpread, ...] = ()

    def reason(self, labels: Mapping[str, str]) -> str:
        """Return why a node with these labels is not feasible; empty if it is."""
        if any(labels.get(key) not in values for key, values in self.affinity):
            return AFFINITY
        if _in_domain(self.anti_affinity, labels):
            return ANTI_AFFINITY
        if _in_domain(self.repelled, labels):
            return EXISTING_ANTI_AFFINITY
        if any(spread.key not in labels for spread in self.hard_spread):
            return SPREAD_LABEL_MISSING
        return SPREAD_CONSTRAINT if any(spread.exceeds_skew(labels[spread.key]) for spread in self.hard_spread) else ""

    def preferred_score(self, labels: Mapping[str, str]) -> int:
        """Return the weight of the pod's preferences for a node with these labels."""
        return sum(weight for (key, value), weight in self.preferences.items() if labels.get(key) == value)

    def spread_score(self, labels: Mapping[str, str]) -> int:
        """Return how many pods of the soft spread constraints are in the domains of a node with these labels."""
        return sum(
            spread.counts.get(labels.get(spread.key, ""), max(spread.counts.values(), default=0))
            for spread in self.soft_spread
        )


NO_CONSTRAINTS = PodConstraints()


def _in_domain(domains: Iterable[TopologyDomain], labels: Mapping[str, str]) -> bool:
    return any(labels.get(key) == value for key, value in domains)


class PlacedPods:
    """All pods with a node, in the course of one pass. `namespaces` has the labels of each namespace by its name."""

    def __init__(self, nodes: Sequence[Node], pods: Iterable[Pod], namespaces: Mapping[str, Mapping[str, str]]) -> None:
        self._nodes = {node.metadata.name: node for node in nodes}
        self._namespaces = namespaces
        self._pods: list[tuple[Pod, str]] = []
        self._counts: dict[PodGroup, Counter[str]] = {}
        self._repelled: defaultdict[PodGroup, set[TopologyDomain]] = defaultdict(set)
        for pod in pods:
            self.add(pod, pod.spec.node_name)

    def add(self, pod: Pod, node: str) -> None:
        """Place one more pod."""
        if node not in self._nodes:
            return
        self._pods.append((pod, node))
        for counted, counter in self._counts.items():
            counter[node] += _group_count(counted, pod)
        labels = self._nodes[node].metadata.labels
        for term in _terms(pod, anti=True):
            if term.topology_key in labels and (group := self._group(term, pod)) is not None:
                self._repelled[group].add((term.topology_key, labels[term.topology_key]))

    def constraints_of(self, pod: Pod) -> PodConstraints:
        """Return the constraints of a pod, and those of the placed pods on it."""
        repelled_domains = (domains for group, domains in self._repelled.items() if group.contains(pod))
        repelled = frozenset(itertools.chain.from_iterable(repelled_domains))
        affinity, constraints = pod.spec.affinity, pod.spec.topology_spread_constraints
        if affinity is None and not constraints:
            return PodConstraints(repelled=repelled) if repelled else NO_CONSTRAINTS
        hard = [constraint for constraint in constraints if constraint.when_unsatisfiable == DO_NOT_SCHEDULE]
        soft = [constraint for constraint in constraints if constraint.when_unsatisfiable != DO_NOT_SCHEDULE]
        return PodConstraints(
            affinity=tuple(self._required_affinity(pod)),
            anti_affinity=frozenset(
                domain for term in _terms(pod, anti=True) for domain in self._domains_of(term, pod)
            ),
            repelled=repelled,
            hard_spread=self._topology_spreads(pod, hard),
            preferences=self._preferences_of(pod),
            soft_spread=self._topology_spreads(pod, soft),
        )

    # --- affinity --------------------------------------------------------------------------------------------------

    def _required_affinity(self, pod: Pod) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield the values that each topology key may have. The first pod of a group with affinity to itself may go
        anywhere, or it would wait for itself.
        """
        terms = list(_terms(pod, anti=False))
        domains_by_term = [(term.topology_key, self._domains_of(term, pod)) for term in terms]
        groups = [self._group(term, pod) for term in terms]
        if not any(domains for _, domains in domains_by_term) and all(
            group and group.contains(pod) for group in groups
        ):
            for key, _ in domains_by_term:
                yield key, self._domain_values(key)
            return
        for key, domains in domains_by_term:
            yield key, frozenset(value for _, value in domains)

    def _preferences_of(self, pod: Pod) -> Mapping[TopologyDomain, int]:
        weights: Counter[TopologyDomain] = Counter()
        for sign, preferences in ((1, _preferences(pod, anti=False)), (-1, _preferences(pod, anti=True))):
            for preference in preferences:
                for domain, count in self._domains_of(preference.pod_affinity_term, pod).items():
                    weights[domain] += sign * preference.weight * count
        return weights

    def _domains_of(self, term: PodAffinityTerm, pod: Pod) -> Counter[TopologyDomain]:
        """Return how many pods that a term selects are in each domain."""
        group, domains = self._group(term, pod), Counter[TopologyDomain]()
        for node, count in (self._count_by_node(group) if group is not None else {}).items():
            value = self._nodes[node].metadata.labels.get(term.topology_key)
            if value is not None and count:
                domains[term.topology_key, value] += count
        return domains

    def _group(self, term: PodAffinityTerm, pod: Pod) -> PodGroup | None:
        """Return the pods that a term selects; None if it has no selector, which selects none."""
        labels = _selector(term.label_selector, pod, term.match_label_keys, term.mismatch_label_keys)
        if labels is None:
            return None
        namespace_selector = term.namespace_selector
        if (
            namespace_selector is not None
            and not namespace_selector.match_labels
            and not namespace_selector.match_expressions
        ):
            return PodGroup(labels, None)
        names = set(term.namespaces)
        if namespace_selector is not None:
            chosen = compile_selector(namespace_selector)
            names |= {name for name, namespace_labels in self._namespaces.items() if chosen.matches(namespace_labels)}
        elif not names:
            names = {pod.metadata.namespace}
        return PodGroup(labels, frozenset(names))

    # --- spreading -------------------------------------------------------------------------------------------------

    def _topology_spreads(
        self, pod: Pod, constraints: Sequence[TopologySpreadConstraint]
    ) -> tuple[TopologySpread, ...]:
        keys = {constraint.topology_key for constraint in constraints}
        return tuple(self._topology_spread(pod, constraint, keys) for constraint in constraints)

    def _topology_spread(self, pod: Pod, constraint: TopologySpreadConstraint, keys: set[str]) -> TopologySpread:
        labels = _selector(constraint.label_selector, pod, constraint.match_label_keys)
        group = None if labels is None else PodGroup(labels, frozenset((pod.metadata.namespace,)))
        pods_by_node = self._count_by_node(group) if group is not None else Counter[str]()
        counts: Counter[str] = Counter()
        for name, node in self._nodes.items():
            if keys <= node.metadata.labels.keys() and _is_spread_node(pod, constraint, node):
                counts[node.metadata.labels[constraint.topology_key]] += pods_by_node[name]
        too_few = constraint.min_domains is not None and len(counts) < constraint.min_domains
        minimum = 0 if too_few else min(counts.values(), default=0)
        own = int(group is not None and group.contains(pod))
        return TopologySpread(constraint.topology_key, counts, minimum, own, constraint.max_skew)

    def _domain_values(self, key: str) -> frozenset[str]:
        node_labels = (node.metadata.labels for node in self._nodes.values())
        return frozenset(labels[key] for labels in node_labels if key in labels)

    def _count_by_node(self, group: PodGroup) -> Counter[str]:
        """Return how many pods of a group each node has."""
        if group not in self._counts:
            counter: Counter[str] = Counter()
            for pod, node in self._pods:
                counter[node] += _group_count(group, pod)
            self._counts[group] = counter
        return self._counts[group]


def _is_spread_node(pod: Pod, constraint: TopologySpreadConstraint, node: Node) -> bool:
    """Return whether a constraint spreads pods over a node."""
    meta = node.metadata
    if (constraint.node_affinity_policy or HONOR) == HONOR and not placement.matches_node(
        pod.spec, meta.name, meta.labels
    ):
        return False
    taints = () if (constraint.node_taints_policy or IGNORE) == IGNORE else effective_taints(node)
    return placement.find_untolerated_taint(pod.spec, taints, (NO_SCHEDULE, NO_EXECUTE)) is None


def _group_count(group: PodGroup, pod: Pod) -> int:
    """Return 1 if the group contains the pod, else 0. Terminating pods are not counted, because their place is soon
    free.
    """
    return int(pod.metadata.deletion_timestamp is None and group.contains(pod))


def _selector(
    label_selector: LabelSelector | None, pod: Pod, match_keys: Iterable[str] = (), mismatch_keys: Iterable[str] = ()
) -> Selector | None:
    if label_selector is None:
        return None
    labels = pod.metadata.labels
    matching = (Requirement(key, "in", frozenset((labels[key],))) for key in match_keys if key in labels)
    mismatching = (Requirement(key, "notin", frozenset((labels[key],))) for key in mismatch_keys if key in labels)
    return Selector((*compile_selector(label_selector).requirements, *matching, *mismatching))


def _affinity_of(pod: Pod, *, anti: bool) -> PodAffinity | PodAntiAffinity:
    affinity = pod.spec.affinity
    half = None if affinity is None else affinity.pod_anti_affinity if anti else affinity.pod_affinity
    return half or PodAffinity()


def _terms(pod: Pod, *, anti: bool) -> tuple[PodAffinityTerm, ...]:
    return _affinity_of(pod, anti=anti).required_during_scheduling_ignored_during_execution


def _preferences(pod: Pod, *, anti: bool) -> tuple[WeightedPodAffinityTerm, ...]:
    return _affinity_of(pod, anti=anti).preferred_during_scheduling_ignored_during_execution

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
from api.meta.selectors import LabelSelector, Requirement, Selector, selector
from master.controllers.nodes.taints import NO_EXECUTE, NO_SCHEDULE, effective_taints

AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD_CONSTRAINT = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL_MISSING = f"{SPREAD_CONSTRAINT} (missing required label)"

TopologyDomain = tuple[str, str]
"""A topology key and the value that the labels of some nodes have for it."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """The pods with these labels in these namespaces; None stands for all of them."""

    labels: Selector
    namespaces: frozenset[str] | None

    def takes(self, pod: Pod) -> bool:
        """Whether a pod is one of them."""
        inside = self.namespaces is None or pod.metadata.namespace in self.namespaces
        return inside and self.labels.matches(pod.metadata.labels)


@dataclass(frozen=True, slots=True)
class TopologySpread:
    """How many pods of a group each place has; `own` is 1 if the pod is one of them itself."""

    key: str
    counts: Mapping[str, int]
    least: int
    own: int
    most_skew: int

    def is_uneven(self, value: str) -> bool:
        """Return whether one more pod in this domain exceeds the allowed skew."""
        return self.counts.get(value, 0) + self.own - self.least > self.most_skew


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """What one pod demands of the neighbours of its node, and they of it, worked out for all nodes at once."""

    near: tuple[tuple[str, frozenset[str]], ...] = ()
    far: frozenset[TopologyDomain] = frozenset()
    kept_off: frozenset[TopologyDomain] = frozenset()
    even: tuple[TopologySpread, ...] = ()
    likings: Mapping[TopologyDomain, int] = field(default_factory=dict)
    crowds: tuple[TopologySpread, ...] = ()

    def against(self, labels: Mapping[str, str]) -> str:
        """Why a node with these labels is none for the pod; empty if it is one."""
        if any(labels.get(key) not in values for key, values in self.near):
            return AFFINITY
        if _in_domain(self.far, labels):
            return ANTI_AFFINITY
        if _in_domain(self.kept_off, labels):
            return EXISTING_ANTI_AFFINITY
        if any(row.key not in labels for row in self.even):
            return SPREAD_LABEL_MISSING
        return SPREAD_CONSTRAINT if any(row.is_uneven(labels[row.key]) for row in self.even) else ""

    def liking(self, labels: Mapping[str, str]) -> int:
        """How much the pod would like a node with these labels."""
        return sum(weight for (key, value), weight in self.likings.items() if labels.get(key) == value)

    def crowding(self, labels: Mapping[str, str]) -> int:
        """How many of its like are there already, where that matters."""
        return sum(row.counts.get(labels.get(row.key, ""), max(row.counts.values(), default=0)) for row in self.crowds)


NO_CONSTRAINTS = PodConstraints()


def _in_domain(places: Iterable[TopologyDomain], labels: Mapping[str, str]) -> bool:
    return any(labels.get(key) == value for key, value in places)


class PlacedPods:
    """All pods that have a node, in the course of one pass; `namespaces` gives the labels of each by its name."""

    def __init__(self, nodes: Sequence[Node], pods: Iterable[Pod], namespaces: Mapping[str, Mapping[str, str]]) -> None:
        self._nodes = {node.metadata.name: node for node in nodes}
        self._namespaces = namespaces
        self._pods: list[tuple[Pod, str]] = []
        self._counts: dict[PodGroup, Counter[str]] = {}
        self._repelled: defaultdict[PodGroup, set[TopologyDomain]] = defaultdict(set)
        for pod in pods:
            self.add(pod, pod.spec.node_name)

    def add(self, pod: Pod, node: str) -> None:
        """One more pod has this node."""
        if node not in self._nodes:
            return
        self._pods.append((pod, node))
        for counted, counter in self._counts.items():
            counter[node] += _group_count(counted, pod)
        labels = self._nodes[node].metadata.labels
        for term in _terms(pod, anti=True):
            if term.topology_key in labels and (group := self._group(term, pod)) is not None:
                self._repelled[group].add((term.topology_key, labels[term.topology_key]))

    def demands(self, pod: Pod) -> PodConstraints:
        """What this pod demands of its node's neighbours, and they of it."""
        repelled = (places for group, places in self._repelled.items() if group.takes(pod))
        kept_off = frozenset(itertools.chain.from_iterable(repelled))
        affinity, constraints = pod.spec.affinity, pod.spec.topology_spread_constraints
        if affinity is None and not constraints:
            return PodConstraints(kept_off=kept_off) if kept_off else NO_CONSTRAINTS
        hard = [row for row in constraints if row.when_unsatisfiable == DO_NOT_SCHEDULE]
        soft = [row for row in constraints if row.when_unsatisfiable != DO_NOT_SCHEDULE]
        return PodConstraints(
            near=tuple(self._near(pod)),
            far=frozenset(place for term in _terms(pod, anti=True) for place in self._places(term, pod)),
            kept_off=kept_off,
            even=self._spreads(pod, hard),
            likings=self._likings(pod),
            crowds=self._spreads(pod, soft),
        )

    # --- affinity --------------------------------------------------------------------------------------------------

    def _near(self, pod: Pod) -> Iterator[tuple[str, frozenset[str]]]:
        """The values that each topology key may have.

        The first pod of a series that is to stay together goes anywhere, or it would wait for itself.
        """
        terms = list(_terms(pod, anti=False))
        found = [(term.topology_key, self._places(term, pod)) for term in terms]
        groups = [self._group(term, pod) for term in terms]
        if not any(places for _, places in found) and all(group and group.takes(pod) for group in groups):
            for key, _ in found:
                yield key, self._values(key)
            return
        for key, places in found:
            yield key, frozenset(value for _, value in places)

    def _likings(self, pod: Pod) -> Mapping[TopologyDomain, int]:
        found: Counter[TopologyDomain] = Counter()
        for sign, rows in ((1, _preferences(pod, anti=False)), (-1, _preferences(pod, anti=True))):
            for row in rows:
                for place, count in self._places(row.pod_affinity_term, pod).items():
                    found[place] += sign * row.weight * count
        return found

    def _places(self, term: PodAffinityTerm, pod: Pod) -> Counter[TopologyDomain]:
        """Where pods are that a term means, and how many."""
        group, found = self._group(term, pod), Counter[TopologyDomain]()
        for node, count in (self._count(group) if group is not None else {}).items():
            value = self._nodes[node].metadata.labels.get(term.topology_key)
            if value is not None and count:
                found[term.topology_key, value] += count
        return found

    def _group(self, term: PodAffinityTerm, pod: Pod) -> PodGroup | None:
        """The pods that a term of this pod means; None if it has no selector, which means none."""
        labels = _selector(term.label_selector, pod, term.match_label_keys, term.mismatch_label_keys)
        if labels is None:
            return None
        wish = term.namespace_selector
        if wish is not None and not wish.match_labels and not wish.match_expressions:
            return PodGroup(labels, None)
        named = set(term.namespaces)
        if wish is not None:
            chosen = selector(wish)
            named |= {name for name, found in self._namespaces.items() if chosen.matches(found)}
        elif not named:
            named = {pod.metadata.namespace}
        return PodGroup(labels, frozenset(named))

    # --- spreading -------------------------------------------------------------------------------------------------

    def _spreads(self, pod: Pod, rows: Sequence[TopologySpreadConstraint]) -> tuple[TopologySpread, ...]:
        keys = {row.topology_key for row in rows}
        return tuple(self._spread(pod, row, keys) for row in rows)

    def _spread(self, pod: Pod, row: TopologySpreadConstraint, keys: set[str]) -> TopologySpread:
        labels = _selector(row.label_selector, pod, row.match_label_keys)
        group = None if labels is None else PodGroup(labels, frozenset((pod.metadata.namespace,)))
        on_nodes = self._count(group) if group is not None else Counter[str]()
        counts: Counter[str] = Counter()
        for name, node in self._nodes.items():
            if keys <= node.metadata.labels.keys() and _is_spread_node(pod, row, node):
                counts[node.metadata.labels[row.topology_key]] += on_nodes[name]
        too_few = row.min_domains is not None and len(counts) < row.min_domains
        least = 0 if too_few else min(counts.values(), default=0)
        own = int(group is not None and group.takes(pod))
        return TopologySpread(row.topology_key, counts, least, own, row.max_skew)

    def _values(self, key: str) -> frozenset[str]:
        labels = (node.metadata.labels for node in self._nodes.values())
        return frozenset(row[key] for row in labels if key in row)

    def _count(self, group: PodGroup) -> Counter[str]:
        """How many pods of a group each node has."""
        if group not in self._counts:
            counter: Counter[str] = Counter()
            for pod, node in self._pods:
                counter[node] += _group_count(group, pod)
            self._counts[group] = counter
        return self._counts[group]


def _is_spread_node(pod: Pod, row: TopologySpreadConstraint, node: Node) -> bool:
    """Whether a node is one of those over which a constraint spreads."""
    meta = node.metadata
    if (row.node_affinity_policy or HONOR) == HONOR and not placement.matches_node(pod.spec, meta.name, meta.labels):
        return False
    taints = () if (row.node_taints_policy or IGNORE) == IGNORE else effective_taints(node)
    return placement.find_untolerated_taint(pod.spec, taints, (NO_SCHEDULE, NO_EXECUTE)) is None


def _group_count(group: PodGroup, pod: Pod) -> int:
    """Pods on their way out are not counted: their place is about to be free."""
    return int(pod.metadata.deletion_timestamp is None and group.takes(pod))


def _selector(
    wish: LabelSelector | None, pod: Pod, equal: Iterable[str] = (), unequal: Iterable[str] = ()
) -> Selector | None:
    if wish is None:
        return None
    labels = pod.metadata.labels
    same = (Requirement(key, "in", frozenset((labels[key],))) for key in equal if key in labels)
    other = (Requirement(key, "notin", frozenset((labels[key],))) for key in unequal if key in labels)
    return Selector((*selector(wish).requirements, *same, *other))


def _affinity_of(pod: Pod, *, anti: bool) -> PodAffinity | PodAntiAffinity:
    affinity = pod.spec.affinity
    half = None if affinity is None else affinity.pod_anti_affinity if anti else affinity.pod_affinity
    return half or PodAffinity()


def _terms(pod: Pod, *, anti: bool) -> tuple[PodAffinityTerm, ...]:
    return _affinity_of(pod, anti=anti).required_during_scheduling_ignored_during_execution


def _preferences(pod: Pod, *, anti: bool) -> tuple[WeightedPodAffinityTerm, ...]:
    return _affinity_of(pod, anti=anti).preferred_during_scheduling_ignored_during_execution

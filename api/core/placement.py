"""Affinity, anti-affinity, topology spread and tolerations; which node matches a pod. Pure.

Places are told apart by the value of a node's label, the topology key: kubernetes.io/hostname, a zone, a rack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Protocol

from api.meta.selectors import LabelSelector
from api.meta.types import Value, merge_keys

LIGHTEST, HEAVIEST = 1, 100
"""Weights of preferences."""

DO_NOT_SCHEDULE, SCHEDULE_ANYWAY = "DoNotSchedule", "ScheduleAnyway"
HONOR, IGNORE = "Honor", "Ignore"


class PodAffinityTerm(Value, frozen=True):
    """Pods with these labels, in the namespaces that are named or selected, or else in the pod's own.

    `match_label_keys` are labels in which they must equal the pod, `mismatch_label_keys` those in which they must not.
    """

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Value, frozen=True):
    """A preference; `weight` is 1 to 100."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Value, frozen=True):
    """Places where such pods are: all that are required, as many as can be of those that are preferred."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class PodAntiAffinity(Value, frozen=True):
    """Places where no such pods are. What is required holds for pods that come later, too."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class TopologySpreadConstraint(Value, frozen=True):
    """No place may have more than `max_skew` pods with these labels more than the place that has fewest.

    `when_unsatisfiable` is DoNotSchedule or ScheduleAnyway. With fewer places than `min_domains` the fewest is 0.
    """

    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()


Spread = Annotated[tuple[TopologySpreadConstraint, ...], merge_keys("topologyKey", "whenUnsatisfiable")]

SET_OPERATORS, NUMBER_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist"), ("Gt", "Lt")
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
MEMORY_PRESSURE = "node.kubernetes.io/memory-pressure"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
NAME_FIELD = "metadata.name"
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class NodeSelectorRequirement(Value, frozen=True):
    """`values` has one number for Gt and Lt, none for Exists and DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Value, frozen=True):
    """Everything in it must hold; a term with nothing in it matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Value, frozen=True):
    """One of the terms must match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(Value, frozen=True):
    """A preference; `weight` is 1 to 100."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Value, frozen=True):
    """Nodes that the pod requires, and those that it prefers among them."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class Affinity(Value, frozen=True):
    """To nodes, to pods, and against pods."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


class Toleration(Value, frozen=True):
    """Lets a pod onto a node with a taint, or stay there.

    `operator` is Equal (the default), which compares `key` and `value`, or Exists, which compares only the `key`, or
    nothing if there is none. `effect` is NoSchedule, PreferNoSchedule or NoExecute, or empty for all of them.
    `toleration_seconds` is how long the pod stays where NoExecute would end it.
    """

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodOS(Value, frozen=True):
    """linux or windows."""

    name: str = ""


class SchedulingSpec(Protocol):
    """The part of a PodSpec that is about places."""

    @property
    def node_selector(self) -> Mapping[str, str]:
        """Labels that a node must have."""

    @property
    def affinity(self) -> Affinity | None:
        """Further demands."""

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """Taints that do not keep the pod away."""

    @property
    def os(self) -> PodOS | None:
        """For which system the pod is made."""


class TaintLike(Protocol):
    """A taint of a node."""

    @property
    def key(self) -> str:
        """What is the matter."""

    @property
    def value(self) -> str:
        """More of it."""

    @property
    def effect(self) -> str:
        """One of EFFECTS."""


# --- what fits --------------------------------------------------------------------------------------------------------


def matches_node(wish: SchedulingSpec, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a node of this name with these labels is one that the pod may be on."""
    if any(labels.get(key) != value for key, value in wish.node_selector.items()):
        return False
    required = _required(wish)
    if required is None:
        return True
    return any(_matches(term, name, labels) for term in required.node_selector_terms)


def preference_score(wish: SchedulingSpec, name: str, labels: Mapping[str, str]) -> int:
    """How much the pod would like such a node: the sum of the weights of what it prefers."""
    affinity = wish.affinity.node_affinity if wish.affinity is not None else None
    rows = affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else ()
    return sum(row.weight for row in rows if _matches(row.preference, name, labels))


def find_untolerated_taint(
    wish: SchedulingSpec, taints: Iterable[TaintLike], effects: Iterable[str]
) -> TaintLike | None:
    """The first taint with one of these effects that keeps the pod away."""
    feared = set(effects)
    for taint in taints:
        if taint.effect in feared and find_toleration(wish, taint) is None:
            return taint
    return None


def find_toleration(wish: SchedulingSpec, taint: TaintLike) -> Toleration | None:
    """The first toleration that is about this taint."""
    return next((row for row in wish.tolerations if _tolerates(row, taint)), None)


def _required(wish: SchedulingSpec) -> NodeSelector | None:
    affinity = wish.affinity.node_affinity if wish.affinity is not None else None
    return affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None


def _matches(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_holds(row, labels.get(row.key)) for row in term.match_expressions) and all(
        _holds(row, name) for row in term.match_fields
    )


def _holds(row: NodeSelectorRequirement, found: str | None) -> bool:
    if row.operator in {"In", "NotIn"}:
        return (found in row.values) == (row.operator == "In")
    if row.operator in {"Exists", "DoesNotExist"}:
        return (found is not None) == (row.operator == "Exists")
    number = _number(found or "")
    bound = _number(row.values[0]) if row.values else None
    if number is None or bound is None:
        return False
    return number > bound if row.operator == "Gt" else number < bound


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _tolerates(row: Toleration, taint: TaintLike) -> bool:
    if row.effect not in {"", taint.effect}:
        return False
    if row.operator == "Exists":
        return row.key in {"", taint.key}
    return (row.key, row.value) == (taint.key, taint.value)

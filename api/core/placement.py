"""Affinity, anti-affinity, topology spread and tolerations; which node matches a pod. Pure.

A topology domain is the set of nodes with the same value of a label, the topology key: kubernetes.io/hostname, a zone,
a rack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Protocol

from api.meta.selectors import LabelSelector
from api.meta.types import Value, merge_keys
from api.meta.values import Int32

MIN_WEIGHT, MAX_WEIGHT = 1, 100
"""Limits of the weight of a preference."""

DO_NOT_SCHEDULE, SCHEDULE_ANYWAY = "DoNotSchedule", "ScheduleAnyway"
HONOR, IGNORE = "Honor", "Ignore"


class PodAffinityTerm(Value, frozen=True):
    """A set of pods: those with matching labels, in the named or selected namespaces, otherwise in the pod's own.

    The pods must have the same values as this pod for the labels in `match_label_keys`, and other values for those in
    `mismatch_label_keys`. `topology_key` is the node label that defines a topology domain.
    """

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Value, frozen=True):
    """A preference with a `weight` from 1 to 100."""

    weight: Int32 = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Value, frozen=True):
    """Topology domains in which certain pods run. Required terms must match; preferred terms add to a node's score."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class PodAntiAffinity(Value, frozen=True):
    """Topology domains in which certain pods do not run. Required terms apply to pods that are scheduled later, too."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class TopologySpreadConstraint(Value, frozen=True):
    """A limit of the uneven distribution of pods: no domain has more than `max_skew` pods more than the domain with the
    fewest.

    `when_unsatisfiable` is DoNotSchedule or ScheduleAnyway. If there are fewer domains than `min_domains`, the fewest
    counts as 0.
    """

    max_skew: Int32 = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: Int32 | None = None
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
_INTEGER = re.compile(r"-?[0-9]{1,18}")


class NodeSelectorRequirement(Value, frozen=True):
    """A requirement on one label or field of a node.

    `operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt. `values` has one number for Gt and Lt, and none for Exists
    and DoesNotExist.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Value, frozen=True):
    """A conjunction of requirements. An empty term matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Value, frozen=True):
    """A disjunction of terms."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(Value, frozen=True):
    """A preference with a `weight` from 1 to 100."""

    weight: Int32 = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Value, frozen=True):
    """Nodes that the pod requires, and nodes that it prefers among them."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


_NO_NODE_AFFINITY = NodeAffinity()


class Affinity(Value, frozen=True):
    """Rules that attract a pod to nodes and to other pods, or keep it away from other pods."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


class Toleration(Value, frozen=True):
    """Permission for a pod to run on a node with a matching taint.

    `operator` is Equal (the default), which compares `key` and `value`, or Exists, which compares only `key`; without a
    key it matches every taint. `effect` is NoSchedule, PreferNoSchedule or NoExecute, or empty for all of them.
    `toleration_seconds` is the time until a NoExecute taint evicts the pod.
    """

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodOS(Value, frozen=True):
    """The operating system of the containers: linux or windows."""

    name: str = ""


class SchedulingSpec(Protocol):
    """The part of a PodSpec that restricts the choice of a node."""

    @property
    def node_selector(self) -> Mapping[str, str]:
        """Labels that a node must have."""

    @property
    def affinity(self) -> Affinity | None:
        """Affinity to nodes and pods."""

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """Tolerations of the pod."""

    @property
    def os(self) -> PodOS | None:
        """Operating system for which the pod is made."""


class TaintLike(Protocol):
    """A taint of a node."""

    @property
    def key(self) -> str:
        """Key of the taint."""

    @property
    def value(self) -> str:
        """Value of the taint."""

    @property
    def effect(self) -> str:
        """One of EFFECTS."""


# --- matching ---------------------------------------------------------------------------------------------------------


def matches_node(spec: SchedulingSpec, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether node selector and required node affinity of a pod match a node."""
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    affinity = _node_affinity(spec)
    required = affinity.required_during_scheduling_ignored_during_execution
    return required is None or matches_node_selector(required, name, labels)


def matches_node_selector(selector: NodeSelector, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a term of the selector matches a node. A selector without terms matches no node."""
    return any(_matches_term(term, name, labels) for term in selector.node_selector_terms)


def preference_score(spec: SchedulingSpec, name: str, labels: Mapping[str, str]) -> int:
    """Return the sum of the weights of the preferred node affinity terms that match a node."""
    preferences = _node_affinity(spec).preferred_during_scheduling_ignored_during_execution
    return sum(term.weight for term in preferences if _matches_term(term.preference, name, labels))


def find_untolerated_taint(
    spec: SchedulingSpec, taints: Iterable[TaintLike], effects: Iterable[str]
) -> TaintLike | None:
    """Return the first taint with one of the effects that the pod does not tolerate, None if there is none."""
    repelling_effects = set(effects)
    for taint in taints:
        if taint.effect in repelling_effects and find_toleration(spec, taint) is None:
            return taint
    return None


def find_toleration(spec: SchedulingSpec, taint: TaintLike) -> Toleration | None:
    """Return the first toleration that matches a taint, None if there is none."""
    return next((toleration for toleration in spec.tolerations if _tolerates(toleration, taint)), None)


def _node_affinity(spec: SchedulingSpec) -> NodeAffinity:
    if spec.affinity is None or spec.affinity.node_affinity is None:
        return _NO_NODE_AFFINITY
    return spec.affinity.node_affinity


def _matches_term(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_fulfils(requirement, labels.get(requirement.key)) for requirement in term.match_expressions) and all(
        _fulfils(requirement, name) for requirement in term.match_fields
    )


def _fulfils(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    operator = requirement.operator
    if operator in {"In", "NotIn"}:
        return (value in requirement.values) == (operator == "In")
    if operator in {"Exists", "DoesNotExist"}:
        return (value is not None) == (operator == "Exists")
    number = parse_integer(value or "")
    bound = parse_integer(requirement.values[0]) if requirement.values else None
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else number < bound


def parse_integer(text: str) -> int | None:
    """Return the integer of a value for Gt and Lt, None if it is not one."""
    return int(text) if _INTEGER.fullmatch(text) else None


def _tolerates(toleration: Toleration, taint: TaintLike) -> bool:
    if toleration.effect not in {"", taint.effect}:
        return False
    if toleration.operator == "Exists":
        return toleration.key in {"", taint.key}
    return (toleration.key, toleration.value) == (taint.key, taint.value)

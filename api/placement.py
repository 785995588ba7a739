"""On which nodes a pod may be: nodeSelector, node affinity, tolerations and operating system. Pure.

The master's scheduler and the node's own admission read it alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from api import names
from api.pod_affinity import PodAffinity, PodAntiAffinity, check_affinity, check_weight
from api.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, Problem, shown
from api.value import Value

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


class Wish(Protocol):
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


class Mark(Protocol):
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


def suits(wish: Wish, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a node of this name with these labels is one that the pod may be on."""
    if any(labels.get(key) != value for key, value in wish.node_selector.items()):
        return False
    required = _required(wish)
    if required is None:
        return True
    return any(_matches(term, name, labels) for term in required.node_selector_terms)


def preference(wish: Wish, name: str, labels: Mapping[str, str]) -> int:
    """How much the pod would like such a node: the sum of the weights of what it prefers."""
    affinity = wish.affinity.node_affinity if wish.affinity is not None else None
    rows = affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else ()
    return sum(row.weight for row in rows if _matches(row.preference, name, labels))


def untolerated(wish: Wish, taints: Iterable[Mark], effects: Iterable[str]) -> Mark | None:
    """The first taint with one of these effects that keeps the pod away."""
    feared = set(effects)
    for taint in taints:
        if taint.effect in feared and tolerating(wish, taint) is None:
            return taint
    return None


def tolerating(wish: Wish, taint: Mark) -> Toleration | None:
    """The first toleration that is about this taint."""
    return next((row for row in wish.tolerations if _tolerates(row, taint)), None)


def _required(wish: Wish) -> NodeSelector | None:
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


def _tolerates(row: Toleration, taint: Mark) -> bool:
    if row.effect not in {"", taint.effect}:
        return False
    if row.operator == "Exists":
        return row.key in {"", taint.key}
    return (row.key, row.value) == (taint.key, taint.value)


# --- what is wrong ----------------------------------------------------------------------------------------------------


def check(wish: Wish) -> Iterator[Problem]:
    """Every problem, by path."""
    if wish.os is not None and wish.os.name not in {"linux", "windows"}:
        yield Problem("spec.os.name", shown(wish.os.name), "linux and windows are accepted", NOT_SUPPORTED)
    for number, row in enumerate(wish.tolerations):
        yield from check_toleration(f"spec.tolerations[{number}]", row)
    if wish.affinity is not None:
        yield from _check_preferences(wish.affinity.node_affinity)
        yield from check_affinity("spec.affinity.podAffinity", wish.affinity.pod_affinity)
        yield from check_affinity("spec.affinity.podAntiAffinity", wish.affinity.pod_anti_affinity)
    required = _required(wish)
    if required is None:
        return
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    if not required.node_selector_terms:
        yield Problem(path, "[]", "at least one term is required", MISSING)
    for number, term in enumerate(required.node_selector_terms):
        yield from _check_term(f"{path}[{number}]", term)


def _check_preferences(affinity: NodeAffinity | None) -> Iterator[Problem]:
    for number, row in enumerate(affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()):
        path = f"spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[{number}]"
        yield from check_weight(path, row.weight)
        yield from _check_term(f"{path}.preference", row.preference)


def _check_term(path: str, term: NodeSelectorTerm) -> Iterator[Problem]:
    for index, expression in enumerate(term.match_expressions):
        yield from _check_expression(f"{path}.matchExpressions[{index}]", expression)
    for index, expression in enumerate(term.match_fields):
        yield from _check_field(f"{path}.matchFields[{index}]", expression)


def check_toleration(path: str, row: Toleration) -> Iterator[Problem]:
    """Every problem of one toleration."""
    if row.operator not in {"", "Equal", "Exists"}:
        yield Problem(f"{path}.operator", shown(row.operator), "Equal and Exists are accepted", NOT_SUPPORTED)
    if row.effect not in {"", *EFFECTS}:
        yield Problem(f"{path}.effect", shown(row.effect), f"{', '.join(EFFECTS)} are accepted", NOT_SUPPORTED)
    if not row.key and row.operator != "Exists":
        yield Problem(f"{path}.operator", shown(row.operator), "Exists is required where there is no key")
    if row.operator == "Exists" and row.value:
        yield Problem(f"{path}.value", shown(row.value), "no value is accepted with Exists")
    if row.toleration_seconds is not None and row.effect != "NoExecute":
        yield Problem(f"{path}.effect", shown(row.effect), "NoExecute is required with tolerationSeconds")


def _check_expression(path: str, row: NodeSelectorRequirement) -> Iterator[Problem]:
    if names.label_key(row.key):
        yield Problem(f"{path}.key", shown(row.key), names.label_key(row.key))
    if row.operator in {"In", "NotIn"} and not row.values:
        yield Problem(f"{path}.values", "[]", f"at least one value is required with {row.operator}", MISSING)
    elif row.operator in {"Exists", "DoesNotExist"} and row.values:
        yield Problem(f"{path}.values", shown(list(row.values)), f"none is accepted with {row.operator}", FORBIDDEN)
    elif row.operator in NUMBER_OPERATORS and [_number(text) is None for text in row.values] != [False]:
        yield Problem(f"{path}.values", shown(list(row.values)), f"one whole number is accepted with {row.operator}")
    elif row.operator not in SET_OPERATORS + NUMBER_OPERATORS:
        accepted = ", ".join(SET_OPERATORS + NUMBER_OPERATORS)
        yield Problem(f"{path}.operator", shown(row.operator), f"{accepted} are accepted", NOT_SUPPORTED)


def _check_field(path: str, row: NodeSelectorRequirement) -> Iterator[Problem]:
    if row.key != NAME_FIELD:
        yield Problem(f"{path}.key", shown(row.key), f"{NAME_FIELD} is accepted", NOT_SUPPORTED)
    if row.operator not in {"In", "NotIn"}:
        yield Problem(f"{path}.operator", shown(row.operator), "In and NotIn are accepted", NOT_SUPPORTED)
    elif len(row.values) != 1:
        yield Problem(f"{path}.values", shown(list(row.values)), "exactly one node is required", MISSING)

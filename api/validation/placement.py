"""Checks of affinity, tolerations and topology spread constraints. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from api.core.placement import (
    DO_NOT_SCHEDULE,
    EFFECTS,
    HONOR,
    IGNORE,
    MAX_WEIGHT,
    MIN_WEIGHT,
    NAME_FIELD,
    NUMBER_OPERATORS,
    SCHEDULE_ANYWAY,
    SET_OPERATORS,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PodAntiAffinity,
    SchedulingSpec,
    Toleration,
    TopologySpreadConstraint,
    parse_integer,
)
from api.meta.names import dns_label_error, label_key_error
from api.meta.schema import DUPLICATE, FORBIDDEN, MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.selectors import LabelSelector, check_selector

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def check_placement(spec: SchedulingSpec) -> Iterator[FieldError]:
    """Yield the errors of a pod's operating system, tolerations and affinity."""
    if spec.os is not None and spec.os.name not in {"linux", "windows"}:
        yield FieldError("spec.os.name", quoted(spec.os.name), "linux and windows are accepted", NOT_SUPPORTED)
    for index, toleration in enumerate(spec.tolerations):
        yield from check_toleration(f"spec.tolerations[{index}]", toleration)
    if spec.affinity is None:
        return
    node_affinity = spec.affinity.node_affinity or NodeAffinity()
    yield from _check_preferred_nodes(node_affinity)
    yield from _check_pod_affinity("spec.affinity.podAffinity", spec.affinity.pod_affinity)
    yield from _check_pod_affinity("spec.affinity.podAntiAffinity", spec.affinity.pod_anti_affinity)
    yield from _check_required_nodes(node_affinity)


# --- tolerations ------------------------------------------------------------------------------------------------------


def check_toleration(path: str, toleration: Toleration) -> Iterator[FieldError]:
    """Yield the errors of a toleration."""
    if toleration.operator not in {"", "Equal", "Exists"}:
        accepted = "Equal and Exists are accepted"
        yield FieldError(f"{path}.operator", quoted(toleration.operator), accepted, NOT_SUPPORTED)
    if toleration.effect not in {"", *EFFECTS}:
        accepted = f"{', '.join(EFFECTS)} are accepted"
        yield FieldError(f"{path}.effect", quoted(toleration.effect), accepted, NOT_SUPPORTED)
    if not toleration.key and toleration.operator != "Exists":
        yield FieldError(f"{path}.operator", quoted(toleration.operator), "Exists is required where there is no key")
    if toleration.operator == "Exists" and toleration.value:
        yield FieldError(f"{path}.value", quoted(toleration.value), "no value is accepted with Exists")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        yield FieldError(f"{path}.effect", quoted(toleration.effect), "NoExecute is required with tolerationSeconds")


# --- node affinity ----------------------------------------------------------------------------------------------------


def _check_required_nodes(affinity: NodeAffinity) -> Iterator[FieldError]:
    selector = affinity.required_during_scheduling_ignored_during_execution
    if selector is None:
        return
    yield from check_node_selector(f"spec.affinity.nodeAffinity.{REQUIRED}", selector)


def check_node_selector(path: str, selector: NodeSelector) -> Iterator[FieldError]:
    """Yield the errors of a node selector."""
    if not selector.node_selector_terms:
        yield FieldError(f"{path}.nodeSelectorTerms", "[]", "at least one term is required", MISSING)
    for index, term in enumerate(selector.node_selector_terms):
        yield from _check_node_term(f"{path}.nodeSelectorTerms[{index}]", term)


def _check_preferred_nodes(affinity: NodeAffinity) -> Iterator[FieldError]:
    for index, preferred in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        path = f"spec.affinity.nodeAffinity.{PREFERRED}[{index}]"
        yield from _check_weight(path, preferred.weight)
        yield from _check_node_term(f"{path}.preference", preferred.preference)


def _check_node_term(path: str, term: NodeSelectorTerm) -> Iterator[FieldError]:
    for index, requirement in enumerate(term.match_expressions):
        yield from _check_expression(f"{path}.matchExpressions[{index}]", requirement)
    for index, requirement in enumerate(term.match_fields):
        yield from _check_field(f"{path}.matchFields[{index}]", requirement)


def _check_expression(path: str, requirement: NodeSelectorRequirement) -> Iterator[FieldError]:
    operator = requirement.operator
    values = requirement.values
    if error := label_key_error(requirement.key):
        yield FieldError(f"{path}.key", quoted(requirement.key), error)
    if operator in {"In", "NotIn"} and not values:
        yield FieldError(f"{path}.values", "[]", f"at least one value is required with {operator}", MISSING)
    elif operator in {"Exists", "DoesNotExist"} and values:
        yield FieldError(f"{path}.values", quoted(list(values)), f"none is accepted with {operator}", FORBIDDEN)
    elif operator in NUMBER_OPERATORS and (len(values) != 1 or parse_integer(values[0]) is None):
        yield FieldError(f"{path}.values", quoted(list(values)), f"one whole number is accepted with {operator}")
    elif operator not in SET_OPERATORS + NUMBER_OPERATORS:
        accepted = f"{', '.join(SET_OPERATORS + NUMBER_OPERATORS)} are accepted"
        yield FieldError(f"{path}.operator", quoted(operator), accepted, NOT_SUPPORTED)


def _check_field(path: str, requirement: NodeSelectorRequirement) -> Iterator[FieldError]:
    if requirement.key != NAME_FIELD:
        yield FieldError(f"{path}.key", quoted(requirement.key), f"{NAME_FIELD} is accepted", NOT_SUPPORTED)
    if requirement.operator not in {"In", "NotIn"}:
        accepted = "In and NotIn are accepted"
        yield FieldError(f"{path}.operator", quoted(requirement.operator), accepted, NOT_SUPPORTED)
    elif len(requirement.values) != 1:
        bad_value = quoted(list(requirement.values))
        yield FieldError(f"{path}.values", bad_value, "exactly one node is required", MISSING)


# --- pod affinity -----------------------------------------------------------------------------------------------------


def _check_pod_affinity(path: str, affinity: PodAffinity | PodAntiAffinity | None) -> Iterator[FieldError]:
    if affinity is None:
        return
    for index, term in enumerate(affinity.required_during_scheduling_ignored_during_execution):
        yield from _check_pod_term(f"{path}.{REQUIRED}[{index}]", term)
    for index, preferred in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        preferred_path = f"{path}.{PREFERRED}[{index}]"
        yield from _check_weight(preferred_path, preferred.weight)
        yield from _check_pod_term(f"{preferred_path}.podAffinityTerm", preferred.pod_affinity_term)


def _check_weight(path: str, weight: int) -> Iterator[FieldError]:
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        yield FieldError(f"{path}.weight", quoted(weight), f"must be in the range {MIN_WEIGHT}-{MAX_WEIGHT}")


def _check_pod_term(path: str, term: PodAffinityTerm) -> Iterator[FieldError]:
    yield from _check_topology_key(path, term.topology_key)
    if term.label_selector is not None:
        yield from check_selector(f"{path}.labelSelector", term.label_selector)
    if term.namespace_selector is not None:
        yield from check_selector(f"{path}.namespaceSelector", term.namespace_selector)
    for index, namespace in enumerate(term.namespaces):
        if error := dns_label_error(namespace):
            yield FieldError(f"{path}.namespaces[{index}]", quoted(namespace), error)
    yield from _check_label_keys(f"{path}.matchLabelKeys", term.match_label_keys, term.label_selector)
    yield from _check_label_keys(f"{path}.mismatchLabelKeys", term.mismatch_label_keys, term.label_selector)


def _check_topology_key(path: str, key: str) -> Iterator[FieldError]:
    if not key:
        yield FieldError(f"{path}.topologyKey", '""', "can not be empty", MISSING)
    elif error := label_key_error(key):
        yield FieldError(f"{path}.topologyKey", quoted(key), error)


def _check_label_keys(path: str, keys: tuple[str, ...], selector: LabelSelector | None) -> Iterator[FieldError]:
    if keys and selector is None:
        yield FieldError(path, quoted(keys), "must not be specified when labelSelector is not set", FORBIDDEN)
    for index, key in enumerate(keys):
        if error := label_key_error(key):
            yield FieldError(f"{path}[{index}]", quoted(key), error)


# --- topology spread constraints --------------------------------------------------------------------------------------


def check_spread_constraints(path: str, constraints: tuple[TopologySpreadConstraint, ...]) -> Iterator[FieldError]:
    """Yield the errors of topology spread constraints."""
    seen: set[tuple[str, str]] = set()
    for index, constraint in enumerate(constraints):
        constraint_path = f"{path}[{index}]"
        yield from _check_topology_key(constraint_path, constraint.topology_key)
        yield from _check_spread_numbers(constraint_path, constraint)
        for name, value, accepted in (
            ("whenUnsatisfiable", constraint.when_unsatisfiable, (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY)),
            ("nodeAffinityPolicy", constraint.node_affinity_policy, (HONOR, IGNORE)),
            ("nodeTaintsPolicy", constraint.node_taints_policy, (HONOR, IGNORE)),
        ):
            if value is not None and value not in accepted:
                supported = f"supported values: {', '.join(accepted)}"
                yield FieldError(f"{constraint_path}.{name}", quoted(value), supported, NOT_SUPPORTED)
        if constraint.label_selector is not None:
            yield from check_selector(f"{constraint_path}.labelSelector", constraint.label_selector)
        yield from _check_label_keys(
            f"{constraint_path}.matchLabelKeys", constraint.match_label_keys, constraint.label_selector
        )
        identity = (constraint.topology_key, constraint.when_unsatisfiable)
        if identity in seen:
            identity_path = f"{constraint_path}.{{topologyKey, whenUnsatisfiable}}"
            yield FieldError(identity_path, quoted(identity), "given twice", DUPLICATE)
        seen.add(identity)


def _check_spread_numbers(path: str, constraint: TopologySpreadConstraint) -> Iterator[FieldError]:
    if constraint.max_skew < 1:
        yield FieldError(f"{path}.maxSkew", quoted(constraint.max_skew), "must be greater than 0")
    if constraint.min_domains is not None and constraint.min_domains < 1:
        yield FieldError(f"{path}.minDomains", quoted(constraint.min_domains), "must be greater than 0")
    elif constraint.min_domains is not None and constraint.when_unsatisfiable != DO_NOT_SCHEDULE:
        reason = f"can only use minDomains if whenUnsatisfiable={DO_NOT_SCHEDULE}"
        yield FieldError(f"{path}.minDomains", quoted(constraint.min_domains), reason)

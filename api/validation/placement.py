"""Checks of affinity, tolerations and topology spread constraints. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from api.core.placement import (
    DO_NOT_SCHEDULE,
    EFFECTS,
    HEAVIEST,
    HONOR,
    IGNORE,
    LIGHTEST,
    NAME_FIELD,
    NUMBER_OPERATORS,
    SCHEDULE_ANYWAY,
    SET_OPERATORS,
    NodeAffinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PodAntiAffinity,
    SchedulingSpec,
    Toleration,
    TopologySpreadConstraint,
    _number,
    _required,
)
from api.meta import names
from api.meta.schema import DUPLICATE, FORBIDDEN, MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.selectors import LabelSelector, check_selector

# --- what is wrong ----------------------------------------------------------------------------------------------------


def check_affinity(path: str, wish: PodAffinity | PodAntiAffinity | None) -> Iterator[FieldError]:
    """Every problem, by path."""
    if wish is None:
        return
    for number, term in enumerate(wish.required_during_scheduling_ignored_during_execution):
        yield from _check_term(f"{path}.requiredDuringSchedulingIgnoredDuringExecution[{number}]", term)
    for number, row in enumerate(wish.preferred_during_scheduling_ignored_during_execution):
        place = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{number}]"
        yield from check_weight(place, row.weight)
        yield from _check_term(f"{place}.podAffinityTerm", row.pod_affinity_term)


def check_weight(path: str, weight: int) -> Iterator[FieldError]:
    """The weight of a preference."""
    if not LIGHTEST <= weight <= HEAVIEST:
        yield FieldError(f"{path}.weight", quoted(weight), f"must be in the range {LIGHTEST}-{HEAVIEST}")


def _check_term(path: str, term: PodAffinityTerm) -> Iterator[FieldError]:
    yield from _check_key(path, term.topology_key)
    for name, wish in (("labelSelector", term.label_selector), ("namespaceSelector", term.namespace_selector)):
        if wish is not None:
            yield from check_selector(f"{path}.{name}", wish)
    for number, name in enumerate(term.namespaces):
        if names.dns_label_error(name):
            yield FieldError(f"{path}.namespaces[{number}]", quoted(name), names.dns_label_error(name))
    yield from _check_keys(f"{path}.matchLabelKeys", term.match_label_keys, term.label_selector)
    yield from _check_keys(f"{path}.mismatchLabelKeys", term.mismatch_label_keys, term.label_selector)


def _check_key(path: str, key: str) -> Iterator[FieldError]:
    if not key:
        yield FieldError(f"{path}.topologyKey", '""', "can not be empty", MISSING)
    elif names.label_key_error(key):
        yield FieldError(f"{path}.topologyKey", quoted(key), names.label_key_error(key))


def _check_keys(path: str, keys: tuple[str, ...], wish: LabelSelector | None) -> Iterator[FieldError]:
    if keys and wish is None:
        yield FieldError(path, quoted(keys), "must not be specified when labelSelector is not set", FORBIDDEN)
    for number, key in enumerate(keys):
        if names.label_key_error(key):
            yield FieldError(f"{path}[{number}]", quoted(key), names.label_key_error(key))


def check_spread(path: str, constraints: tuple[TopologySpreadConstraint, ...]) -> Iterator[FieldError]:
    """Every problem, by path."""
    seen: set[tuple[str, str]] = set()
    for number, row in enumerate(constraints):
        place = f"{path}[{number}]"
        yield from _check_key(place, row.topology_key)
        yield from _check_numbers(place, row)
        for name, value, accepted in (
            ("whenUnsatisfiable", row.when_unsatisfiable, (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY)),
            ("nodeAffinityPolicy", row.node_affinity_policy, (HONOR, IGNORE)),
            ("nodeTaintsPolicy", row.node_taints_policy, (HONOR, IGNORE)),
        ):
            if value is not None and value not in accepted:
                words = f"supported values: {', '.join(accepted)}"
                yield FieldError(f"{place}.{name}", quoted(value), words, NOT_SUPPORTED)
        if row.label_selector is not None:
            yield from check_selector(f"{place}.labelSelector", row.label_selector)
        yield from _check_keys(f"{place}.matchLabelKeys", row.match_label_keys, row.label_selector)
        identity = (row.topology_key, row.when_unsatisfiable)
        if identity in seen:
            yield FieldError(f"{place}.{{topologyKey, whenUnsatisfiable}}", quoted(identity), "given twice", DUPLICATE)
        seen.add(identity)


def _check_numbers(path: str, row: TopologySpreadConstraint) -> Iterator[FieldError]:
    if row.max_skew < 1:
        yield FieldError(f"{path}.maxSkew", quoted(row.max_skew), "must be greater than 0")
    if row.min_domains is not None and row.min_domains < 1:
        yield FieldError(f"{path}.minDomains", quoted(row.min_domains), "must be greater than 0")
    elif row.min_domains is not None and row.when_unsatisfiable != DO_NOT_SCHEDULE:
        why = f"can only use minDomains if whenUnsatisfiable={DO_NOT_SCHEDULE}"
        yield FieldError(f"{path}.minDomains", quoted(row.min_domains), why)


# --- what is wrong ----------------------------------------------------------------------------------------------------


def check_placement(wish: SchedulingSpec) -> Iterator[FieldError]:
    """Every problem, by path."""
    if wish.os is not None and wish.os.name not in {"linux", "windows"}:
        yield FieldError("spec.os.name", quoted(wish.os.name), "linux and windows are accepted", NOT_SUPPORTED)
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
        yield FieldError(path, "[]", "at least one term is required", MISSING)
    for number, term in enumerate(required.node_selector_terms):
        yield from _check_node_term(f"{path}[{number}]", term)


def _check_preferences(affinity: NodeAffinity | None) -> Iterator[FieldError]:
    for number, row in enumerate(affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()):
        path = f"spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[{number}]"
        yield from check_weight(path, row.weight)
        yield from _check_node_term(f"{path}.preference", row.preference)


def _check_node_term(path: str, term: NodeSelectorTerm) -> Iterator[FieldError]:
    for index, expression in enumerate(term.match_expressions):
        yield from _check_expression(f"{path}.matchExpressions[{index}]", expression)
    for index, expression in enumerate(term.match_fields):
        yield from _check_field(f"{path}.matchFields[{index}]", expression)


def check_toleration(path: str, row: Toleration) -> Iterator[FieldError]:
    """Every problem of one toleration."""
    if row.operator not in {"", "Equal", "Exists"}:
        yield FieldError(f"{path}.operator", quoted(row.operator), "Equal and Exists are accepted", NOT_SUPPORTED)
    if row.effect not in {"", *EFFECTS}:
        yield FieldError(f"{path}.effect", quoted(row.effect), f"{', '.join(EFFECTS)} are accepted", NOT_SUPPORTED)
    if not row.key and row.operator != "Exists":
        yield FieldError(f"{path}.operator", quoted(row.operator), "Exists is required where there is no key")
    if row.operator == "Exists" and row.value:
        yield FieldError(f"{path}.value", quoted(row.value), "no value is accepted with Exists")
    if row.toleration_seconds is not None and row.effect != "NoExecute":
        yield FieldError(f"{path}.effect", quoted(row.effect), "NoExecute is required with tolerationSeconds")


def _check_expression(path: str, row: NodeSelectorRequirement) -> Iterator[FieldError]:
    if names.label_key_error(row.key):
        yield FieldError(f"{path}.key", quoted(row.key), names.label_key_error(row.key))
    if row.operator in {"In", "NotIn"} and not row.values:
        yield FieldError(f"{path}.values", "[]", f"at least one value is required with {row.operator}", MISSING)
    elif row.operator in {"Exists", "DoesNotExist"} and row.values:
        yield FieldError(f"{path}.values", quoted(list(row.values)), f"none is accepted with {row.operator}", FORBIDDEN)
    elif row.operator in NUMBER_OPERATORS and [_number(text) is None for text in row.values] != [False]:
        yield FieldError(
            f"{path}.values", quoted(list(row.values)), f"one whole number is accepted with {row.operator}"
        )
    elif row.operator not in SET_OPERATORS + NUMBER_OPERATORS:
        accepted = ", ".join(SET_OPERATORS + NUMBER_OPERATORS)
        yield FieldError(f"{path}.operator", quoted(row.operator), f"{accepted} are accepted", NOT_SUPPORTED)


def _check_field(path: str, row: NodeSelectorRequirement) -> Iterator[FieldError]:
    if row.key != NAME_FIELD:
        yield FieldError(f"{path}.key", quoted(row.key), f"{NAME_FIELD} is accepted", NOT_SUPPORTED)
    if row.operator not in {"In", "NotIn"}:
        yield FieldError(f"{path}.operator", quoted(row.operator), "In and NotIn are accepted", NOT_SUPPORTED)
    elif len(row.values) != 1:
        yield FieldError(f"{path}.values", quoted(list(row.values)), "exactly one node is required", MISSING)

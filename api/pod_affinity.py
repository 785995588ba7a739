"""Near which other pods a pod wishes to be, far from which, and how evenly its like is to be spread. Pure.

Places are told apart by the value of a node's label, the topology key: kubernetes.io/hostname, a zone, a rack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from api import names
from api.label_selector import LabelSelector, check_selector
from api.schema import DUPLICATE, FORBIDDEN, MISSING, NOT_SUPPORTED, Problem, shown
from api.value import Value, by

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


Spread = Annotated[tuple[TopologySpreadConstraint, ...], by("topologyKey", "whenUnsatisfiable")]


# --- what is wrong ----------------------------------------------------------------------------------------------------


def check_affinity(path: str, wish: PodAffinity | PodAntiAffinity | None) -> Iterator[Problem]:
    """Every problem, by path."""
    if wish is None:
        return
    for number, term in enumerate(wish.required_during_scheduling_ignored_during_execution):
        yield from _check_term(f"{path}.requiredDuringSchedulingIgnoredDuringExecution[{number}]", term)
    for number, row in enumerate(wish.preferred_during_scheduling_ignored_during_execution):
        place = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{number}]"
        yield from check_weight(place, row.weight)
        yield from _check_term(f"{place}.podAffinityTerm", row.pod_affinity_term)


def check_weight(path: str, weight: int) -> Iterator[Problem]:
    """The weight of a preference."""
    if not LIGHTEST <= weight <= HEAVIEST:
        yield Problem(f"{path}.weight", shown(weight), f"must be in the range {LIGHTEST}-{HEAVIEST}")


def _check_term(path: str, term: PodAffinityTerm) -> Iterator[Problem]:
    yield from _check_key(path, term.topology_key)
    for name, wish in (("labelSelector", term.label_selector), ("namespaceSelector", term.namespace_selector)):
        if wish is not None:
            yield from check_selector(f"{path}.{name}", wish)
    for number, name in enumerate(term.namespaces):
        if names.dns_label(name):
            yield Problem(f"{path}.namespaces[{number}]", shown(name), names.dns_label(name))
    yield from _check_keys(f"{path}.matchLabelKeys", term.match_label_keys, term.label_selector)
    yield from _check_keys(f"{path}.mismatchLabelKeys", term.mismatch_label_keys, term.label_selector)


def _check_key(path: str, key: str) -> Iterator[Problem]:
    if not key:
        yield Problem(f"{path}.topologyKey", '""', "can not be empty", MISSING)
    elif names.label_key(key):
        yield Problem(f"{path}.topologyKey", shown(key), names.label_key(key))


def _check_keys(path: str, keys: tuple[str, ...], wish: LabelSelector | None) -> Iterator[Problem]:
    if keys and wish is None:
        yield Problem(path, shown(keys), "must not be specified when labelSelector is not set", FORBIDDEN)
    for number, key in enumerate(keys):
        if names.label_key(key):
            yield Problem(f"{path}[{number}]", shown(key), names.label_key(key))


def check_spread(path: str, constraints: tuple[TopologySpreadConstraint, ...]) -> Iterator[Problem]:
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
                yield Problem(f"{place}.{name}", shown(value), words, NOT_SUPPORTED)
        if row.label_selector is not None:
            yield from check_selector(f"{place}.labelSelector", row.label_selector)
        yield from _check_keys(f"{place}.matchLabelKeys", row.match_label_keys, row.label_selector)
        identity = (row.topology_key, row.when_unsatisfiable)
        if identity in seen:
            yield Problem(f"{place}.{{topologyKey, whenUnsatisfiable}}", shown(identity), "given twice", DUPLICATE)
        seen.add(identity)


def _check_numbers(path: str, row: TopologySpreadConstraint) -> Iterator[Problem]:
    if row.max_skew < 1:
        yield Problem(f"{path}.maxSkew", shown(row.max_skew), "must be greater than 0")
    if row.min_domains is not None and row.min_domains < 1:
        yield Problem(f"{path}.minDomains", shown(row.min_domains), "must be greater than 0")
    elif row.min_domains is not None and row.when_unsatisfiable != DO_NOT_SCHEDULE:
        why = f"can only use minDomains if whenUnsatisfiable={DO_NOT_SCHEDULE}"
        yield Problem(f"{path}.minDomains", shown(row.min_domains), why)

"""Cluster roles: restores the bootstrap policy and updates aggregated roles. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec.structs import replace

from api.meta.selectors import selector
from master.auth.bootstrap_policy import AUTO_UPDATE, BINDINGS, ROLES
from master.auth.rbac import rules_not_covered
from master.controllers.actions import Create, ForceDelete, Update
from master.resources.metadata import with_metadata
from master.resources.rbac import AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule, Subject

T = TypeVar("T", ClusterRole, ClusterRoleBinding)


def reconcile(
    roles: Iterable[ClusterRole], bindings: Iterable[ClusterRoleBinding]
) -> Iterator[Create | Update | ForceDelete]:
    """What is not as it should be; a second pass over its outcome finds nothing."""
    before = {role.metadata.name: role for role in roles}
    yield from _differences(before, aggregated_rules({**before, **_repaired(before)}))
    yield from _bindings({binding.metadata.name: binding for binding in bindings})


def _differences(before: Mapping[str, ClusterRole], after: Mapping[str, ClusterRole]) -> Iterator[Create | Update]:
    for name, role in after.items():
        old = before.get(name)
        if old is None:
            yield Create(role)
        elif role != old:
            yield Update(role, old)


# --- from the start ---------------------------------------------------------------------------------------------------


def _repaired(before: Mapping[str, ClusterRole]) -> dict[str, ClusterRole]:
    found = {}
    for wanted in ROLES:
        name = wanted.metadata.name
        old = before.get(name)
        if old is None:
            found[name] = wanted
        elif _is_bootstrap(old):
            found[name] = _with_rules(_with_bootstrap_marks(old, wanted), wanted)
    return found


def _is_bootstrap(item: ClusterRole | ClusterRoleBinding) -> bool:
    return item.metadata.annotations.get(AUTO_UPDATE) != "false"


def _with_bootstrap_marks(old: T, wanted: T) -> T:
    have, meta = old.metadata, wanted.metadata
    return with_metadata(
        old, labels={**have.labels, **meta.labels}, annotations={**have.annotations, **meta.annotations}
    )


def _with_rules(old: ClusterRole, wanted: ClusterRole) -> ClusterRole:
    missing = () if set(wanted.rules) <= set(old.rules) else rules_not_covered(old.rules, wanted.rules)
    have, want = old.aggregation_rule, wanted.aggregation_rule
    if want is not None:
        selectors = () if have is None else have.cluster_role_selectors
        more = tuple(one for one in want.cluster_role_selectors if one not in selectors)
        have = AggregationRule(cluster_role_selectors=(*selectors, *more)) if more else have
    return replace(old, rules=(*old.rules, *missing), aggregation_rule=have)


def _bindings(before: Mapping[str, ClusterRoleBinding]) -> Iterator[Create | Update | ForceDelete]:
    for wanted in BINDINGS:
        old = before.get(wanted.metadata.name)
        if old is None:
            yield Create(wanted)
        elif not _is_bootstrap(old):
            continue
        elif old.role_ref != wanted.role_ref:
            # The role of a binding is not changed: it goes, and another takes its place.
            yield ForceDelete(old)
            yield Create(replace(wanted, subjects=_subjects(old, wanted)))
        elif (new := replace(_with_bootstrap_marks(old, wanted), subjects=_subjects(old, wanted))) != old:
            yield Update(new, old)


def _subjects(old: ClusterRoleBinding, wanted: ClusterRoleBinding) -> tuple[Subject, ...]:
    return (*old.subjects, *(one for one in wanted.subjects if one not in old.subjects))


# --- roles made of others ---------------------------------------------------------------------------------------------


def aggregated_rules(roles: Mapping[str, ClusterRole]) -> dict[str, ClusterRole]:
    """The roles, each that is made of others with the rules that those have now."""
    found = dict(roles)
    made = [role for role in found.values() if role.aggregation_rule is not None]
    for _ in range(len(made)):  # A part may itself be made of others: at most so many times.
        before = dict(found)
        for role in made:
            name = role.metadata.name
            found[name] = replace(found[name], rules=_selected_roles(role, found))
        if found == before:
            break
    return found


def _selected_roles(role: ClusterRole, roles: Mapping[str, ClusterRole]) -> tuple[PolicyRule, ...]:
    assert role.aggregation_rule is not None
    rules: dict[PolicyRule, None] = {}
    for wish in map(selector, role.aggregation_rule.cluster_role_selectors):
        for name in sorted(roles):
            if name != role.metadata.name and wish.matches(roles[name].metadata.labels):
                rules |= dict.fromkeys(roles[name].rules)
    return tuple(rules)

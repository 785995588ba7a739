"""Roles that are kept as they should be: those of every cluster, and those made of others. Pure.

As in Kubernetes, what is missing in a role or a binding of every cluster comes back, and what was added stays; with the
annotation `rbac.authorization.kubernetes.io/autoupdate: "false"` it is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec.structs import replace

from api.meta.selectors import selector
from master.access.bootstrap_roles import AUTO_UPDATE, BINDINGS, ROLES
from master.access.rbac import uncovered
from master.kinds.kind import with_metadata
from master.kinds.rbac import AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule, Subject
from master.writing.outcomes import Change, Drop, Make

T = TypeVar("T", ClusterRole, ClusterRoleBinding)


def passes(roles: Iterable[ClusterRole], bindings: Iterable[ClusterRoleBinding]) -> Iterator[Make | Change | Drop]:
    """What is not as it should be; a second pass over its outcome finds nothing."""
    before = {role.metadata.name: role for role in roles}
    yield from _differences(before, gathered({**before, **_mended(before)}))
    yield from _bindings({binding.metadata.name: binding for binding in bindings})


def _differences(before: Mapping[str, ClusterRole], after: Mapping[str, ClusterRole]) -> Iterator[Make | Change]:
    for name, role in after.items():
        old = before.get(name)
        if old is None:
            yield Make(role)
        elif role != old:
            yield Change(role, old)


# --- from the start ---------------------------------------------------------------------------------------------------


def _mended(before: Mapping[str, ClusterRole]) -> dict[str, ClusterRole]:
    found = {}
    for wanted in ROLES:
        name = wanted.metadata.name
        old = before.get(name)
        if old is None:
            found[name] = wanted
        elif _is_ours(old):
            found[name] = _with_rules(_marked(old, wanted), wanted)
    return found


def _is_ours(item: ClusterRole | ClusterRoleBinding) -> bool:
    return item.metadata.annotations.get(AUTO_UPDATE) != "false"


def _marked(old: T, wanted: T) -> T:
    have, meta = old.metadata, wanted.metadata
    return with_metadata(
        old, labels={**have.labels, **meta.labels}, annotations={**have.annotations, **meta.annotations}
    )


def _with_rules(old: ClusterRole, wanted: ClusterRole) -> ClusterRole:
    missing = () if set(wanted.rules) <= set(old.rules) else uncovered(old.rules, wanted.rules)
    have, want = old.aggregation_rule, wanted.aggregation_rule
    if want is not None:
        selectors = () if have is None else have.cluster_role_selectors
        more = tuple(one for one in want.cluster_role_selectors if one not in selectors)
        have = AggregationRule(cluster_role_selectors=(*selectors, *more)) if more else have
    return replace(old, rules=(*old.rules, *missing), aggregation_rule=have)


def _bindings(before: Mapping[str, ClusterRoleBinding]) -> Iterator[Make | Change | Drop]:
    for wanted in BINDINGS:
        old = before.get(wanted.metadata.name)
        if old is None:
            yield Make(wanted)
        elif not _is_ours(old):
            continue
        elif old.role_ref != wanted.role_ref:
            # The role of a binding is not changed: it goes, and another takes its place.
            yield Drop(old)
            yield Make(replace(wanted, subjects=_subjects(old, wanted)))
        elif (new := replace(_marked(old, wanted), subjects=_subjects(old, wanted))) != old:
            yield Change(new, old)


def _subjects(old: ClusterRoleBinding, wanted: ClusterRoleBinding) -> tuple[Subject, ...]:
    return (*old.subjects, *(one for one in wanted.subjects if one not in old.subjects))


# --- roles made of others ---------------------------------------------------------------------------------------------


def gathered(roles: Mapping[str, ClusterRole]) -> dict[str, ClusterRole]:
    """The roles, each that is made of others with the rules that those have now."""
    found = dict(roles)
    made = [role for role in found.values() if role.aggregation_rule is not None]
    for _ in range(len(made)):  # A part may itself be made of others: at most so many times.
        before = dict(found)
        for role in made:
            name = role.metadata.name
            found[name] = replace(found[name], rules=_of_parts(role, found))
        if found == before:
            break
    return found


def _of_parts(role: ClusterRole, roles: Mapping[str, ClusterRole]) -> tuple[PolicyRule, ...]:
    assert role.aggregation_rule is not None
    rules: dict[PolicyRule, None] = {}
    for wish in map(selector, role.aggregation_rule.cluster_role_selectors):
        for name in sorted(roles):
            if name != role.metadata.name and wish.matches(roles[name].metadata.labels):
                rules |= dict.fromkeys(roles[name].rules)
    return tuple(rules)

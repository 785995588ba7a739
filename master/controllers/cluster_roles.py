"""Cluster roles: restores the bootstrap policy and updates aggregated roles. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec.structs import replace

from api.meta.selectors import Selector, compile_selector
from master.auth.bootstrap_policy import AUTO_UPDATE, BINDINGS, ROLES, SELF_PROVISIONERS
from master.auth.rbac import rules_not_covered
from master.controllers.actions import Action, Create, Failed, ForceDelete, Update, isolate_errors
from master.controllers.context import Lister
from master.resources.metadata import with_metadata
from master.resources.rbac import AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule, Subject

T = TypeVar("T", ClusterRole, ClusterRoleBinding)


def reconcile(
    roles: Iterable[ClusterRole], bindings: Iterable[ClusterRoleBinding], *, self_provisioning: bool = True
) -> Iterator[Create | Update | ForceDelete | Failed]:
    """Yield the writes that restore the bootstrap policy and aggregate roles. A second pass over the result yields
    nothing.

    Without `self_provisioning`, the binding self-provisioners does not have its default subjects.
    """
    stored = {role.metadata.name: role for role in roles}
    desired = {**stored, **_repaired(stored)}
    selectors: dict[str, tuple[Selector, ...]] = {}

    def compile_selectors(role: ClusterRole) -> tuple[()]:
        if role.aggregation_rule is not None:
            selectors[role.metadata.name] = tuple(map(compile_selector, role.aggregation_rule.cluster_role_selectors))
        return ()

    yield from isolate_errors(desired.values(), compile_selectors)
    yield from _differences(stored, aggregated_rules(desired, selectors))
    absent = () if self_provisioning else (SELF_PROVISIONERS,)
    yield from _bindings({binding.metadata.name: binding for binding in bindings}, absent)


def _differences(stored: Mapping[str, ClusterRole], desired: Mapping[str, ClusterRole]) -> Iterator[Create | Update]:
    for name, role in desired.items():
        old = stored.get(name)
        if old is None:
            yield Create(role)
        elif role != old:
            yield Update(role, old)


# --- bootstrap policy -------------------------------------------------------------------------------------------------


def _repaired(stored: Mapping[str, ClusterRole]) -> dict[str, ClusterRole]:
    repaired = {}
    for bootstrap in ROLES:
        name = bootstrap.metadata.name
        old = stored.get(name)
        if old is None:
            repaired[name] = bootstrap
        elif _is_bootstrap(old):
            repaired[name] = _with_rules(_with_bootstrap_metadata(old, bootstrap), bootstrap)
    return repaired


def _is_bootstrap(role: ClusterRole | ClusterRoleBinding) -> bool:
    return role.metadata.annotations.get(AUTO_UPDATE) != "false"


def _with_bootstrap_metadata(old: T, bootstrap: T) -> T:
    old_meta, meta = old.metadata, bootstrap.metadata
    return with_metadata(
        old, labels={**old_meta.labels, **meta.labels}, annotations={**old_meta.annotations, **meta.annotations}
    )


def _with_rules(old: ClusterRole, bootstrap: ClusterRole) -> ClusterRole:
    missing = () if set(bootstrap.rules) <= set(old.rules) else rules_not_covered(old.rules, bootstrap.rules)
    aggregation, required_aggregation = old.aggregation_rule, bootstrap.aggregation_rule
    if required_aggregation is not None:
        selectors = () if aggregation is None else aggregation.cluster_role_selectors
        missing_selectors = tuple(
            label_selector
            for label_selector in required_aggregation.cluster_role_selectors
            if label_selector not in selectors
        )
        aggregation = (
            AggregationRule(cluster_role_selectors=(*selectors, *missing_selectors))
            if missing_selectors
            else aggregation
        )
    return replace(old, rules=(*old.rules, *missing), aggregation_rule=aggregation)


def _bindings(
    stored: Mapping[str, ClusterRoleBinding], without_subjects: Collection[str]
) -> Iterator[Create | Update | ForceDelete]:
    for bootstrap in BINDINGS:
        name = bootstrap.metadata.name
        old = stored.get(name)
        present, absent = ((), bootstrap.subjects) if name in without_subjects else (bootstrap.subjects, ())
        if old is None:
            yield Create(replace(bootstrap, subjects=present))
        elif not _is_bootstrap(old):
            continue
        elif old.role_ref != bootstrap.role_ref:
            # The role of a binding is immutable: the binding is deleted and created again.
            yield ForceDelete(old)
            yield Create(replace(bootstrap, subjects=_subjects(old, present, absent)))
        else:
            new = replace(_with_bootstrap_metadata(old, bootstrap), subjects=_subjects(old, present, absent))
            if new != old:
                yield Update(new, old)


def _subjects(old: ClusterRoleBinding, present: Iterable[Subject], absent: Collection[Subject]) -> tuple[Subject, ...]:
    kept = [subject for subject in old.subjects if subject not in absent]
    return (*kept, *(subject for subject in present if subject not in kept))


# --- aggregation ------------------------------------------------------------------------------------------------------


def aggregated_rules(
    roles: Mapping[str, ClusterRole], selectors: Mapping[str, tuple[Selector, ...]]
) -> dict[str, ClusterRole]:
    """Return the roles; those with selectors have the rules of the roles that they select."""
    result = dict(roles)
    for _ in range(len(selectors)):  # A selected role may itself be aggregated.
        previous = dict(result)
        for name, role_selectors in selectors.items():
            result[name] = replace(result[name], rules=_selected_rules(name, role_selectors, result))
        if result == previous:
            break
    return result


def _selected_rules(
    aggregated: str, selectors: tuple[Selector, ...], roles: Mapping[str, ClusterRole]
) -> tuple[PolicyRule, ...]:
    rules: dict[PolicyRule, None] = {}
    for label_selector in selectors:
        for name in sorted(roles):
            if name != aggregated and label_selector.matches(roles[name].metadata.labels):
                rules |= dict.fromkeys(roles[name].rules)
    return tuple(rules)


def sync_cluster_roles(lister: Lister) -> Iterable[Action]:
    """Restore the default roles and bindings, and update aggregated roles."""
    return reconcile(
        lister.list(ClusterRole),
        lister.list(ClusterRoleBinding),
        self_provisioning=lister.context.self_provisioning,
    )

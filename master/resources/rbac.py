"""Role, ClusterRole, RoleBinding and ClusterRoleBinding. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, TOO_MANY, FieldError, quoted
from api.meta.selectors import LabelSelector
from api.meta.types import ATOMIC, Object, Value
from api.validation.registry import KindRules
from master.resources.printing import AGE, NAME, age
from master.resources.resource import Column, Resource

RBAC_GROUP = "rbac.authorization.k8s.io"

SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
"""Prefix of the user name of a service account, before its namespace, a colon and its name."""


class PolicyRule(Value, frozen=True):
    """Verbs on resources, or on paths; `*` stands for all."""

    verbs: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")


class Subject(Value, frozen=True):
    """A User, a Group or a ServiceAccount."""

    kind: str = ""
    api_group: str = ""
    name: str = ""
    namespace: str = ""


class RoleRef(Value, frozen=True):
    """The role that is bound."""

    api_group: str = ""
    kind: str = ""
    name: str = ""


class AggregationRule(Value, frozen=True):
    """Selectors of the cluster roles whose rules are combined in this role."""

    cluster_role_selectors: tuple[LabelSelector, ...] = ()


class Role(Object, frozen=True):
    """Permissions in one project."""

    API_VERSION = f"{RBAC_GROUP}/v1"
    KIND = "Role"
    PLURAL = "roles"
    NAMESPACED = True

    rules: tuple[PolicyRule, ...] = ()


class ClusterRole(Object, frozen=True):
    """Permissions in the whole cluster, or in each project where the role is bound."""

    API_VERSION = f"{RBAC_GROUP}/v1"
    KIND = "ClusterRole"
    PLURAL = "clusterroles"
    NAMESPACED = False

    rules: tuple[PolicyRule, ...] = ()
    aggregation_rule: AggregationRule | None = None


class RoleBinding(Object, frozen=True):
    """Grants a role to subjects in one project."""

    API_VERSION = f"{RBAC_GROUP}/v1"
    KIND = "RoleBinding"
    PLURAL = "rolebindings"
    NAMESPACED = True

    subjects: tuple[Subject, ...] = ()
    role_ref: Annotated[RoleRef, ATOMIC] = RoleRef()


class ClusterRoleBinding(Object, frozen=True):
    """Grants a cluster role to subjects in the whole cluster."""

    API_VERSION = f"{RBAC_GROUP}/v1"
    KIND = "ClusterRoleBinding"
    PLURAL = "clusterrolebindings"
    NAMESPACED = False

    subjects: tuple[Subject, ...] = ()
    role_ref: Annotated[RoleRef, ATOMIC] = RoleRef()


MAX_COMBINATIONS = 10_000
"""Combinations of verb, API group, resource and name in the rules of a role. The escalation check expands them."""


MAX_RULES = 1000
"""Rules of a role. Each decision about a user of the role compares them all."""


def combinations(rules: Iterable[PolicyRule]) -> int:
    """Return the number of combinations of verb, API group, resource and name, and of verb and path, in rules."""
    return sum(
        len(rule.verbs)
        * (len(rule.api_groups) * len(rule.resources) * max(1, len(rule.resource_names)) + len(rule.non_resource_urls))
        for rule in rules
    )


def _validate_role(role: Role | ClusterRole) -> Iterator[FieldError]:
    count = combinations(role.rules)
    if count > MAX_COMBINATIONS:
        reason = f"at most {MAX_COMBINATIONS} combinations of verb, API group, resource and name are accepted"
        yield FieldError("rules", f"{count} combinations", reason)
    if len(role.rules) > MAX_RULES:
        yield FieldError("rules", f"{len(role.rules)} rules", f"at most {MAX_RULES} are accepted")
        return
    for number, rule in enumerate(role.rules):
        path = f"rules[{number}]"
        if not rule.verbs:
            yield FieldError(f"{path}.verbs", "[]", "verbs must contain at least one value", MISSING)
        if rule.non_resource_urls and (rule.resources or rule.api_groups):
            reason = "rules cannot apply to both regular resources and non-resource URLs"
            yield FieldError(f"{path}.nonResourceURLs", quoted(rule.non_resource_urls), reason)
        elif rule.non_resource_urls and isinstance(role, Role):
            reason = "namespaced rules cannot apply to non-resource URLs"
            yield FieldError(f"{path}.nonResourceURLs", quoted(rule.non_resource_urls), reason)
        elif not rule.non_resource_urls:
            if not rule.api_groups:
                reason = "resource rules must supply at least one api group"
                yield FieldError(f"{path}.apiGroups", "[]", reason, MISSING)
            if not rule.resources:
                reason = "resource rules must supply at least one resource"
                yield FieldError(f"{path}.resources", "[]", reason, MISSING)


MAX_SUBJECTS = 5000
"""Subjects of a binding."""


def check_subject_number(binding: Any) -> Iterator[FieldError]:
    """Yield an error if a binding has more than MAX_SUBJECTS."""
    if len(binding.subjects) > MAX_SUBJECTS:
        accepted = f"must have at most {MAX_SUBJECTS} items"
        yield FieldError("subjects", str(len(binding.subjects)), accepted, TOO_MANY)


def _validate_binding(binding: RoleBinding | ClusterRoleBinding) -> Iterator[FieldError]:
    kinds = ("Role", "ClusterRole") if isinstance(binding, RoleBinding) else ("ClusterRole",)
    reference = binding.role_ref
    if reference.api_group not in ("", RBAC_GROUP):
        yield FieldError("roleRef.apiGroup", quoted(reference.api_group), f"{RBAC_GROUP} is accepted", NOT_SUPPORTED)
    if reference.kind not in kinds:
        yield FieldError("roleRef.kind", quoted(reference.kind), f"{', '.join(kinds)} are accepted", NOT_SUPPORTED)
    if not reference.name:
        yield FieldError("roleRef.name", '""', "a name is required", MISSING)
    for number, subject in enumerate(binding.subjects):
        path = f"subjects[{number}]"
        if not subject.name:
            yield FieldError(f"{path}.name", '""', "a name is required", MISSING)
        if subject.kind not in ("User", "Group", "ServiceAccount"):
            accepted = "User, Group, ServiceAccount are accepted"
            yield FieldError(f"{path}.kind", quoted(subject.kind), accepted, NOT_SUPPORTED)
        if subject.kind == "ServiceAccount" and not subject.namespace and isinstance(binding, ClusterRoleBinding):
            yield FieldError(f"{path}.namespace", '""', "a namespace is required", MISSING)


def _default_binding(binding: Any) -> Any:
    subjects = (
        replace(subject, api_group=subject.api_group or ("" if subject.kind == "ServiceAccount" else RBAC_GROUP))
        for subject in binding.subjects
    )
    reference = replace(binding.role_ref, api_group=binding.role_ref.api_group or RBAC_GROUP)
    return replace(binding, subjects=tuple(subjects), role_ref=reference)


def _validate_binding_update(old: Any, new: Any) -> Iterator[FieldError]:
    if old.role_ref != new.role_ref:
        yield FieldError("roleRef", quoted(new.role_ref), "cannot change roleRef", FORBIDDEN)


def _subjects_text(binding: RoleBinding | ClusterRoleBinding, kind: str) -> str:
    subjects = (subject for subject in binding.subjects if subject.kind == kind)
    return ", ".join(
        f"{subject.namespace}/{subject.name}" if kind == "ServiceAccount" else subject.name for subject in subjects
    )


_ROLE_COLUMNS = (
    NAME,
    Column(
        "Created At",
        "When it was made.",
        lambda role, now: role.metadata.creation_timestamp or age(None, now),
        type="date",
    ),
)
_BINDING_COLUMNS = (
    NAME,
    Column("Role", "The role that is bound.", lambda binding, _: f"{binding.role_ref.kind}/{binding.role_ref.name}"),
    AGE,
    Column("Users", "Users in the binding.", lambda binding, _: _subjects_text(binding, "User"), wide=True),
    Column("Groups", "Groups that have it.", lambda binding, _: _subjects_text(binding, "Group"), wide=True),
    Column(
        "ServiceAccounts",
        "Service accounts that have it.",
        lambda binding, _: _subjects_text(binding, "ServiceAccount"),
        wide=True,
    ),
)
_ROLE_STRATEGY: KindRules[Any] = KindRules(validate=_validate_role, validate_name=names.path_segment_error)
_BINDING_STRATEGY: KindRules[Any] = KindRules(
    _default_binding,
    _validate_binding,
    _validate_binding_update,
    validate_name=names.path_segment_error,
    check_numbers=check_subject_number,
)

ROLES = Resource(
    type=Role,
    columns=_ROLE_COLUMNS,
    rules=_ROLE_STRATEGY,
    acted_on_by="the master, at every request",
)
CLUSTER_ROLES = Resource(
    type=ClusterRole,
    columns=_ROLE_COLUMNS,
    rules=_ROLE_STRATEGY,
    acted_on_by="the master, at every request",
)
ROLE_BINDINGS = Resource(
    type=RoleBinding,
    columns=_BINDING_COLUMNS,
    rules=_BINDING_STRATEGY,
    acted_on_by="the master, at every request",
)
CLUSTER_ROLE_BINDINGS = Resource(
    type=ClusterRoleBinding,
    columns=_BINDING_COLUMNS,
    rules=_BINDING_STRATEGY,
    acted_on_by="the master, at every request",
)

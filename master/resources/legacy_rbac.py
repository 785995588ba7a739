"""Roles and bindings as authorization.openshift.io has them, and RoleBindingRestriction. Pure.

Roles and bindings are stored once, as the kinds of rbac.authorization.k8s.io, and converted on every read and write.
Their validation is that of the stored kinds. A binding names its users and groups twice: `subjects`, and `userNames`
with `groupNames`.

Source: authorization.openshift.io/v1 of OpenShift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, TOO_MANY, FieldError, quoted
from api.meta.selectors import LabelSelector, check_selector, format_selector
from api.meta.types import ATOMIC, Json, Object, ObjectReference, Value
from api.validation.registry import KindRules
from master.resources import rbac
from master.resources.printing import AGE, NAME
from master.resources.rbac import RBAC_GROUP, SERVICE_ACCOUNT_PREFIX, AggregationRule, Subject
from master.resources.resource import AnyResource, Column, Resource, Version
from master.resources.users import GROUPS, USERS

AUTHORIZATION_GROUP = "authorization.openshift.io"
_API_VERSION = f"{AUTHORIZATION_GROUP}/v1"

USER, GROUP, SERVICE_ACCOUNT = "User", "Group", "ServiceAccount"
SYSTEM_USER, SYSTEM_GROUP = "SystemUser", "SystemGroup"
"""Kinds of subjects; a system user or group has a name that no stored User or Group can have."""

_STORED_KINDS = {
    USER: USER,
    SYSTEM_USER: USER,
    GROUP: GROUP,
    SYSTEM_GROUP: GROUP,
    SERVICE_ACCOUNT: SERVICE_ACCOUNT,
}
"""Kind of a subject → kind of the stored subject."""

ANY = "*"


class LegacyPolicyRule(Value, frozen=True):
    """Verbs on resources, or on paths; `*` stands for all.

    `attribute_restrictions` must be null: it is kept for old clients.
    """

    verbs: tuple[str, ...] = ()
    attribute_restrictions: Json = None
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")


class LegacyRole(Object, frozen=True):
    """Permissions in one project, as older clients of OpenShift have them."""

    API_VERSION = _API_VERSION
    KIND = "Role"
    PLURAL = "roles"
    NAMESPACED = True

    rules: tuple[LegacyPolicyRule, ...] = ()


class LegacyClusterRole(Object, frozen=True):
    """Permissions in the whole cluster, or in each project where the role is bound, as older clients have them."""

    API_VERSION = _API_VERSION
    KIND = "ClusterRole"
    PLURAL = "clusterroles"
    NAMESPACED = False

    rules: tuple[LegacyPolicyRule, ...] = ()
    aggregation_rule: AggregationRule | None = None


class LegacyRoleBinding(Object, frozen=True):
    """Grants a role to subjects in one project, as older clients of OpenShift have it.

    `user_names` and `group_names` name the same users and groups as `subjects`. A client that sends any of the two
    need not send `subjects`. `role_ref` names a role of the cluster, or with a namespace one of the project.
    """

    API_VERSION = _API_VERSION
    KIND = "RoleBinding"
    PLURAL = "rolebindings"
    NAMESPACED = True

    user_names: tuple[str, ...] | None = None
    group_names: tuple[str, ...] | None = None
    subjects: tuple[ObjectReference, ...] = ()
    role_ref: Annotated[ObjectReference, ATOMIC] = ObjectReference()


class LegacyClusterRoleBinding(Object, frozen=True):
    """Grants a cluster role to subjects in the whole cluster, as older clients of OpenShift have it.

    `user_names` and `group_names` name the same users and groups as `subjects`.
    """

    API_VERSION = _API_VERSION
    KIND = "ClusterRoleBinding"
    PLURAL = "clusterrolebindings"
    NAMESPACED = False

    user_names: tuple[str, ...] | None = None
    group_names: tuple[str, ...] | None = None
    subjects: tuple[ObjectReference, ...] = ()
    role_ref: Annotated[ObjectReference, ATOMIC] = ObjectReference()


LegacyBinding = LegacyRoleBinding | LegacyClusterRoleBinding

# --- conversion of rules ----------------------------------------------------------------------------------------------


def legacy_rule(rule: rbac.PolicyRule) -> LegacyPolicyRule:
    """Return a stored rule in the legacy form."""
    return LegacyPolicyRule(
        verbs=rule.verbs,
        api_groups=rule.api_groups,
        resources=rule.resources,
        resource_names=rule.resource_names,
        non_resource_urls=rule.non_resource_urls,
    )


def _stored_rule(rule: LegacyPolicyRule) -> rbac.PolicyRule:
    return rbac.PolicyRule(
        verbs=rule.verbs,
        api_groups=rule.api_groups,
        resources=rule.resources,
        resource_names=rule.resource_names,
        non_resource_urls=rule.non_resource_urls,
    )


def _role_from_stored(role: rbac.Role) -> LegacyRole:
    return LegacyRole(metadata=role.metadata, rules=tuple(map(legacy_rule, role.rules)))


def _role_to_stored(role: LegacyRole) -> rbac.Role:
    return rbac.Role(metadata=role.metadata, rules=tuple(map(_stored_rule, role.rules)))


def _cluster_role_from_stored(role: rbac.ClusterRole) -> LegacyClusterRole:
    rules = tuple(map(legacy_rule, role.rules))
    return LegacyClusterRole(metadata=role.metadata, rules=rules, aggregation_rule=role.aggregation_rule)


def _cluster_role_to_stored(role: LegacyClusterRole) -> rbac.ClusterRole:
    rules = tuple(map(_stored_rule, role.rules))
    return rbac.ClusterRole(metadata=role.metadata, rules=rules, aggregation_rule=role.aggregation_rule)


def _default_role(role: Any) -> Any:
    return replace(role, rules=tuple(map(_default_rule, role.rules)))


def _default_rule(rule: LegacyPolicyRule) -> LegacyPolicyRule:
    """Set the API groups of a rule without any: all if it allows everything, else the core group."""
    if rule.api_groups or not rule.resources:
        return rule
    allows_all = rule.verbs == (ANY,) and rule.resources == (ANY,)
    return replace(rule, api_groups=(ANY,) if allows_all else ("",))


# --- conversion of bindings -------------------------------------------------------------------------------------------


def _legacy_subject(subject: Subject) -> ObjectReference:
    if subject.kind == SERVICE_ACCOUNT:
        return ObjectReference(kind=SERVICE_ACCOUNT, namespace=subject.namespace, name=subject.name)
    return ObjectReference(kind=_name_kind(subject.kind, subject.name), name=subject.name)


def _name_kind(kind: str, name: str) -> str:
    """Return SystemUser or SystemGroup for a name that no stored User or Group can have, else the kind."""
    if kind == USER:
        return SYSTEM_USER if USERS.rules.validate_name(name) else USER
    return SYSTEM_GROUP if GROUPS.rules.validate_name(name) else GROUP


def _stored_subject(subject: ObjectReference) -> Subject:
    kind = _STORED_KINDS.get(subject.kind, subject.kind)
    if kind == SERVICE_ACCOUNT:
        return Subject(kind=kind, namespace=subject.namespace, name=subject.name)
    return Subject(kind=kind, api_group=RBAC_GROUP, name=subject.name)


def _names(subjects: Iterable[ObjectReference], namespace: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the users, with those of service accounts, and of the groups of a binding's subjects."""
    users, groups = [], []
    for subject in subjects:
        kind = _STORED_KINDS.get(subject.kind)
        if kind == USER:
            users.append(subject.name)
        elif kind == SERVICE_ACCOUNT:
            users.append(f"{SERVICE_ACCOUNT_PREFIX}{subject.namespace or namespace}:{subject.name}")
        elif kind == GROUP:
            groups.append(subject.name)
    return tuple(users), tuple(groups)


def _named_subjects(users: Iterable[str], groups: Iterable[str]) -> Iterator[ObjectReference]:
    """Yield the subjects of names."""
    for user in users:
        namespace, colon, account = user.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
        if user.startswith(SERVICE_ACCOUNT_PREFIX) and namespace and colon and account and ":" not in account:
            yield ObjectReference(kind=SERVICE_ACCOUNT, namespace=namespace, name=account)
        else:
            yield ObjectReference(kind=_name_kind(USER, user), name=user)
    for group in groups:
        yield ObjectReference(kind=_name_kind(GROUP, group), name=group)


def _with_names(binding: Any) -> Any:
    """Return a binding whose names are those of its subjects; null if there are none."""
    users, groups = _names(binding.subjects, binding.metadata.namespace)
    return replace(binding, user_names=users or None, group_names=groups or None)


def _default_binding(binding: Any) -> Any:
    """Make subjects and names agree. Names that a client sends replace other subjects, as in OpenShift."""
    sent, subjects = (binding.user_names or (), binding.group_names or ()), binding.subjects
    is_named = binding.user_names is not None or binding.group_names is not None
    if is_named and sent != _names(subjects, binding.metadata.namespace):
        subjects = _named_subjects(*sent)
    reference = ObjectReference(name=binding.role_ref.name, namespace=binding.role_ref.namespace)
    return _with_names(replace(binding, subjects=tuple(map(_normalized, subjects)), role_ref=reference))


def _normalized(subject: ObjectReference) -> ObjectReference:
    """Return a subject as it is read back; one of an unknown kind stays, for its validation."""
    return _legacy_subject(_stored_subject(subject)) if subject.kind in _STORED_KINDS else subject


def _normalize_binding_update(document: Any, old: LegacyBinding) -> Any:
    """Drop names that the client sent back unchanged although it changed the subjects."""
    if not isinstance(document, dict) or document.get("subjects") == list(map(msgspec.to_builtins, old.subjects)):
        return document
    sent = (document.get("userNames"), document.get("groupNames"))
    if sent != (_listed(old.user_names), _listed(old.group_names)):
        return document
    return {key: value for key, value in document.items() if key not in ("userNames", "groupNames")}


def _listed(texts: tuple[str, ...] | None) -> list[str] | None:
    return None if texts is None else list(texts)


def _legacy_reference(reference: rbac.RoleRef, namespace: str) -> ObjectReference:
    return ObjectReference(name=reference.name, namespace=namespace if reference.kind == rbac.Role.KIND else "")


def _stored_reference(reference: ObjectReference) -> rbac.RoleRef:
    if reference == ObjectReference():
        return rbac.RoleRef()
    kind = rbac.Role.KIND if reference.namespace else rbac.ClusterRole.KIND
    return rbac.RoleRef(api_group=RBAC_GROUP, kind=kind, name=reference.name)


def _binding_from_stored(to: type[Any]) -> Callable[[Any], Any]:
    def convert(binding: rbac.RoleBinding | rbac.ClusterRoleBinding) -> Any:
        return _with_names(
            to(
                metadata=binding.metadata,
                subjects=tuple(map(_legacy_subject, binding.subjects)),
                role_ref=_legacy_reference(binding.role_ref, binding.metadata.namespace),
            )
        )

    return convert


def _binding_to_stored(to: type[Any]) -> Callable[[Any], Any]:
    def convert(binding: LegacyBinding) -> Any:
        return to(
            metadata=binding.metadata,
            subjects=tuple(map(_stored_subject, binding.subjects)),
            role_ref=_stored_reference(binding.role_ref),
        )

    return convert


# --- validation -------------------------------------------------------------------------------------------------------


def _role_rules(stored: AnyResource, to_stored: Callable[[Any], Any]) -> KindRules[Any]:
    def validate(role: Any) -> Iterator[FieldError]:
        for number, rule in enumerate(role.rules):
            if rule.attribute_restrictions is not None:
                path, reason = f"rules[{number}].attributeRestrictions", "attribute restrictions are not supported"
                yield FieldError(path, "given", reason, FORBIDDEN)
        yield from stored.rules.validate(to_stored(role))

    return KindRules(_default_role, validate, validate_name=names.path_segment_error)


def _binding_rules(stored: AnyResource, to_stored: Callable[[Any], Any]) -> KindRules[Any]:
    def validate(binding: LegacyBinding) -> Iterator[FieldError]:
        for number, subject in enumerate(binding.subjects):
            if subject.kind not in _STORED_KINDS:
                accepted = f"{', '.join(_STORED_KINDS)} are accepted"
                yield FieldError(f"subjects[{number}].kind", quoted(subject.kind), accepted, NOT_SUPPORTED)
        namespace, project = binding.role_ref.namespace, binding.metadata.namespace
        if namespace not in ("", project):
            reason = "only a role of the cluster, or of the namespace of the binding, is accepted"
            yield FieldError("roleRef.namespace", quoted(namespace), reason)
            return
        errors = stored.rules.validate(to_stored(binding))
        yield from (error for error in errors if not error.path.endswith(".kind"))  # The kinds here are others.

    def validate_update(old: LegacyBinding, new: LegacyBinding) -> Iterator[FieldError]:
        yield from stored.rules.validate_update(to_stored(old), to_stored(new))

    return KindRules(
        _default_binding,
        validate,
        validate_update,
        validate_name=names.path_segment_error,
        check_numbers=_check_subject_number,
    )


def _check_subject_number(binding: LegacyBinding) -> Iterator[FieldError]:
    yield from rbac.check_subject_number(binding)
    named = len(binding.user_names or ()) + len(binding.group_names or ())
    if named > rbac.MAX_SUBJECTS:
        accepted = f"must have at most {rbac.MAX_SUBJECTS} items together with groupNames"
        yield FieldError("userNames", str(named), accepted, TOO_MANY)


def _binding_resource(of: type[Any], stored: AnyResource) -> AnyResource:
    from_stored, to_stored = _binding_from_stored(of), _binding_to_stored(stored.type)
    return Resource(
        type=of,
        columns=stored.columns,
        rules=_binding_rules(stored, to_stored),
        normalize_update=_normalize_binding_update,
        stored_as=Version(stored, from_stored, to_stored),
    )


LEGACY_ROLES = Resource(
    type=LegacyRole,
    columns=rbac.ROLES.columns,
    rules=_role_rules(rbac.ROLES, _role_to_stored),
    stored_as=Version(rbac.ROLES, _role_from_stored, _role_to_stored),
)
LEGACY_CLUSTER_ROLES = Resource(
    type=LegacyClusterRole,
    columns=rbac.CLUSTER_ROLES.columns,
    rules=_role_rules(rbac.CLUSTER_ROLES, _cluster_role_to_stored),
    stored_as=Version(rbac.CLUSTER_ROLES, _cluster_role_from_stored, _cluster_role_to_stored),
)
LEGACY_ROLE_BINDINGS = _binding_resource(LegacyRoleBinding, rbac.ROLE_BINDINGS)
LEGACY_CLUSTER_ROLE_BINDINGS = _binding_resource(LegacyClusterRoleBinding, rbac.CLUSTER_ROLE_BINDINGS)

# --- RoleBindingRestriction -------------------------------------------------------------------------------------------


class UserRestriction(Value, frozen=True):
    """Users by name, by group, or by the labels of their User objects."""

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    labels: tuple[LabelSelector, ...] = ()


class GroupRestriction(Value, frozen=True):
    """Groups by name, or by the labels of their Group objects."""

    groups: tuple[str, ...] = ()
    labels: tuple[LabelSelector, ...] = ()


class ServiceAccountReference(Value, frozen=True):
    """A service account. An empty `namespace` is that of the restriction."""

    name: str = ""
    namespace: str = ""


class ServiceAccountRestriction(Value, frozen=True):
    """Service accounts by name, or all of a namespace."""

    service_accounts: tuple[ServiceAccountReference, ...] = msgspec.field(default=(), name="serviceaccounts")
    namespaces: tuple[str, ...] = ()


class RoleBindingRestrictionSpec(Value, frozen=True):
    """The subjects that are allowed. Exactly one of the fields is set."""

    user_restriction: UserRestriction | None = msgspec.field(default=None, name="userrestriction")
    group_restriction: GroupRestriction | None = msgspec.field(default=None, name="grouprestriction")
    service_account_restriction: ServiceAccountRestriction | None = msgspec.field(
        default=None, name="serviceaccountrestriction"
    )


class RoleBindingRestriction(Object, frozen=True):
    """Subjects to which role bindings of its namespace may grant a role.

    If a namespace has restrictions, each new subject of a role binding must match one of them.
    """

    API_VERSION = _API_VERSION
    KIND = "RoleBindingRestriction"
    PLURAL = "rolebindingrestrictions"
    NAMESPACED = True

    spec: RoleBindingRestrictionSpec = RoleBindingRestrictionSpec()


def _validate_restriction(restriction: RoleBindingRestriction) -> Iterator[FieldError]:
    spec = restriction.spec
    given: list[tuple[str, tuple[tuple[object, ...], ...]]] = []
    if (users := spec.user_restriction) is not None:
        given.append(("userrestriction", (users.users, users.groups, users.labels)))
        yield from _selector_errors("spec.userrestriction.labels", users.labels)
    if (groups := spec.group_restriction) is not None:
        given.append(("grouprestriction", (groups.groups, groups.labels)))
        yield from _selector_errors("spec.grouprestriction.labels", groups.labels)
    if (accounts := spec.service_account_restriction) is not None:
        given.append(("serviceaccountrestriction", (accounts.service_accounts, accounts.namespaces)))
        for number, account in enumerate(accounts.service_accounts):
            if not account.name:
                path = f"spec.serviceaccountrestriction.serviceaccounts[{number}].name"
                yield FieldError(path, '""', "a name is required", MISSING)
    if len(given) != 1:
        accepted = "exactly one of userrestriction, grouprestriction and serviceaccountrestriction is accepted"
        yield FieldError("spec", f"{len(given)} of them", accepted)
    for name, lists in given:
        if not any(lists):
            yield FieldError(f"spec.{name}", "{}", "at least one subject must be given", MISSING)


def _selector_errors(path: str, selectors: tuple[LabelSelector, ...]) -> Iterator[FieldError]:
    for number, selector in enumerate(selectors):
        yield from check_selector(f"{path}[{number}]", selector)


def _subject_type(restriction: RoleBindingRestriction) -> str:
    spec = restriction.spec
    if spec.user_restriction is not None:
        return USER
    return GROUP if spec.group_restriction is not None else "Service Account"


def _subjects_text(restriction: RoleBindingRestriction) -> str:
    """Return the subjects as oc describes them."""
    spec = restriction.spec
    if spec.user_restriction is not None:
        users = (*spec.user_restriction.users, *(f"group {name}" for name in spec.user_restriction.groups))
        return ", ".join((*users, *_selector_text(spec.user_restriction.labels)))
    if spec.group_restriction is not None:
        return ", ".join((*spec.group_restriction.groups, *_selector_text(spec.group_restriction.labels)))
    accounts = spec.service_account_restriction or ServiceAccountRestriction()
    own = restriction.metadata.namespace
    named = (f"{account.namespace or own}/{account.name}" for account in accounts.service_accounts)
    return ", ".join((*named, *(f"{namespace}/*" for namespace in accounts.namespaces)))


def _selector_text(selectors: tuple[LabelSelector, ...]) -> tuple[str, ...]:
    return tuple(format_selector(selector) for selector in selectors)


ROLE_BINDING_RESTRICTIONS = Resource(
    type=RoleBindingRestriction,
    columns=(
        NAME,
        Column("Subject Type", "Kind of the subjects that it allows.", lambda each, _: _subject_type(each)),
        Column("Subjects", "The subjects that it allows.", lambda each, _: _subjects_text(each)),
        AGE,
    ),
    rules=KindRules(validate=_validate_restriction),
    acted_on_by="the master, when a role binding is created or changed",
)

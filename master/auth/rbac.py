"""RBAC: evaluation of rules, index of bindings, and prevention of privilege escalation. Pure.

Source: the RBAC authorizer and the role storage of Kubernetes. Rules only allow; a request that no rule allows is
denied. A user may grant only permissions that the user holds, unless the user has the verb `escalate` or `bind`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from master import errors
from master.auth.attributes import (
    SERVICE_ACCOUNT_USER_PREFIX,
    SYSTEM_MASTERS,
    Attributes,
    Decision,
    PathAttributes,
    User,
)
from master.resources.rbac import (
    RBAC_GROUP,
    ClusterRole,
    ClusterRoleBinding,
    PolicyRule,
    Role,
    RoleBinding,
    RoleRef,
    Subject,
    combinations,
)
from master.resources.rbac import ClusterRoleBinding as AnyBinding
from master.resources.resource import AnyResource
from master.resources.scheme import group_resource
from master.storage.interface import Key, Storage, WatchEvent

ANY = "*"

ALL_RULES = (
    PolicyRule(verbs=(ANY,), api_groups=(ANY,), resources=(ANY,)),
    PolicyRule(verbs=(ANY,), non_resource_urls=(ANY,)),
)
"""The rules that allow every request."""


class BindingMatch(NamedTuple):
    """A binding with the subject that matches a user. `rules` is None if the role does not exist."""

    binding: AnyBinding | RoleBinding
    subject: Subject
    rules: tuple[PolicyRule, ...] | None


MAX_MISSING_ROLES = 10
"""Roles that do not exist which a reason names."""


def decide(attributes: Attributes | PathAttributes, matches: Iterable[BindingMatch]) -> Decision:
    """Return the decision of the roles that the bindings refer to. Each role is evaluated once.

    The reason names the binding that allows the request, or the roles that do not exist.
    """
    missing: dict[str, None] = {}
    for match in different_roles(matches):
        if match.rules is None:
            if len(missing) < MAX_MISSING_ROLES:
                missing[role_not_found(match.binding.role_ref)] = None
        elif any(allows(rule, attributes) for rule in match.rules):
            return Decision(True, f"RBAC: allowed by {describe_match(match)}")
    reason = f"[{', '.join(missing)}]" if len(missing) > 1 else "".join(missing)
    return Decision(False, f"RBAC: {reason}" if reason else "")


def different_roles(matches: Iterable[BindingMatch]) -> Iterator[BindingMatch]:
    """Yield the first match of each role, and all of roles that do not exist.

    A tenant may have one role with many rules, and thousands of bindings to it.
    """
    seen: dict[int, tuple[PolicyRule, ...]] = {}
    for match in matches:
        if match.rules is None:
            yield match
        elif id(match.rules) not in seen:
            seen[id(match.rules)] = match.rules
            yield match


def rules_allow(rules: Iterable[PolicyRule], attributes: Attributes) -> bool:
    """Return whether one of the rules allows a request."""
    return any(allows(rule, attributes) for rule in rules)


def role_not_found(reference: RoleRef) -> str:
    """Return the message that a role does not exist."""
    return f"{reference.kind.lower()}.{RBAC_GROUP} {quoted(reference.name)} not found"


def describe_match(match: BindingMatch) -> str:
    """Return the text that names a binding, its role and its subject in the reason of a decision."""
    binding, subject, meta = match.binding, match.subject, match.binding.metadata
    name = f"{meta.name}/{meta.namespace}" if meta.namespace else meta.name
    subject_name = subject.name
    if subject.kind == "ServiceAccount":
        subject_name = f"{subject.name}/{subject.namespace or meta.namespace}"
    role = f"{binding.role_ref.kind} {quoted(binding.role_ref.name)}"
    return f"{binding.KIND} {quoted(name)} of {role} to {subject.kind} {quoted(subject_name)}"


def subject_key(subject: Subject, namespace: str) -> tuple[str, str]:
    """Return (User or Group, name) of a subject. `namespace` is that of the binding."""
    if subject.kind == "ServiceAccount":
        return "User", f"{SERVICE_ACCOUNT_USER_PREFIX}{subject.namespace or namespace}:{subject.name}"
    return subject.kind, subject.name


def user_keys(user: User) -> Iterator[tuple[str, str]]:
    """Yield (User or Group, name) of the user and its groups, in a fixed order."""
    yield "User", user.name
    for group in sorted(user.groups):
        yield "Group", group


# --- one rule, one request --------------------------------------------------------------------------------------------


def allows(rule: PolicyRule, attributes: Attributes | PathAttributes) -> bool:
    """Return whether a rule allows a request."""
    if isinstance(attributes, PathAttributes):
        has_verb = attributes.verb in rule.verbs or ANY in rule.verbs
        return has_verb and any(_matches_path(path, attributes.path) for path in rule.non_resource_urls)
    return (
        (attributes.verb in rule.verbs or ANY in rule.verbs)
        and (attributes.group in rule.api_groups or ANY in rule.api_groups)
        and _has_resource(rule.resources, attributes.resource, attributes.subresource)
        and (not rule.resource_names or attributes.name in rule.resource_names)
    )


def _has_resource(resources: tuple[str, ...], resource: str, subresource: str) -> bool:
    if ANY in resources:
        return True
    if not subresource:
        return resource in resources
    return f"{resource}/{subresource}" in resources or f"*/{subresource}" in resources


def _matches_path(pattern: str, path: str) -> bool:
    """Return whether the path matches. A `*` at the end of the pattern matches the rest of the path."""
    return pattern == path or (pattern.endswith(ANY) and path.startswith(pattern.rstrip(ANY)))


# --- rules against rules ----------------------------------------------------------------------------------------------


def rules_not_covered(held_rules: Sequence[PolicyRule], requested: Iterable[PolicyRule]) -> tuple[PolicyRule, ...]:
    """Return what the requested rules allow and the held rules do not, with all verbs of a target in one rule."""
    missing = [
        single_rule
        for rule in requested
        for single_rule in _single_rules(rule)
        if not any(_covers(held_rule, single_rule) for held_rule in held_rules)
    ]
    verbs_by_target: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for single_rule in missing:
        target = (
            single_rule.api_groups,
            single_rule.resources,
            single_rule.non_resource_urls,
            single_rule.resource_names,
        )
        verbs = verbs_by_target.setdefault(target, [])
        verbs += [verb for verb in single_rule.verbs if verb not in verbs]
    return tuple(
        PolicyRule(verbs=tuple(verbs), api_groups=g, resources=r, non_resource_urls=u, resource_names=n)
        for (g, r, u, n), verbs in verbs_by_target.items()
    )


def _single_rules(rule: PolicyRule) -> Iterator[PolicyRule]:
    """Split a rule into rules of one verb, one resource and one name each."""
    names: list[tuple[str, ...]] = [(name,) for name in rule.resource_names] or [()]
    for verb in rule.verbs:
        for group in rule.api_groups:
            for resource in rule.resources:
                for name in names:
                    yield PolicyRule(verbs=(verb,), api_groups=(group,), resources=(resource,), resource_names=name)
        for path in rule.non_resource_urls:
            yield PolicyRule(verbs=(verb,), non_resource_urls=(path,))


def _covers(rule: PolicyRule, single_rule: PolicyRule) -> bool:
    if not _has_value(rule.verbs, single_rule.verbs[0]):
        return False
    if single_rule.non_resource_urls:
        return any(_matches_path(path, single_rule.non_resource_urls[0]) for path in rule.non_resource_urls)
    resource, _, subresource = single_rule.resources[0].partition("/")
    return (
        _has_value(rule.api_groups, single_rule.api_groups[0])
        and _has_resource(rule.resources, resource, subresource)
        and (not rule.resource_names or any(name in rule.resource_names for name in single_rule.resource_names))
    )


def _has_value(values: tuple[str, ...], value: str) -> bool:
    return ANY in values or value in values


def format_rule(rule: PolicyRule) -> str:
    """Return the text of a rule in messages: {APIGroups:[""], Resources:["pods"], Verbs:["get"]}."""
    fields = (
        ("APIGroups", rule.api_groups),
        ("Resources", rule.resources),
        ("NonResourceURLs", rule.non_resource_urls),
        ("ResourceNames", rule.resource_names),
        ("Verbs", rule.verbs),
    )
    return "{" + ", ".join(f"{name}:{quoted_list(values)}" for name, values in fields if values) + "}"


def quoted(text: str) -> str:
    """Return the text in double quotes."""
    return msgspec.json.encode(text).decode()


def quoted_list(texts: Iterable[str]) -> str:
    """Return a list as messages of Kubernetes print it: ["a" "b"]."""
    return f"[{' '.join(map(quoted, texts))}]"


Binding = ClusterRoleBinding | RoleBinding


class BindingIndex:
    """The role bindings by subject. Only committed bindings are in it."""

    def __init__(self, storage: Storage) -> None:
        self._store = storage
        self._by_subject: dict[tuple[str, str], dict[str, dict[str, tuple[Binding, Subject]]]] = {}
        """(User or Group, name) → namespace, empty for ClusterRoleBindings → name → (binding, subject)."""
        for resource in (group_resource(ClusterRoleBinding), group_resource(RoleBinding)):
            for record in storage.list(resource):
                self._put(record.object)
            storage.watch(resource, self._follow)

    def of(self, user: User, namespace: str) -> Iterator[BindingMatch]:
        """Return the user's bindings in the whole cluster, and in the namespace if one is given."""
        by_namespace = [self._by_subject[key] for key in user_keys(user) if key in self._by_subject]
        for binding_namespace in ("", namespace) if namespace else ("",):
            for bindings in by_namespace:
                for binding, subject in bindings.get(binding_namespace, {}).values():
                    yield BindingMatch(binding, subject, self.role_rules(binding.role_ref, binding_namespace))

    def role_rules(self, reference: RoleRef, namespace: str) -> tuple[PolicyRule, ...] | None:
        """Return the rules of the role that a binding of the namespace refers to; None if it does not exist."""
        is_role = reference.kind == Role.KIND
        key = Key(group_resource(Role if is_role else ClusterRole), namespace if is_role else "", reference.name)
        record = self._store.get(key)
        return None if record is None else record.object.rules

    def _follow(self, event: WatchEvent) -> None:
        if event.previous is not None:
            self._drop(event.previous.object)
        if event.type != "DELETED":
            self._put(event.record.object)

    def _put(self, binding: Binding) -> None:
        meta = binding.metadata
        for subject in reversed(binding.subjects):
            by_namespace = self._by_subject.setdefault(subject_key(subject, meta.namespace), {})
            by_namespace.setdefault(meta.namespace, {})[meta.name] = (binding, subject)

    def _drop(self, binding: Binding) -> None:
        meta = binding.metadata
        for key in {subject_key(subject, meta.namespace) for subject in binding.subjects}:
            by_namespace = self._by_subject[key]
            del by_namespace[meta.namespace][meta.name]
            if not by_namespace[meta.namespace]:
                del by_namespace[meta.namespace]
            if not by_namespace:
                del self._by_subject[key]


ESCALATION_CHECKED = (Role, ClusterRole, RoleBinding, ClusterRoleBinding)


@dataclass(frozen=True, slots=True)
class Requester:
    """The user who requests a write, with its permissions.

    `rules_for(namespace)` returns the rules of the user's roles. `role_rules(reference, namespace)` returns those of
    a role; None if it does not exist.
    """

    user: User
    is_allowed: Callable[[Attributes], bool]
    rules_for: Callable[[str], Sequence[PolicyRule]]
    role_rules: Callable[[RoleRef, str], tuple[PolicyRule, ...] | None]


def check_escalation(resource: AnyResource, new: Any, old: Any, requester: Requester) -> None:
    """Require that the requester may write this role or binding. `old` is None for a create. Raises StatusError."""
    if SYSTEM_MASTERS in requester.user.groups or (old is not None and _only_releases(new, old)):
        return
    namespace, name = new.metadata.namespace, new.metadata.name
    if isinstance(new, Role | ClusterRole):
        # The path of a create has no name, so a rule with resourceNames does not match it.
        path_name = name if old is not None else ""
        if requester.is_allowed(
            Attributes("escalate", RBAC_GROUP, resource.plural, namespace=namespace, name=path_name)
        ):
            return
        _check_covered(resource, name, new.rules, namespace, requester)
        if (_is_aggregated(new) or _is_aggregated(old)) and rules_not_covered(
            requester.rules_for(namespace), ALL_RULES
        ):
            raise errors.forbidden(resource, name, "must have cluster-admin privileges to use the aggregationRule")
        return
    reference: RoleRef = new.role_ref
    plural = f"{reference.kind.lower()}s"
    if requester.is_allowed(Attributes("bind", reference.api_group, plural, namespace=namespace, name=reference.name)):
        return
    rules = requester.role_rules(reference, namespace)
    if rules is None:
        raise errors.status_error(404, "NotFound", f"{plural}.{RBAC_GROUP} {quoted(reference.name)} not found")
    _check_covered(resource, name, rules, namespace, requester)


MAX_COMPARISONS = 500_000
"""Comparisons of a combination with a rule of the requester in one escalation check: about 0.3 s."""


def _check_covered(
    resource: AnyResource, name: str, requested: Sequence[PolicyRule], namespace: str, requester: Requester
) -> None:
    held, requested = tuple(dict.fromkeys(requester.rules_for(namespace))), tuple(dict.fromkeys(requested))
    if set(ALL_RULES) <= set(held):
        return
    if len(held) * combinations(requested) > MAX_COMPARISONS:
        denial = "there are too many rules to compare with those of the requester: split the role"
        raise errors.forbidden(resource, name, denial)
    missing = rules_not_covered(held, requested)
    if missing:
        user, rules = requester.user, "\n".join(sorted(map(format_rule, missing)))
        user_text = f"user {quoted(user.name)} (groups={quoted_list(sorted(user.groups))})"
        denial = f"{user_text} is attempting to grant RBAC permissions not currently held:\n{rules}"
        raise errors.forbidden(resource, name, denial)


def _is_aggregated(role: Role | ClusterRole | None) -> bool:
    rule = role.aggregation_rule if isinstance(role, ClusterRole) else None
    return rule is not None and bool(rule.cluster_role_selectors)


def _only_releases(new: Any, old: Any) -> bool:
    """Return whether only finalizers and owner references change, which are what blocks deletion."""
    meta = msgspec.structs.replace(
        new.metadata, finalizers=old.metadata.finalizers, owner_references=old.metadata.owner_references
    )
    return bool(msgspec.structs.replace(new, metadata=meta) == old)

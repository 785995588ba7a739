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
from master.auth.attributes import SYSTEM_MASTERS, Attributes, Decision, PathAttributes, User
from master.resources.rbac import (
    RBAC_GROUP,
    ClusterRole,
    ClusterRoleBinding,
    PolicyRule,
    Role,
    RoleBinding,
    RoleRef,
    Subject,
)
from master.resources.rbac import ClusterRoleBinding as AnyBinding
from master.resources.resource import AnyResource
from master.resources.scheme import group_resource
from master.storage.interface import Key, Storage, WatchEvent

ANY = "*"
SERVICE_ACCOUNT_USER_PREFIX = "system:serviceaccount:"

ALL_RULES = (
    PolicyRule(verbs=(ANY,), api_groups=(ANY,), resources=(ANY,)),
    PolicyRule(verbs=(ANY,), non_resource_urls=(ANY,)),
)
"""What the administrator of a cluster may do."""


class BindingMatch(NamedTuple):
    """A binding that concerns somebody, through one of its subjects; `rules` is None if the role is not there."""

    binding: AnyBinding | RoleBinding
    subject: Subject
    rules: tuple[PolicyRule, ...] | None


def decide(asked: Attributes | PathAttributes, grants: Iterable[BindingMatch]) -> Decision:
    """Whether one of the grants allows it, and which; if none does, what is wrong with them."""
    missing = []
    allows = _allows if isinstance(asked, Attributes) else _allows_path
    for grant in grants:
        if grant.rules is None:
            missing.append(role_not_found(grant.binding.role_ref))
        elif any(allows(rule, asked) for rule in grant.rules):  # type: ignore[arg-type]
            return Decision(True, f"RBAC: allowed by {describe_match(grant)}")
    why = f"[{', '.join(missing)}]" if len(missing) > 1 else "".join(missing)
    return Decision(False, f"RBAC: {why}" if why else "")


def role_not_found(reference: RoleRef) -> str:
    """That a role is not there."""
    return f"{reference.kind.lower()}.{RBAC_GROUP} {quoted(reference.name)} not found"


def describe_match(grant: BindingMatch) -> str:
    """The grant as reasons name it."""
    binding, subject, meta = grant.binding, grant.subject, grant.binding.metadata
    name = f"{meta.name}/{meta.namespace}" if meta.namespace else meta.name
    who = subject.name
    if subject.kind == "ServiceAccount":
        who = f"{subject.name}/{subject.namespace or meta.namespace}"
    role = f"{binding.role_ref.kind} {quoted(binding.role_ref.name)}"
    return f"{binding.KIND} {quoted(name)} of {role} to {subject.kind} {quoted(who)}"


def subject_key(subject: Subject, namespace: str) -> tuple[str, str]:
    """(User or Group, name) of whom a subject in a binding of that namespace stands for."""
    if subject.kind == "ServiceAccount":
        return "User", f"{SERVICE_ACCOUNT_USER_PREFIX}{subject.namespace or namespace}:{subject.name}"
    return subject.kind, subject.name


def user_keys(user: User) -> Iterator[tuple[str, str]]:
    """(User or Group, name) of everything that somebody is, in the same order each time."""
    yield "User", user.name
    for group in sorted(user.groups):
        yield "Group", group


# --- one rule, one request --------------------------------------------------------------------------------------------


def _allows(rule: PolicyRule, asked: Attributes) -> bool:
    return (
        (asked.verb in rule.verbs or ANY in rule.verbs)
        and (asked.group in rule.api_groups or ANY in rule.api_groups)
        and _has_resource(rule.resources, asked.resource, asked.subresource)
        and (not rule.resource_names or asked.name in rule.resource_names)
    )


def _has_resource(resources: tuple[str, ...], resource: str, subresource: str) -> bool:
    if ANY in resources:
        return True
    if not subresource:
        return resource in resources
    return f"{resource}/{subresource}" in resources or f"*/{subresource}" in resources


def _allows_path(rule: PolicyRule, asked: PathAttributes) -> bool:
    verb = asked.verb in rule.verbs or ANY in rule.verbs
    return verb and any(_matches_path(path, asked.path) for path in rule.non_resource_urls)


def _matches_path(held: str, path: str) -> bool:
    """A `*` stands for the rest of the path, at its end only."""
    return held == path or (held.endswith(ANY) and path.startswith(held.rstrip(ANY)))


# --- rules against rules ----------------------------------------------------------------------------------------------


def rules_not_covered(held: Sequence[PolicyRule], wanted: Iterable[PolicyRule]) -> tuple[PolicyRule, ...]:
    """What the wanted rules allow beyond those that are held, with all verbs of one thing in one rule."""
    missing = [one for rule in wanted for one in _single_rules(rule) if not any(_covers(each, one) for each in held)]
    found: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for one in missing:
        place = (one.api_groups, one.resources, one.non_resource_urls, one.resource_names)
        verbs = found.setdefault(place, [])
        verbs += [verb for verb in one.verbs if verb not in verbs]
    return tuple(
        PolicyRule(verbs=tuple(verbs), api_groups=g, resources=r, non_resource_urls=u, resource_names=n)
        for (g, r, u, n), verbs in found.items()
    )


def _single_rules(rule: PolicyRule) -> Iterator[PolicyRule]:
    """The same in rules of one verb, one resource and one name each."""
    names: list[tuple[str, ...]] = [(name,) for name in rule.resource_names] or [()]
    for verb in rule.verbs:
        for group in rule.api_groups:
            for resource in rule.resources:
                for name in names:
                    yield PolicyRule(verbs=(verb,), api_groups=(group,), resources=(resource,), resource_names=name)
        for path in rule.non_resource_urls:
            yield PolicyRule(verbs=(verb,), non_resource_urls=(path,))


def _covers(held: PolicyRule, piece: PolicyRule) -> bool:
    if not _has_value(held.verbs, piece.verbs[0]):
        return False
    if piece.non_resource_urls:
        return any(_matches_path(path, piece.non_resource_urls[0]) for path in held.non_resource_urls)
    resource, _, subresource = piece.resources[0].partition("/")
    return (
        _has_value(held.api_groups, piece.api_groups[0])
        and _has_resource(held.resources, resource, subresource)
        and (not held.resource_names or any(name in held.resource_names for name in piece.resource_names))
    )


def _has_value(held: tuple[str, ...], one: str) -> bool:
    return ANY in held or one in held


def format_rule(rule: PolicyRule) -> str:
    """A rule as messages show it: {APIGroups:[""], Resources:["pods"], Verbs:["get"]}."""
    rows = (
        ("APIGroups", rule.api_groups),
        ("Resources", rule.resources),
        ("NonResourceURLs", rule.non_resource_urls),
        ("ResourceNames", rule.resource_names),
        ("Verbs", rule.verbs),
    )
    return "{" + ", ".join(f"{name}:{quoted_list(values)}" for name, values in rows if values) + "}"


def quoted(text: str) -> str:
    """A text in double quotes."""
    return msgspec.json.encode(text).decode()


def quoted_list(texts: Iterable[str]) -> str:
    """A list as the messages of the reference write it: ["a" "b"]."""
    return f"[{' '.join(map(quoted, texts))}]"


Binding = ClusterRoleBinding | RoleBinding


class BindingIndex:
    """What is on disk: a binding counts from when its writer has been answered."""

    def __init__(self, storage: Storage) -> None:
        self._store = storage
        self._held: dict[tuple[str, str], dict[str, dict[str, tuple[Binding, Subject]]]] = {}
        """(User or Group, name) → namespace, empty for the cluster → name of the binding."""
        for resource in (group_resource(ClusterRoleBinding), group_resource(RoleBinding)):
            for record in storage.list(resource):
                self._put(record.object)
            storage.watch(resource, self._follow)

    def of(self, user: User, namespace: str) -> Iterator[BindingMatch]:
        """What the user has in the whole cluster, and in the namespace if one is named."""
        found = [self._held[one] for one in user_keys(user) if one in self._held]
        for where in ("", namespace) if namespace else ("",):
            for held in found:
                for binding, subject in held.get(where, {}).values():
                    yield BindingMatch(binding, subject, self.rules(binding.role_ref, where))

    def rules(self, reference: RoleRef, namespace: str) -> tuple[PolicyRule, ...] | None:
        """What a role allows, as a binding of that namespace names it; None if there is no such role."""
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
            places = self._held.setdefault(subject_key(subject, meta.namespace), {})
            places.setdefault(meta.namespace, {})[meta.name] = (binding, subject)

    def _drop(self, binding: Binding) -> None:
        meta = binding.metadata
        for one in {subject_key(subject, meta.namespace) for subject in binding.subjects}:
            places = self._held[one]
            del places[meta.namespace][meta.name]
            if not places[meta.namespace]:
                del places[meta.namespace]
            if not places:
                del self._held[one]


ESCALATION_CHECKED = (Role, ClusterRole, RoleBinding, ClusterRoleBinding)


@dataclass(frozen=True, slots=True)
class Requester:
    """Who writes a role or a binding: what they may do, and what they hold in a namespace.

    `rules(reference, namespace)` are those of a role; None if it is not there.
    """

    user: User
    may: Callable[[Attributes], bool]
    held: Callable[[str], Sequence[PolicyRule]]
    rules: Callable[[RoleRef, str], tuple[PolicyRule, ...] | None]


def check_escalation(resource: AnyResource, new: Any, old: Any, giver: Requester) -> None:
    """Whether the role or the binding may be written so; `old` is None if it is new."""
    if SYSTEM_MASTERS in giver.user.groups or (old is not None and _only_releases(new, old)):
        return
    namespace, name = new.metadata.namespace, new.metadata.name
    if isinstance(new, Role | ClusterRole):
        # What a request does not name in its path, a rule cannot allow by name.
        path_name = name if old is not None else ""
        if giver.may(Attributes("escalate", RBAC_GROUP, resource.plural, namespace=namespace, name=path_name)):
            return
        _check_held(resource, name, new.rules, namespace, giver)
        if (_is_aggregated(new) or _is_aggregated(old)) and rules_not_covered(giver.held(namespace), ALL_RULES):
            raise errors.forbidden(resource, name, "must have cluster-admin privileges to use the aggregationRule")
        return
    reference: RoleRef = new.role_ref
    plural = f"{reference.kind.lower()}s"
    if giver.may(Attributes("bind", reference.api_group, plural, namespace=namespace, name=reference.name)):
        return
    rules = giver.rules(reference, namespace)
    if rules is None:
        raise errors.status_error(404, "NotFound", f"{plural}.{RBAC_GROUP} {quoted(reference.name)} not found")
    _check_held(resource, name, rules, namespace, giver)


def _check_held(
    resource: AnyResource, name: str, wanted: Sequence[PolicyRule], namespace: str, giver: Requester
) -> None:
    missing = rules_not_covered(giver.held(namespace), wanted)
    if missing:
        user, rules = giver.user, "\n".join(sorted(map(format_rule, missing)))
        who = f"user {quoted(user.name)} (groups={quoted_list(sorted(user.groups))})"
        why = f"{who} is attempting to grant RBAC permissions not currently held:\n{rules}"
        raise errors.forbidden(resource, name, why)


def _is_aggregated(role: Role | ClusterRole | None) -> bool:
    rule = role.aggregation_rule if isinstance(role, ClusterRole) else None
    return rule is not None and bool(rule.cluster_role_selectors)


def _only_releases(new: Any, old: Any) -> bool:
    """Whether nothing changes but what lets the object go: its finalizers and owners."""
    meta = msgspec.structs.replace(
        new.metadata, finalizers=old.metadata.finalizers, owner_references=old.metadata.owner_references
    )
    return bool(msgspec.structs.replace(new, metadata=meta) == old)

"""What roles allow: rules against a request, and rules against rules. Pure.

Source: the RBAC authorizer of Kubernetes. Rules only ever allow; what no rule allows is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from master.access.authorize import Attributes, Decision, PathAttributes, User
from master.kinds.rbac import GROUP, PolicyRule, RoleBinding, RoleRef, Subject
from master.kinds.rbac import ClusterRoleBinding as AnyBinding

ALL = "*"
SERVICE_ACCOUNT = "system:serviceaccount:"

EVERYTHING = (
    PolicyRule(verbs=(ALL,), api_groups=(ALL,), resources=(ALL,)),
    PolicyRule(verbs=(ALL,), non_resource_urls=(ALL,)),
)
"""What the administrator of a cluster may do."""


class Grant(NamedTuple):
    """A binding that concerns somebody, through one of its subjects; `rules` is None if the role is not there."""

    binding: AnyBinding | RoleBinding
    subject: Subject
    rules: tuple[PolicyRule, ...] | None


def decision(asked: Attributes | PathAttributes, grants: Iterable[Grant]) -> Decision:
    """Whether one of the grants allows it, and which; if none does, what is wrong with them."""
    missing = []
    allows = _allows if isinstance(asked, Attributes) else _allows_path
    for grant in grants:
        if grant.rules is None:
            missing.append(not_found(grant.binding.role_ref))
        elif any(allows(rule, asked) for rule in grant.rules):  # type: ignore[arg-type]
            return Decision(True, f"RBAC: allowed by {described(grant)}")
    why = f"[{', '.join(missing)}]" if len(missing) > 1 else "".join(missing)
    return Decision(False, f"RBAC: {why}" if why else "")


def not_found(reference: RoleRef) -> str:
    """That a role is not there."""
    return f"{reference.kind.lower()}.{GROUP} {quoted(reference.name)} not found"


def described(grant: Grant) -> str:
    """The grant as reasons name it."""
    binding, subject, meta = grant.binding, grant.subject, grant.binding.metadata
    name = f"{meta.name}/{meta.namespace}" if meta.namespace else meta.name
    who = subject.name
    if subject.kind == "ServiceAccount":
        who = f"{subject.name}/{subject.namespace or meta.namespace}"
    role = f"{binding.role_ref.kind} {quoted(binding.role_ref.name)}"
    return f"{binding.KIND} {quoted(name)} of {role} to {subject.kind} {quoted(who)}"


def holder(subject: Subject, namespace: str) -> tuple[str, str]:
    """(User or Group, name) of whom a subject in a binding of that namespace stands for."""
    if subject.kind == "ServiceAccount":
        return "User", f"{SERVICE_ACCOUNT}{subject.namespace or namespace}:{subject.name}"
    return subject.kind, subject.name


def holders(user: User) -> Iterator[tuple[str, str]]:
    """(User or Group, name) of everything that somebody is, in the same order each time."""
    yield "User", user.name
    for group in sorted(user.groups):
        yield "Group", group


# --- one rule, one request --------------------------------------------------------------------------------------------


def _allows(rule: PolicyRule, asked: Attributes) -> bool:
    return (
        (asked.verb in rule.verbs or ALL in rule.verbs)
        and (asked.group in rule.api_groups or ALL in rule.api_groups)
        and _has_resource(rule.resources, asked.resource, asked.subresource)
        and (not rule.resource_names or asked.name in rule.resource_names)
    )


def _has_resource(resources: tuple[str, ...], resource: str, subresource: str) -> bool:
    if ALL in resources:
        return True
    if not subresource:
        return resource in resources
    return f"{resource}/{subresource}" in resources or f"*/{subresource}" in resources


def _allows_path(rule: PolicyRule, asked: PathAttributes) -> bool:
    verb = asked.verb in rule.verbs or ALL in rule.verbs
    return verb and any(_covers_path(path, asked.path) for path in rule.non_resource_urls)


def _covers_path(held: str, path: str) -> bool:
    """A `*` stands for the rest of the path, at its end only."""
    return held == path or (held.endswith(ALL) and path.startswith(held.rstrip(ALL)))


# --- rules against rules ----------------------------------------------------------------------------------------------


def uncovered(held: Sequence[PolicyRule], wanted: Iterable[PolicyRule]) -> tuple[PolicyRule, ...]:
    """What the wanted rules allow beyond those that are held, with all verbs of one thing in one rule."""
    missing = [one for rule in wanted for one in _pieces(rule) if not any(_covers(each, one) for each in held)]
    found: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for one in missing:
        place = (one.api_groups, one.resources, one.non_resource_urls, one.resource_names)
        verbs = found.setdefault(place, [])
        verbs += [verb for verb in one.verbs if verb not in verbs]
    return tuple(
        PolicyRule(verbs=tuple(verbs), api_groups=g, resources=r, non_resource_urls=u, resource_names=n)
        for (g, r, u, n), verbs in found.items()
    )


def _pieces(rule: PolicyRule) -> Iterator[PolicyRule]:
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
    if not _has(held.verbs, piece.verbs[0]):
        return False
    if piece.non_resource_urls:
        return any(_covers_path(path, piece.non_resource_urls[0]) for path in held.non_resource_urls)
    resource, _, subresource = piece.resources[0].partition("/")
    return (
        _has(held.api_groups, piece.api_groups[0])
        and _has_resource(held.resources, resource, subresource)
        and (not held.resource_names or any(name in held.resource_names for name in piece.resource_names))
    )


def _has(held: tuple[str, ...], one: str) -> bool:
    return ALL in held or one in held


def shown_rule(rule: PolicyRule) -> str:
    """A rule as messages show it: {APIGroups:[""], Resources:["pods"], Verbs:["get"]}."""
    rows = (
        ("APIGroups", rule.api_groups),
        ("Resources", rule.resources),
        ("NonResourceURLs", rule.non_resource_urls),
        ("ResourceNames", rule.resource_names),
        ("Verbs", rule.verbs),
    )
    return "{" + ", ".join(f"{name}:{quoted_all(values)}" for name, values in rows if values) + "}"


def quoted(text: str) -> str:
    """A text in double quotes."""
    return msgspec.json.encode(text).decode()


def quoted_all(texts: Iterable[str]) -> str:
    """A list as the messages of the reference write it: ["a" "b"]."""
    return f"[{' '.join(map(quoted, texts))}]"

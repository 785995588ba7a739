"""The audit policy: the level and the stages at which a request is recorded. Pure.

Source: `Policy` of audit.k8s.io/v1 of Kubernetes. The first rule that matches a request decides; without one, nothing
is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from master.auth.attributes import Attributes, PathAttributes, User
from master.resources.group_resource import GroupResource
from reconcile.config_schema import MAX_PROBLEMS, kind_of, mismatches, problem

NONE, METADATA, REQUEST, REQUEST_RESPONSE = "None", "Metadata", "Request", "RequestResponse"
LEVELS = (NONE, METADATA, REQUEST, REQUEST_RESPONSE)
"""The levels, each with more than the one before."""

REQUEST_RECEIVED, RESPONSE_STARTED, RESPONSE_COMPLETE, PANIC = (
    "RequestReceived",
    "ResponseStarted",
    "ResponseComplete",
    "Panic",
)
STAGES = (REQUEST_RECEIVED, RESPONSE_STARTED, RESPONSE_COMPLETE, PANIC)

ANY = "*"

NEVER_IN_CLEAR = frozenset(
    (
        GroupResource("", "secrets"),
        GroupResource("oauth.openshift.io", "oauthclients"),
        GroupResource("oauth.openshift.io", "oauthauthorizetokens"),
        GroupResource("", "serviceaccounts/token"),
        GroupResource("authentication.k8s.io", "tokenreviews"),
    )
)
"""Resources whose contents are not recorded, whatever the policy says: they are passwords and tokens."""


class InvalidPolicy(ValueError):
    """A policy that cannot be used. `problems` are all its errors, one sentence for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class GroupResources(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Resources of one API group: `pods`, `pods/log`, `pods/*`, `*/status` or `*`; none means all."""

    group: str = ""
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()


class PolicyRule(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Requests, and their level. An empty field matches every request."""

    level: str
    users: tuple[str, ...] = ()
    user_groups: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    resources: tuple[GroupResources, ...] = ()
    namespaces: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")
    omit_stages: tuple[str, ...] = ()
    omit_managed_fields: bool | None = None


class Policy(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The rules in their order."""

    api_version: str = "audit.k8s.io/v1"
    kind: str = "Policy"
    metadata: dict[str, Any] = {}
    rules: tuple[PolicyRule, ...] = ()
    omit_stages: tuple[str, ...] = ()
    omit_managed_fields: bool | None = None


DEFAULT_POLICY = Policy(
    omit_stages=(REQUEST_RECEIVED,),
    rules=(
        PolicyRule(
            level=NONE,
            non_resource_urls=("/healthz*", "/livez*", "/readyz*", "/metrics", "/version", "/openapi/*"),
        ),
        PolicyRule(level=NONE, resources=(GroupResources("coordination.k8s.io", ("leases",)),)),
        PolicyRule(level=METADATA),
    ),
)
"""Metadata of all requests, except of those that components send all the time."""


def parse_policy(document: Any) -> Policy:
    """Return the policy in a document. Raises InvalidPolicy with all its errors."""
    if not isinstance(document, dict):
        raise InvalidPolicy([f"the document: found {kind_of(document)}; a Policy is accepted"])
    if problems := list(islice(mismatches(Policy, document), MAX_PROBLEMS)):
        raise InvalidPolicy(problems)
    policy = msgspec.convert(document, Policy)
    problems = [
        problem(path, found, f"{accepted} is accepted")
        for path, found, accepted in (
            ("apiVersion", policy.api_version, "audit.k8s.io/v1"),
            ("kind", policy.kind, "Policy"),
        )
        if found != accepted
    ]
    if not policy.rules:
        problems.append("rules: found an empty list; at least one rule is accepted")
    problems += _choice_problems("omitStages", policy.omit_stages, STAGES)
    for number, rule in enumerate(policy.rules):
        problems += _rule_problems(f"rules[{number}]", rule)
    if problems:
        raise InvalidPolicy(problems[:MAX_PROBLEMS])
    return policy


def _rule_problems(path: str, rule: PolicyRule) -> Iterator[str]:
    if rule.level not in LEVELS:
        yield problem(f"{path}.level", rule.level, f"{', '.join(LEVELS)} are accepted")
    yield from _choice_problems(f"{path}.omitStages", rule.omit_stages, STAGES)
    if rule.non_resource_urls and (rule.resources or rule.namespaces):
        yield f"{path}: found nonResourceURLs beside resources or namespaces; one of both is accepted"
    for number, url in enumerate(rule.non_resource_urls):
        if url != ANY and (not url.startswith("/") or ANY in url[:-1]):
            accepted = "a path such as /healthz is accepted, also with `*` at its end"
            yield problem(f"{path}.nonResourceURLs[{number}]", url, accepted)


def _choice_problems(path: str, values: Sequence[str], accepted: tuple[str, ...]) -> Iterator[str]:
    for number, value in enumerate(values):
        if value not in accepted:
            yield problem(f"{path}[{number}]", value, f"{', '.join(accepted)} are accepted")


@dataclass(frozen=True, slots=True)
class AuditLevel:
    """What is recorded of a request."""

    level: str = NONE
    omit_stages: frozenset[str] = frozenset()

    def includes(self, level: str) -> bool:
        """Return whether what belongs to a level is recorded."""
        return LEVELS.index(self.level) >= LEVELS.index(level)

    def records(self, stage: str) -> bool:
        """Return whether there is an event at a stage."""
        return self.level != NONE and stage not in self.omit_stages


def evaluate(policy: Policy, user: User, attributes: Attributes | PathAttributes) -> AuditLevel:
    """Return what is recorded of a request."""
    for rule in policy.rules:
        if _matches(rule, user, attributes):
            level = rule.level
            if isinstance(attributes, Attributes) and _resource(attributes) in NEVER_IN_CLEAR and level != NONE:
                level = METADATA
            return AuditLevel(level, frozenset((*policy.omit_stages, *rule.omit_stages)))
    return AuditLevel()


def _resource(attributes: Attributes) -> GroupResource:
    subresource = f"/{attributes.subresource}" if attributes.subresource else ""
    return GroupResource(attributes.group, f"{attributes.resource}{subresource}")


def _matches(rule: PolicyRule, user: User, attributes: Attributes | PathAttributes) -> bool:
    if rule.users and user.name not in rule.users:
        return False
    if rule.user_groups and user.groups.isdisjoint(rule.user_groups):
        return False
    if rule.verbs and attributes.verb not in rule.verbs:
        return False
    if rule.namespaces or rule.resources:
        return isinstance(attributes, Attributes) and _matches_resource(rule, attributes)
    if rule.non_resource_urls:
        return isinstance(attributes, PathAttributes) and any(
            _matches_url(url, attributes.path) for url in rule.non_resource_urls
        )
    return True


def _matches_url(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith(ANY) else path == pattern


def _matches_resource(rule: PolicyRule, attributes: Attributes) -> bool:
    if rule.namespaces and attributes.namespace not in rule.namespaces:
        return False
    if not rule.resources:
        return True
    resource, subresource = attributes.resource, attributes.subresource
    names = {ANY, f"{resource}/{subresource}" if subresource else resource}
    names |= {f"{resource}/*", f"*/{subresource}"} if subresource else set()
    return any(
        each.group == attributes.group
        and (not each.resources or not names.isdisjoint(each.resources))
        and (not each.resource_names or attributes.name in each.resource_names)
        for each in rule.resources
    )

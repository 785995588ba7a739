"""Reviews are answered at once and never kept. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from api.core.auth import (
    AccessStatus,
    LocalSubjectAccessReview,
    NonResourceAttributes,
    NonResourceRule,
    ResourceAttributes,
    ResourceRule,
    RulesStatus,
    SelfSubjectAccessReview,
    SelfSubjectReview,
    SelfSubjectReviewStatus,
    SelfSubjectRulesReview,
    SubjectAccessReview,
    TokenReview,
    TokenReviewStatus,
    UserInfo,
)
from api.meta.schema import MISSING, FieldError
from api.meta.types import Object
from master.access.authorize import Decision, User
from master.kinds.rbac import PolicyRule

AUTHENTICATION, AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class Judge:
    """How the server answers: `whose(token, audiences)`, `decision(user, access)`, and everything that roles allow
    somebody in a namespace: `rules(user, namespace)`.
    """

    whose: Callable[[str, tuple[str, ...]], TokenReviewStatus]
    decision: Callable[[User, ResourceAttributes | NonResourceAttributes], Decision]
    rules: Callable[[User, str], Iterable[PolicyRule]]


ABOUT_ONESELF = frozenset(("SelfSubjectReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview"))
"""Everybody who is somebody may ask these."""

KINDS: Mapping[tuple[str, str], type[Object]] = {
    (AUTHENTICATION, "tokenreviews"): TokenReview,
    (AUTHENTICATION, "selfsubjectreviews"): SelfSubjectReview,
    (AUTHORIZATION, "selfsubjectaccessreviews"): SelfSubjectAccessReview,
    (AUTHORIZATION, "selfsubjectrulesreviews"): SelfSubjectRulesReview,
    (AUTHORIZATION, "subjectaccessreviews"): SubjectAccessReview,
    (AUTHORIZATION, "localsubjectaccessreviews"): LocalSubjectAccessReview,
}
"""(group, plural) of every review."""

PLACES = {kind: place for place, kind in KINDS.items()}


def problems(review: Object) -> list[FieldError]:
    """What keeps a review from being answered."""
    if isinstance(review, TokenReview) and not review.spec.token:
        return [FieldError("spec.token", '""', "a token is required", MISSING)]
    if isinstance(review, SelfSubjectAccessReview):
        spec, found = review.spec, []
        if (spec.resource_attributes is None) == (spec.non_resource_attributes is None):
            why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            found.append(FieldError("spec", "given", why))
        if isinstance(review, LocalSubjectAccessReview) and spec.non_resource_attributes is not None:
            found.append(FieldError("spec.nonResourceAttributes", "given", "disallowed on this kind of request"))
        if review.KIND not in ABOUT_ONESELF and not spec.user and not spec.groups:
            found.append(FieldError("spec.user", '""', "at least one of user or group must be specified", MISSING))
        return found
    return []


def answered(review: Object, asker: User, judge: Judge) -> Object:
    """The review with its answer."""
    if isinstance(review, TokenReview):
        return replace(review, status=judge.whose(review.spec.token, review.spec.audiences))
    if isinstance(review, SelfSubjectReview):
        return replace(review, status=SelfSubjectReviewStatus(user_info=info(asker)))
    if isinstance(review, SelfSubjectRulesReview):
        return replace(review, status=_rules(asker, judge.rules(asker, review.spec.namespace)))
    assert isinstance(review, SelfSubjectAccessReview)
    who, spec = asker, review.spec
    if review.KIND not in ABOUT_ONESELF:
        who = User(spec.user, frozenset(spec.groups), spec.uid)
    access = spec.resource_attributes or spec.non_resource_attributes
    assert access is not None
    found = judge.decision(who, access)
    return replace(review, status=AccessStatus(allowed=found.allowed, reason=found.reason))


def info(user: User) -> UserInfo:
    """The user as reviews show it."""
    extra = {key: list(values) for key, values in user.extra}
    return UserInfo(username=user.name, uid=user.uid, groups=tuple(sorted(user.groups)), extra=extra or None)


def _rules(user: User, rules: Iterable[PolicyRule]) -> RulesStatus:
    found = tuple(rules)
    return RulesStatus(
        resource_rules=tuple(
            ResourceRule(
                verbs=one.verbs, api_groups=one.api_groups, resources=one.resources, resource_names=one.resource_names
            )
            for one in found
            if not one.non_resource_urls
        ),
        non_resource_rules=tuple(
            NonResourceRule(verbs=one.verbs, non_resource_urls=one.non_resource_urls)
            for one in found
            if one.non_resource_urls
        ),
        incomplete=bool(user.node),
    )

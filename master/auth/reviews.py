"""TokenReview, SelfSubjectReview and the *AccessReviews: decoding and answers. Pure. Raises `StatusError`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from api.core.auth import (
    LocalSubjectAccessReview,
    NonResourceAttributes,
    NonResourceRule,
    ResourceAttributes,
    ResourceRule,
    SelfSubjectAccessReview,
    SelfSubjectReview,
    SelfSubjectReviewStatus,
    SelfSubjectRulesReview,
    SubjectAccessReviewStatus,
    SubjectRulesReviewStatus,
    TokenReview,
    TokenReviewStatus,
    UserInfo,
)
from api.meta.schema import MISSING, FieldError, quoted, without_nulls
from api.meta.types import Object
from master import errors
from master.auth.attributes import Decision, User
from master.resources.rbac import PolicyRule


@dataclass(frozen=True, slots=True)
class ReviewBackend:
    """How the server answers: `whose(token, audiences)`, `decision(user, access)`, and everything that roles allow
    somebody in a namespace: `rules(user, namespace)`.
    """

    whose: Callable[[str, tuple[str, ...]], TokenReviewStatus]
    decision: Callable[[User, ResourceAttributes | NonResourceAttributes], Decision]
    rules: Callable[[User, str], Iterable[PolicyRule]]


SELF_REVIEWS = frozenset(("SelfSubjectReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview"))
"""Everybody who is somebody may ask these."""


def review_problems(review: Object) -> list[FieldError]:
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
        if review.KIND not in SELF_REVIEWS and not spec.user and not spec.groups:
            found.append(FieldError("spec.user", '""', "at least one of user or group must be specified", MISSING))
        return found
    return []


def answer_review(review: Object, asker: User, judge: ReviewBackend) -> Object:
    """The review with its answer."""
    if isinstance(review, TokenReview):
        return replace(review, status=judge.whose(review.spec.token, review.spec.audiences))
    if isinstance(review, SelfSubjectReview):
        return replace(review, status=SelfSubjectReviewStatus(user_info=user_info(asker)))
    if isinstance(review, SelfSubjectRulesReview):
        return replace(review, status=_rules_status(asker, judge.rules(asker, review.spec.namespace)))
    assert isinstance(review, SelfSubjectAccessReview)
    who, spec = asker, review.spec
    if review.KIND not in SELF_REVIEWS:
        who = User(spec.user, frozenset(spec.groups), spec.uid)
    access = spec.resource_attributes or spec.non_resource_attributes
    assert access is not None
    found = judge.decision(who, access)
    return replace(review, status=SubjectAccessReviewStatus(allowed=found.allowed, reason=found.reason))


def user_info(user: User) -> UserInfo:
    """The user as reviews show it."""
    extra = {key: list(values) for key, values in user.extra}
    return UserInfo(username=user.name, uid=user.uid, groups=tuple(sorted(user.groups)), extra=extra or None)


def _rules_status(user: User, rules: Iterable[PolicyRule]) -> SubjectRulesReviewStatus:
    found = tuple(rules)
    return SubjectRulesReviewStatus(
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


def decode_review(kind: type[Object], document: object, namespace: str) -> Object:
    """A review in a request's body, which is answered and not kept."""
    if not isinstance(document, dict):
        raise errors.bad_request(f"the body is not a {kind.KIND}: a JSON object is accepted")
    for name, wanted in (("kind", kind.KIND), ("apiVersion", kind.API_VERSION)):
        if document.get(name) not in (None, "", wanted):
            raise errors.bad_request(f"{name} is {quoted(document[name])}; {wanted} is accepted here")
    try:
        review = msgspec.convert(without_nulls(document), kind)
    except msgspec.ValidationError as error:
        raise errors.bad_request(f"the body is not a {kind.KIND}: {error}") from error
    found = review_problems(review)
    if found:
        raise errors.invalid_review(kind.KIND, found)
    if review.metadata.namespace not in ("", namespace):
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if isinstance(review, LocalSubjectAccessReview):
        access = review.spec.resource_attributes
        if access is not None and access.namespace != namespace:
            raise errors.bad_request(f"spec.resourceAttributes.namespace must match namespace: {namespace}")
    return review

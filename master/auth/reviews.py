"""TokenReview, SelfSubjectReview and the *AccessReviews: decoding and status. Pure. Raises `StatusError`."""

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
    """The functions of the server that reviews call.

    `review_token(token, audiences)` authenticates, `decide(user, access)` authorizes, and `rules_for(user, namespace)`
    returns all rules of the user's roles in a namespace.
    """

    review_token: Callable[[str, tuple[str, ...]], TokenReviewStatus]
    decide: Callable[[User, ResourceAttributes | NonResourceAttributes], Decision]
    rules_for: Callable[[User, str], Iterable[PolicyRule]]


MAX_GROUPS = 1000
"""Groups of the user in a review."""

MAX_EXTRA = 100
"""Keys of the user's extra attributes in a review, and values of each."""

MAX_RULES = 10_000
"""Rules in a response."""

SELF_REVIEWS = frozenset(("SelfSubjectReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview"))
"""Reviews of the requester. Every authenticated user may create them."""


def review_problems(review: Object) -> list[FieldError]:
    """Return what is wrong with a review."""
    if isinstance(review, TokenReview) and not review.spec.token:
        return [FieldError("spec.token", '""', "a token is required", MISSING)]
    if isinstance(review, SelfSubjectAccessReview):
        spec, problems = review.spec, []
        if (spec.resource_attributes is None) == (spec.non_resource_attributes is None):
            detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            problems.append(FieldError("spec", "given", detail))
        if isinstance(review, LocalSubjectAccessReview) and spec.non_resource_attributes is not None:
            problems.append(FieldError("spec.nonResourceAttributes", "given", "disallowed on this kind of request"))
        if review.KIND not in SELF_REVIEWS and not spec.user and not spec.groups:
            problems.append(FieldError("spec.user", '""', "at least one of user or group must be specified", MISSING))
        if len(spec.groups) > MAX_GROUPS:
            problems.append(too_many_groups("spec.groups", spec.groups))
        if not _is_extra(spec.extra):
            accepted = f"at most {MAX_EXTRA} keys with lists of at most {MAX_EXTRA} texts are accepted"
            problems.append(FieldError("spec.extra", "given", accepted))
        return problems
    return []


def too_many_groups(path: str, groups: tuple[str, ...]) -> FieldError:
    """Return the error of a review with more than MAX_GROUPS groups."""
    return FieldError(path, f"{len(groups)} groups", f"at most {MAX_GROUPS} are accepted")


def _is_extra(extra: object) -> bool:
    """Return whether a value has the form of the extra attributes of a user."""
    if extra is None:
        return True
    if not isinstance(extra, dict) or len(extra) > MAX_EXTRA:
        return False
    return all(
        isinstance(values, list) and len(values) <= MAX_EXTRA and all(isinstance(value, str) for value in values)
        for values in extra.values()
    )


def answer_review(review: Object, requester: User, backend: ReviewBackend) -> Object:
    """Return the review with its status."""
    if isinstance(review, TokenReview):
        return replace(review, status=backend.review_token(review.spec.token, review.spec.audiences))
    if isinstance(review, SelfSubjectReview):
        return replace(review, status=SelfSubjectReviewStatus(user_info=user_info(requester)))
    if isinstance(review, SelfSubjectRulesReview):
        return replace(review, status=_rules_status(requester, backend.rules_for(requester, review.spec.namespace)))
    assert isinstance(review, SelfSubjectAccessReview)
    user, spec = requester, review.spec
    if review.KIND not in SELF_REVIEWS:
        extra = tuple((key, tuple(values)) for key, values in (spec.extra or {}).items())
        user = User(spec.user, frozenset(spec.groups), spec.uid, extra)
    access = spec.resource_attributes or spec.non_resource_attributes
    assert access is not None
    decision = backend.decide(user, access)
    return replace(review, status=SubjectAccessReviewStatus(allowed=decision.allowed, reason=decision.reason))


def user_info(user: User) -> UserInfo:
    """Return the UserInfo of a user."""
    extra = {key: list(values) for key, values in user.extra}
    return UserInfo(username=user.name, uid=user.uid, groups=tuple(sorted(user.groups)), extra=extra or None)


def _rules_status(user: User, rules: Iterable[PolicyRule]) -> SubjectRulesReviewStatus:
    all_rules = tuple(rules)
    policy_rules = all_rules[:MAX_RULES]
    return SubjectRulesReviewStatus(
        resource_rules=tuple(
            ResourceRule(
                verbs=rule.verbs,
                api_groups=rule.api_groups,
                resources=rule.resources,
                resource_names=rule.resource_names,
            )
            for rule in policy_rules
            if not rule.non_resource_urls
        ),
        non_resource_rules=tuple(
            NonResourceRule(verbs=rule.verbs, non_resource_urls=rule.non_resource_urls)
            for rule in policy_rules
            if rule.non_resource_urls
        ),
        incomplete=bool(user.node) or len(all_rules) > MAX_RULES,
    )


def decode_review(kind: type[Object], document: object, namespace: str) -> Object:
    """Return the review in the body of a request. Raises StatusError."""
    if not isinstance(document, dict):
        raise errors.bad_request(f"the body is not a {kind.KIND}: a JSON object is accepted")
    for name, expected in (("kind", kind.KIND), ("apiVersion", kind.API_VERSION)):
        if document.get(name) not in (None, "", expected):
            raise errors.bad_request(f"{name} is {quoted(document[name])}; {expected} is accepted here")
    try:
        review = msgspec.convert(without_nulls(document), kind)
    except msgspec.ValidationError as error:
        raise errors.bad_request(f"the body is not a {kind.KIND}: {error}") from error
    problems = review_problems(review)
    if problems:
        raise errors.invalid_review(kind.KIND, problems)
    if review.metadata.namespace not in ("", namespace):
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if isinstance(review, LocalSubjectAccessReview):
        access = review.spec.resource_attributes
        if access is not None and access.namespace != namespace:
            raise errors.bad_request(f"spec.resourceAttributes.namespace must match namespace: {namespace}")
    return review

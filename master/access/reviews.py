"""Reviews: questions about who somebody is and what they may do, answered at once and never kept. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from api.objects import Object
from api.schema import MISSING, Problem
from api.value import Json, Value
from master.access.authorize import Decision, User
from master.kinds.rbac import PolicyRule

AUTHENTICATION, AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"


class UserInfo(Value, frozen=True):
    """Who somebody is."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Json = None


class TokenReviewSpec(Value, frozen=True):
    """A token, and for whom it is to be good."""

    token: str = ""
    audiences: tuple[str, ...] = ()


class TokenReviewStatus(Value, frozen=True):
    """Whose it is; `error` if it is no token of this server's."""

    authenticated: bool = False
    user: UserInfo = UserInfo()
    audiences: tuple[str, ...] = ()
    error: str = ""


class TokenReview(Object, frozen=True):
    """Whose token is that?"""

    API_VERSION = "authentication.k8s.io/v1"
    KIND = "TokenReview"

    spec: TokenReviewSpec = TokenReviewSpec()
    status: TokenReviewStatus = TokenReviewStatus()


class SelfSubjectReviewStatus(Value, frozen=True):
    """Who asks."""

    user_info: UserInfo = UserInfo()


class SelfSubjectReview(Object, frozen=True):
    """Who am I?"""

    API_VERSION = "authentication.k8s.io/v1"
    KIND = "SelfSubjectReview"

    status: SelfSubjectReviewStatus = SelfSubjectReviewStatus()


class ResourceAttributes(Value, frozen=True):
    """An access to objects; `*` stands for all."""

    namespace: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    field_selector: Json = None
    label_selector: Json = None


class NonResourceAttributes(Value, frozen=True):
    """An access to a path that names no object."""

    path: str = ""
    verb: str = ""


class AccessSpec(Value, frozen=True):
    """Exactly one access; `user` and `groups` only where somebody asks about others."""

    resource_attributes: ResourceAttributes | None = None
    non_resource_attributes: NonResourceAttributes | None = None
    user: str = ""
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Json = None


class AccessStatus(Value, frozen=True):
    """The answer; `allowed` is None before there is one."""

    allowed: bool | None = None
    denied: bool = False
    reason: str = ""
    evaluation_error: str = ""


class SelfSubjectAccessReview(Object, frozen=True):
    """May I do that?"""

    API_VERSION = "authorization.k8s.io/v1"
    KIND = "SelfSubjectAccessReview"

    spec: AccessSpec = AccessSpec()
    status: AccessStatus = AccessStatus()


class SubjectAccessReview(SelfSubjectAccessReview, frozen=True):
    """May somebody do that?"""

    KIND = "SubjectAccessReview"


class LocalSubjectAccessReview(SelfSubjectAccessReview, frozen=True):
    """May somebody do that in this project?"""

    KIND = "LocalSubjectAccessReview"


class RulesSpec(Value, frozen=True):
    """Where."""

    namespace: str = ""


class ResourceRule(Value, frozen=True):
    """Verbs that are allowed on resources; `*` stands for all."""

    verbs: tuple[str, ...]
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()


class NonResourceRule(Value, frozen=True):
    """Verbs that are allowed on paths."""

    verbs: tuple[str, ...]
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")


class RulesStatus(Value, frozen=True, omit_defaults=False):
    """What is allowed; `incomplete` if that cannot be said in rules."""

    resource_rules: tuple[ResourceRule, ...] = ()
    non_resource_rules: tuple[NonResourceRule, ...] = ()
    incomplete: bool = False


class SelfSubjectRulesReview(Object, frozen=True):
    """What may I do?"""

    API_VERSION = "authorization.k8s.io/v1"
    KIND = "SelfSubjectRulesReview"

    spec: RulesSpec = RulesSpec()
    status: RulesStatus = RulesStatus()


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


def problems(review: Object) -> list[Problem]:
    """What keeps a review from being answered."""
    if isinstance(review, TokenReview) and not review.spec.token:
        return [Problem("spec.token", '""', "a token is required", MISSING)]
    if isinstance(review, SelfSubjectAccessReview):
        spec, found = review.spec, []
        if (spec.resource_attributes is None) == (spec.non_resource_attributes is None):
            why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            found.append(Problem("spec", "given", why))
        if isinstance(review, LocalSubjectAccessReview) and spec.non_resource_attributes is not None:
            found.append(Problem("spec.nonResourceAttributes", "given", "disallowed on this kind of request"))
        if review.KIND not in ABOUT_ONESELF and not spec.user and not spec.groups:
            found.append(Problem("spec.user", '""', "at least one of user or group must be specified", MISSING))
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

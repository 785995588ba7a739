"""TokenReview, SubjectAccessReview and TokenRequest. Pure."""

from __future__ import annotations

import msgspec

from api.meta.types import Json, Object, Value


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


REVIEW_PATHS: dict[type[Object], str] = {
    TokenReview: "/apis/authentication.k8s.io/v1/tokenreviews",
    SubjectAccessReview: "/apis/authorization.k8s.io/v1/subjectaccessreviews",
}
"""The collections to which a node posts reviews."""


class BoundObjectReference(Value, frozen=True):
    """The object with which the token loses its worth; without a uid it is the one that has the name now."""

    kind: str = ""
    api_version: str = ""
    name: str = ""
    uid: str = ""


class TokenRequestSpec(Value, frozen=True):
    """`audiences` empty means the API server's own."""

    audiences: tuple[str, ...] = ()
    expiration_seconds: int | None = None
    bound_object_ref: BoundObjectReference | None = None


class TokenRequestStatus(Value, frozen=True):
    """The answer."""

    token: str = ""
    expiration_timestamp: str = ""


class TokenRequest(Object, frozen=True):
    """Is asked for and answered, never kept."""

    API_VERSION = "authentication.k8s.io/v1"
    KIND = "TokenRequest"

    spec: TokenRequestSpec = TokenRequestSpec()
    status: TokenRequestStatus = TokenRequestStatus()

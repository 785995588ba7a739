"""TokenReview, SubjectAccessReview and TokenRequest. Pure."""

from __future__ import annotations

import msgspec

from api.meta.types import Json, Object, Value
from api.meta.values import Time


class UserInfo(Value, frozen=True):
    """The identity of a user."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Json = None


class TokenReviewSpec(Value, frozen=True):
    """A token, and the audiences for which it must be valid."""

    token: str = ""
    audiences: tuple[str, ...] = ()


class TokenReviewStatus(Value, frozen=True):
    """The user of a token. `error` says why a token is not valid."""

    authenticated: bool = False
    user: UserInfo = UserInfo()
    audiences: tuple[str, ...] = ()
    error: str = ""


class TokenReview(Object, frozen=True):
    """A query whether a token is valid, and which user it belongs to."""

    API_VERSION = "authentication.k8s.io/v1"
    KIND = "TokenReview"
    NAMESPACED = False

    spec: TokenReviewSpec = TokenReviewSpec()
    status: TokenReviewStatus = TokenReviewStatus()


class SelfSubjectReviewStatus(Value, frozen=True):
    """The identity of the user who made the request."""

    user_info: UserInfo = UserInfo()


class SelfSubjectReview(Object, frozen=True):
    """A query for the identity of the user who makes the request."""

    API_VERSION = "authentication.k8s.io/v1"
    KIND = "SelfSubjectReview"
    NAMESPACED = False

    status: SelfSubjectReviewStatus = SelfSubjectReviewStatus()


class ResourceAttributes(Value, frozen=True):
    """An operation on objects. `*` stands for all."""

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
    """An operation on a path that does not name an object."""

    path: str = ""
    verb: str = ""


class SubjectAccessReviewSpec(Value, frozen=True):
    """An operation on objects or on a path. `user` and `groups` are those of the user whose access is reviewed."""

    resource_attributes: ResourceAttributes | None = None
    non_resource_attributes: NonResourceAttributes | None = None
    user: str = ""
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Json = None


class SubjectAccessReviewStatus(Value, frozen=True):
    """The result of an access review. `allowed` is null before the review."""

    allowed: bool | None = None
    denied: bool = False
    reason: str = ""
    evaluation_error: str = ""


class SelfSubjectAccessReview(Object, frozen=True):
    """A query whether the user who makes the request may perform an operation."""

    API_VERSION = "authorization.k8s.io/v1"
    KIND = "SelfSubjectAccessReview"
    NAMESPACED = False

    spec: SubjectAccessReviewSpec = SubjectAccessReviewSpec()
    status: SubjectAccessReviewStatus = SubjectAccessReviewStatus()


class SubjectAccessReview(SelfSubjectAccessReview, frozen=True):
    """A query whether a user may perform an operation."""

    KIND = "SubjectAccessReview"
    NAMESPACED = False


class LocalSubjectAccessReview(SelfSubjectAccessReview, frozen=True):
    """A query whether a user may perform an operation in one namespace."""

    KIND = "LocalSubjectAccessReview"
    NAMESPACED = True


class SelfSubjectRulesReviewSpec(Value, frozen=True):
    """The namespace of a rules review."""

    namespace: str = ""


class ResourceRule(Value, frozen=True):
    """Verbs that are allowed on resources. `*` stands for all."""

    verbs: tuple[str, ...]
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()


class NonResourceRule(Value, frozen=True):
    """Verbs that are allowed on paths."""

    verbs: tuple[str, ...]
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")


class SubjectRulesReviewStatus(Value, frozen=True, omit_defaults=False):
    """Allowed operations. `incomplete` is true if the rules do not express or list all of them."""

    resource_rules: tuple[ResourceRule, ...] = ()
    non_resource_rules: tuple[NonResourceRule, ...] = ()
    incomplete: bool = False


class SelfSubjectRulesReview(Object, frozen=True):
    """A query for everything that the user who makes the request may do in a namespace."""

    API_VERSION = "authorization.k8s.io/v1"
    KIND = "SelfSubjectRulesReview"
    NAMESPACED = False

    spec: SelfSubjectRulesReviewSpec = SelfSubjectRulesReviewSpec()
    status: SubjectRulesReviewStatus = SubjectRulesReviewStatus()


REVIEW_PATHS: dict[type[Object], str] = {
    TokenReview: "/apis/authentication.k8s.io/v1/tokenreviews",
    SubjectAccessReview: "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    SelfSubjectReview: "/apis/authentication.k8s.io/v1/selfsubjectreviews",
}
"""The collections to which clients post reviews."""


class BoundObjectReference(Value, frozen=True):
    """The object to which a token is bound: the token is invalid after its deletion. Without `uid`, the object that has
    the name at present.
    """

    kind: str = ""
    api_version: str = ""
    name: str = ""
    uid: str = ""


class TokenRequestSpec(Value, frozen=True):
    """The requested token. Empty `audiences` stand for the API server."""

    audiences: tuple[str, ...] = ()
    expiration_seconds: int | None = None
    bound_object_ref: BoundObjectReference | None = None


class TokenRequestStatus(Value, frozen=True):
    """The token."""

    token: str = ""
    expiration_timestamp: Time = ""


class TokenRequest(Object, frozen=True):
    """A request for a token of a service account. It is answered and not stored."""

    API_VERSION = "authentication.k8s.io/v1"
    KIND = "TokenRequest"

    spec: TokenRequestSpec = TokenRequestSpec()
    status: TokenRequestStatus = TokenRequestStatus()

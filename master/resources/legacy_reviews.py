"""The reviews of authorization.openshift.io: who may do what. They are never stored. Pure.

The response to an access review is of another kind than the review. Source: authorization.openshift.io/v1 of OpenShift.
"""

from __future__ import annotations

import msgspec

from api.meta.types import Json, Object, Value
from master.resources.legacy_rbac import AUTHORIZATION_GROUP, LegacyPolicyRule

_API_VERSION = f"{AUTHORIZATION_GROUP}/v1"


class ResourceAccessReview(Object, frozen=True):
    """A query which users and groups may perform an operation.

    `namespace` is that of the operation, empty for the whole cluster. `resource` is the plural name, with a
    subresource behind a slash. `resource_name` is the name of the object. `path` is that of an operation which names no
    resource, if `is_non_resource_url` is set. `content` is ignored.
    """

    API_VERSION = _API_VERSION
    KIND = "ResourceAccessReview"
    NAMESPACED = False

    namespace: str = ""
    verb: str = ""
    resource_api_group: str = msgspec.field(default="", name="resourceAPIGroup")
    resource_api_version: str = msgspec.field(default="", name="resourceAPIVersion")
    resource: str = ""
    resource_name: str = ""
    path: str = ""
    is_non_resource_url: bool = msgspec.field(default=False, name="isNonResourceURL")
    content: Json = None


class LocalResourceAccessReview(ResourceAccessReview, frozen=True):
    """A query which users and groups may perform an operation in the namespace of the review."""

    KIND = "LocalResourceAccessReview"
    NAMESPACED = True


class LegacySubjectAccessReview(ResourceAccessReview, frozen=True):
    """A query whether a user may perform an operation.

    Without `user` and `groups`, it is the user who makes the request. `scopes` limit the user; null stands for those of
    the request, if the user makes it.
    """

    KIND = "SubjectAccessReview"

    user: str = ""
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] | None = None


class LegacyLocalSubjectAccessReview(LegacySubjectAccessReview, frozen=True):
    """A query whether a user may perform an operation in the namespace of the review."""

    KIND = "LocalSubjectAccessReview"
    NAMESPACED = True


class SubjectAccessReviewResponse(Object, frozen=True):
    """Whether the operation is allowed, and why."""

    API_VERSION = _API_VERSION
    KIND = "SubjectAccessReviewResponse"

    namespace: str = ""
    allowed: bool | None = None
    reason: str = ""
    evaluation_error: str = ""


class ResourceAccessReviewResponse(Object, frozen=True):
    """The users and groups that may perform the operation.

    `evaluation_error` names the roles that do not exist; its name in JSON is that of OpenShift.
    """

    API_VERSION = _API_VERSION
    KIND = "ResourceAccessReviewResponse"

    namespace: str = ""
    users: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    evaluation_error: str = msgspec.field(default="", name="evalutionError")


class LegacySubjectRulesReviewStatus(Value, frozen=True):
    """The rules of all roles of the user."""

    rules: tuple[LegacyPolicyRule, ...] | None = None
    evaluation_error: str = ""


class LegacySelfSubjectRulesReviewSpec(Value, frozen=True):
    """`scopes` limit the user; null stands for those of the request."""

    scopes: tuple[str, ...] | None = None


class LegacySelfSubjectRulesReview(Object, frozen=True):
    """A query for the rules of the user who makes the request, in a namespace."""

    API_VERSION = _API_VERSION
    KIND = "SelfSubjectRulesReview"
    NAMESPACED = True

    spec: LegacySelfSubjectRulesReviewSpec = LegacySelfSubjectRulesReviewSpec()
    status: LegacySubjectRulesReviewStatus = LegacySubjectRulesReviewStatus()


class SubjectRulesReviewSpec(Value, frozen=True):
    """A user, its groups, and the scopes that limit it."""

    user: str = ""
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] | None = None


class SubjectRulesReview(Object, frozen=True):
    """A query for the rules of a user in a namespace."""

    API_VERSION = _API_VERSION
    KIND = "SubjectRulesReview"
    NAMESPACED = True

    spec: SubjectRulesReviewSpec = SubjectRulesReviewSpec()
    status: LegacySubjectRulesReviewStatus = LegacySubjectRulesReviewStatus()

"""Resources that are created and answered, and never stored: reviews, Binding, ProjectRequest. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from api.core.auth import (
    LocalSubjectAccessReview,
    SelfSubjectAccessReview,
    SelfSubjectReview,
    SelfSubjectRulesReview,
    SubjectAccessReview,
    TokenReview,
)
from api.meta.types import Object
from master.resources import namespaces
from master.resources.legacy_rbac import AUTHORIZATION_GROUP
from master.resources.legacy_reviews import (
    LegacyLocalSubjectAccessReview,
    LegacySelfSubjectRulesReview,
    LegacySubjectAccessReview,
    LocalResourceAccessReview,
    ResourceAccessReview,
    SubjectRulesReview,
)
from master.resources.security_context_constraints import SECURITY_GROUP
from master.resources.security_reviews import (
    PodSecurityPolicyReview,
    PodSecurityPolicySelfSubjectReview,
    PodSecurityPolicySubjectReview,
)

AUTHENTICATION, AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"

REVIEW_KINDS: Mapping[tuple[str, str], type[Object]] = {
    (AUTHENTICATION, "tokenreviews"): TokenReview,
    (AUTHENTICATION, "selfsubjectreviews"): SelfSubjectReview,
    (AUTHORIZATION, "selfsubjectaccessreviews"): SelfSubjectAccessReview,
    (AUTHORIZATION, "selfsubjectrulesreviews"): SelfSubjectRulesReview,
    (AUTHORIZATION, "subjectaccessreviews"): SubjectAccessReview,
    (AUTHORIZATION, "localsubjectaccessreviews"): LocalSubjectAccessReview,
    (AUTHORIZATION_GROUP, "subjectaccessreviews"): LegacySubjectAccessReview,
    (AUTHORIZATION_GROUP, "localsubjectaccessreviews"): LegacyLocalSubjectAccessReview,
    (AUTHORIZATION_GROUP, "resourceaccessreviews"): ResourceAccessReview,
    (AUTHORIZATION_GROUP, "localresourceaccessreviews"): LocalResourceAccessReview,
    (AUTHORIZATION_GROUP, "selfsubjectrulesreviews"): LegacySelfSubjectRulesReview,
    (AUTHORIZATION_GROUP, "subjectrulesreviews"): SubjectRulesReview,
    (SECURITY_GROUP, "podsecuritypolicyselfsubjectreviews"): PodSecurityPolicySelfSubjectReview,
    (SECURITY_GROUP, "podsecuritypolicysubjectreviews"): PodSecurityPolicySubjectReview,
    (SECURITY_GROUP, "podsecuritypolicyreviews"): PodSecurityPolicyReview,
}
"""(group, plural) of every review."""

REVIEW_RESOURCES = {kind: resource for resource, kind in REVIEW_KINDS.items()}


class VirtualResource(NamedTuple):
    """A resource whose objects are answered and never stored."""

    plural: str
    kind: str
    namespaced: bool = False
    verbs: tuple[str, ...] = ("create",)


VIRTUAL_RESOURCES: dict[str, tuple[VirtualResource, ...]] = {
    "": (VirtualResource("bindings", "Binding", namespaced=True),),
    namespaces.PROJECT_GROUP: (
        VirtualResource(namespaces.PROJECT_REQUESTS, namespaces.ProjectRequest.KIND, verbs=("create", "list")),
    ),
    **{
        group: tuple(
            VirtualResource(plural, kind.KIND, namespaced=kind.NAMESPACED)
            for (of, plural), kind in REVIEW_KINDS.items()
            if of == group
        )
        for group in (AUTHENTICATION, AUTHORIZATION, AUTHORIZATION_GROUP, SECURITY_GROUP)
    },
}
"""By group; all of version v1."""

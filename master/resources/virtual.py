"""Resources that are created and answered, and never stored: reviews. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from api.core.auth import (
    LocalSubjectAccessReview,
    SelfSubjectAccessReview,
    SelfSubjectReview,
    SelfSubjectRulesReview,
    SubjectAccessReview,
    TokenReview,
)
from api.meta.types import Object
from master.auth.reviews import AUTHENTICATION, AUTHORIZATION

REVIEW_KINDS: Mapping[tuple[str, str], type[Object]] = {
    (AUTHENTICATION, "tokenreviews"): TokenReview,
    (AUTHENTICATION, "selfsubjectreviews"): SelfSubjectReview,
    (AUTHORIZATION, "selfsubjectaccessreviews"): SelfSubjectAccessReview,
    (AUTHORIZATION, "selfsubjectrulesreviews"): SelfSubjectRulesReview,
    (AUTHORIZATION, "subjectaccessreviews"): SubjectAccessReview,
    (AUTHORIZATION, "localsubjectaccessreviews"): LocalSubjectAccessReview,
}
"""(group, plural) of every review."""

REVIEW_RESOURCES = {kind: place for place, kind in REVIEW_KINDS.items()}

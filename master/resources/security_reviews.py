"""The reviews of security.openshift.io: which SCC admits a pod of a template. They are never stored. Pure."""

from __future__ import annotations

from api.meta.types import Object, ObjectReference, Value
from master.resources.pod_template import PodTemplateSpec
from master.resources.security_context_constraints import SECURITY_GROUP


class PodSecurityPolicySelfSubjectReviewSpec(Value, frozen=True):
    """A template of a pod that the requester would create."""

    template: PodTemplateSpec = PodTemplateSpec()


class PodSecurityPolicySubjectReviewSpec(Value, frozen=True):
    """A template of a pod, and the user and the groups that would create it."""

    template: PodTemplateSpec = PodTemplateSpec()
    user: str = ""
    groups: tuple[str, ...] = ()


class PodSecurityPolicySubjectReviewStatus(Value, frozen=True):
    """The SCC that admits the pod, or the reason why none does.

    `template` is the template as the SCC completes it, if it names a service account.
    """

    allowed_by: ObjectReference | None = None
    reason: str = ""
    template: PodTemplateSpec | None = None


class PodSecurityPolicySelfSubjectReview(Object, frozen=True):
    """A query which SCC would admit a pod of the requester."""

    API_VERSION = f"{SECURITY_GROUP}/v1"
    KIND = "PodSecurityPolicySelfSubjectReview"
    NAMESPACED = True

    spec: PodSecurityPolicySelfSubjectReviewSpec = PodSecurityPolicySelfSubjectReviewSpec()
    status: PodSecurityPolicySubjectReviewStatus = PodSecurityPolicySubjectReviewStatus()


class PodSecurityPolicySubjectReview(Object, frozen=True):
    """A query which SCC would admit a pod of a user."""

    API_VERSION = f"{SECURITY_GROUP}/v1"
    KIND = "PodSecurityPolicySubjectReview"
    NAMESPACED = True

    spec: PodSecurityPolicySubjectReviewSpec = PodSecurityPolicySubjectReviewSpec()
    status: PodSecurityPolicySubjectReviewStatus = PodSecurityPolicySubjectReviewStatus()


class PodSecurityPolicyReviewSpec(Value, frozen=True):
    """A template of a pod, and service accounts under which it would run: by default that of the template."""

    template: PodTemplateSpec = PodTemplateSpec()
    service_account_names: tuple[str, ...] = ()


class ServiceAccountPodSecurityPolicyReviewStatus(PodSecurityPolicySubjectReviewStatus, frozen=True):
    """An SCC that admits the pod if it runs under the service account of this name."""

    name: str = ""


class PodSecurityPolicyReviewStatus(Value, frozen=True):
    """One entry for each service account and each SCC that admits the pod."""

    allowed_service_accounts: tuple[ServiceAccountPodSecurityPolicyReviewStatus, ...] = ()


class PodSecurityPolicyReview(Object, frozen=True):
    """A query which service accounts let a pod be admitted."""

    API_VERSION = f"{SECURITY_GROUP}/v1"
    KIND = "PodSecurityPolicyReview"
    NAMESPACED = True

    spec: PodSecurityPolicyReviewSpec = PodSecurityPolicyReviewSpec()
    status: PodSecurityPolicyReviewStatus = PodSecurityPolicyReviewStatus()

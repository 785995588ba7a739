"""The reviews of security.openshift.io: which SCC would admit a pod. Nothing is stored. Raises `StatusError`."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from api.core.pod import Pod
from api.meta.schema import MISSING, FieldError
from api.meta.types import Object, ObjectReference
from api.validation.pod_limits import check_numbers
from api.validation.registry import default
from master import errors
from master.admission.scc.matching import Trial, decide, try_scc
from master.admission.scc.order import sort_sccs
from master.admission.scc.plugin import candidates, denial, namespace_ranges, usable_by
from master.admission.service_account import service_account_user
from master.auth.attributes import Authorize, User
from master.resources.configuration import SERVICE_ACCOUNTS, ServiceAccount
from master.resources.pod_template import PodTemplateSpec, default_template
from master.resources.pods import PODS
from master.resources.scheme import group_resource
from master.resources.security_context_constraints import SecurityContextConstraints
from master.resources.security_reviews import (
    PodSecurityPolicyReview,
    PodSecurityPolicyReviewStatus,
    PodSecurityPolicySelfSubjectReview,
    PodSecurityPolicySubjectReview,
    PodSecurityPolicySubjectReviewStatus,
    ServiceAccountPodSecurityPolicyReviewStatus,
)
from master.storage.interface import Key, Storage, Transaction

SECURITY_REVIEWS = (PodSecurityPolicyReview, PodSecurityPolicySelfSubjectReview, PodSecurityPolicySubjectReview)

MAX_SERVICE_ACCOUNTS, MAX_CHECKED_CONTAINERS = 100, 400
"""Service accounts of one review, and the product of their number and that of the containers of the template."""


class SecurityReviews:
    """Answers the reviews of SCCs."""

    def __init__(self, storage: Storage, authorize: Authorize) -> None:
        self._store = storage
        self._authorize = authorize

    def answer(self, review: Object, requester: User, namespace: str) -> Object:
        """Return the review with its status."""
        assert isinstance(review, SECURITY_REVIEWS)
        if problems := list(check_numbers("spec.template.spec", review.spec.template.spec)):
            raise errors.invalid_review(review.KIND, problems)
        if isinstance(review, PodSecurityPolicyReview):
            return replace(review, status=self._review_accounts(review, namespace))
        if isinstance(review, PodSecurityPolicySelfSubjectReview):
            return replace(review, status=self._review_subject(review.spec.template, requester, namespace))
        assert isinstance(review, PodSecurityPolicySubjectReview)
        spec, account = review.spec, review.spec.template.spec.service_account_name
        if not spec.user and not spec.groups and not account:
            detail = "at least one of template.spec.serviceAccountName, user and groups must be given"
            raise errors.invalid_review(review.KIND, [FieldError("spec", "{}", detail, MISSING)])
        user = User(spec.user, frozenset(spec.groups)) if spec.user or spec.groups else None
        return replace(review, status=self._review_subject(spec.template, user, namespace))

    def _review_subject(
        self, template: PodTemplateSpec, user: User | None, namespace: str
    ) -> PodSecurityPolicySubjectReviewStatus:
        """Return the first SCC that the user or the template's service account may use and that admits the pod."""
        pod, objects = _pod(template, namespace), Transaction(self._store)
        account = service_account_user(pod) if template.spec.service_account_name else None
        ranges = namespace_ranges(PODS, pod, objects)
        usable = usable_by(account, user, namespace, self._authorize)
        decision = decide(pod, candidates(PODS, pod, objects), ranges, usable)
        if decision.admitted is None:
            return PodSecurityPolicySubjectReviewStatus(
                reason=f"CantAssignSecurityContextConstraintProvider: {denial(decision, pod, ranges)}"
            )
        return PodSecurityPolicySubjectReviewStatus(
            allowed_by=_reference(decision.admitted.scc),
            template=_completed(template, decision.admitted) if account is not None else None,
        )

    def _review_accounts(self, review: PodSecurityPolicyReview, namespace: str) -> PodSecurityPolicyReviewStatus:
        """Return the SCCs that each service account may use and that admit the pod."""
        template = review.spec.template
        named = review.spec.service_account_names or (template.spec.service_account_name or "default",)
        names = tuple(dict.fromkeys(named))
        if len(names) > MAX_SERVICE_ACCOUNTS:
            raise errors.bad_request(f"{len(names)} service accounts are named; {MAX_SERVICE_ACCOUNTS} are accepted")
        containers = len(template.spec.containers) + len(template.spec.init_containers)
        if len(names) > 1 and len(names) * containers > MAX_CHECKED_CONTAINERS:
            accepted = f"{MAX_CHECKED_CONTAINERS} containers in all are accepted"
            raise errors.bad_request(
                f"{containers} containers are checked for {len(names)} service accounts; {accepted}"
            )
        for name in names:
            if self._store.get_uncommitted(Key(group_resource(ServiceAccount), namespace, name)) is None:
                raise errors.bad_request(errors.not_found(SERVICE_ACCOUNTS, name).status.message)
        allowed = (entry for name in names for entry in self._allowed(template, name, namespace))
        return PodSecurityPolicyReviewStatus(allowed_service_accounts=tuple(allowed))

    def _allowed(
        self, template: PodTemplateSpec, name: str, namespace: str
    ) -> Iterator[ServiceAccountPodSecurityPolicyReviewStatus]:
        template = replace(template, spec=replace(template.spec, service_account_name=name))
        pod, objects = _pod(template, namespace), Transaction(self._store)
        ranges = namespace_ranges(PODS, pod, objects)
        usable = usable_by(service_account_user(pod), None, namespace, self._authorize)
        for scc in sort_sccs(candidates(PODS, pod, objects)):
            trial = try_scc(pod, scc, ranges, usable(scc))
            if trial.admits:
                yield ServiceAccountPodSecurityPolicyReviewStatus(
                    name=name, allowed_by=_reference(scc), template=_completed(template, trial)
                )


def _pod(template: PodTemplateSpec, namespace: str) -> Pod:
    return default(Pod(metadata=replace(template.metadata, namespace=namespace), spec=template.spec))


def _completed(template: PodTemplateSpec, trial: Trial) -> PodTemplateSpec:
    return default_template(replace(template, spec=trial.pod.spec))


def _reference(scc: SecurityContextConstraints) -> ObjectReference:
    meta = scc.metadata
    return ObjectReference(
        api_version=scc.API_VERSION,
        kind=scc.KIND,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )

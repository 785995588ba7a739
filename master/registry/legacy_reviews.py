"""The reviews of authorization.openshift.io: who may do what. Nothing is stored. Raises `StatusError`.

Source: the reviews of OpenShift's API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec.structs import replace

from api.core.auth import NonResourceAttributes, ResourceAttributes
from api.meta.schema import MISSING, FieldError
from api.meta.types import Object
from master import errors
from master.auth import rbac
from master.auth.attributes import SYSTEM_MASTERS, Attributes, User
from master.auth.authorization import Authorizer
from master.auth.rbac import Binding
from master.auth.reviews import MAX_GROUPS, MAX_RULES, too_many_groups
from master.auth.scopes import SCOPES_EXTRA, is_limited, scopes_of
from master.resources.legacy_rbac import AUTHORIZATION_GROUP, legacy_rule
from master.resources.legacy_reviews import (
    LegacyLocalSubjectAccessReview,
    LegacySelfSubjectRulesReview,
    LegacySubjectAccessReview,
    LegacySubjectRulesReviewStatus,
    LocalResourceAccessReview,
    ResourceAccessReview,
    ResourceAccessReviewResponse,
    SubjectAccessReviewResponse,
    SubjectRulesReview,
)
from master.resources.oauth import MAX_SCOPES
from master.resources.rbac import ClusterRoleBinding, RoleBinding, RoleRef
from master.resources.scheme import group_resource
from master.storage.interface import Storage

LEGACY_REVIEWS = (
    LegacyLocalSubjectAccessReview,
    LegacySelfSubjectRulesReview,
    LegacySubjectAccessReview,
    LocalResourceAccessReview,
    ResourceAccessReview,
    SubjectRulesReview,
)

WORK_PER_TURN = 1000
"""Bindings, rules and subjects that a review examines before other requests have their turn."""

MAX_SUBJECTS = 50_000
"""Users and groups in a response. Each binding of a project may have tens of thousands."""


class LegacyReviews:
    """Answers the reviews of authorization.openshift.io."""

    def __init__(self, storage: Storage, authorizer: Authorizer) -> None:
        self._store = storage
        self._authorizer = authorizer

    async def answer(self, review: Object, requester: User, namespace: str) -> Object:
        """Return the response to a review. `namespace` is that of the path, empty for reviews of the whole cluster."""
        if isinstance(review, LegacySelfSubjectRulesReview):
            _check_scopes(review, "spec.", review.spec.scopes)
            return replace(review, status=self._rules(_limited(requester, review.spec.scopes), namespace))
        if isinstance(review, SubjectRulesReview):
            spec = review.spec
            _check_subject(review, "spec.", spec.user, spec.groups, is_required=True)
            _check_scopes(review, "spec.", spec.scopes)
            user = _limited(User(spec.user, frozenset(spec.groups)), spec.scopes)
            return replace(review, status=self._rules(user, namespace))
        assert isinstance(review, ResourceAccessReview)
        _check_action(review)
        namespace = namespace or self._reviewed_namespace(review, requester)
        if not isinstance(review, LegacySubjectAccessReview):
            return await self._who_can(_attributes(review, namespace))
        _check_subject(review, "", review.user, review.groups, is_required=False)
        _check_scopes(review, "", review.scopes)
        user = User(review.user, frozenset(review.groups)) if review.user or review.groups else requester
        decision = self._authorizer.decide_review(_limited(user, review.scopes), _access(review, namespace))
        return SubjectAccessReviewResponse(namespace=namespace, allowed=decision.allowed, reason=decision.reason)

    def _reviewed_namespace(self, review: ResourceAccessReview, requester: User) -> str:
        """Return the namespace in a review of the whole cluster. Requires that the requester may review it there."""
        local = LocalResourceAccessReview.KIND
        if isinstance(review, LegacySubjectAccessReview):
            local = LegacyLocalSubjectAccessReview.KIND
        plural, namespace = f"{local.lower()}s", review.namespace
        self._authorizer.require_attributes(
            requester, Attributes("create", AUTHORIZATION_GROUP, plural, namespace=namespace)
        )
        return namespace

    def _rules(self, user: User, namespace: str) -> LegacySubjectRulesReviewStatus:
        rules = self._authorizer.rules_for(user, namespace)
        problems = []
        if len(rules) > MAX_RULES:
            problems.append(f"only the first {MAX_RULES} rules are listed")
        if is_limited(user):
            problems.append(f"scopes [{' '.join(scopes_of(user) or ())}] limit these rules further")
        return LegacySubjectRulesReviewStatus(
            rules=tuple(map(legacy_rule, rules[:MAX_RULES])), evaluation_error=", ".join(problems)
        )

    async def _who_can(self, attributes: Attributes) -> ResourceAccessReviewResponse:
        """Return the subjects of the bindings whose roles allow a request. Each role is evaluated once."""
        subjects, missing = {("Group", SYSTEM_MASTERS)}, set[str]()
        decisions: dict[tuple[RoleRef, str], bool] = {}
        work, problems = 0, list[str]()
        for binding in self._bindings(attributes.namespace):
            namespace = binding.metadata.namespace
            role = binding.role_ref, namespace
            if role not in decisions:
                rules = self._authorizer.role_rules(*role)
                decisions[role] = rules is not None and rbac.rules_allow(rules, attributes)
                work += len(rules or ())
                if rules is None and len(missing) < rbac.MAX_MISSING_ROLES:
                    missing.add(rbac.role_not_found(binding.role_ref))
            if decisions[role]:
                subjects |= {rbac.subject_key(subject, namespace) for subject in binding.subjects}
                work += len(binding.subjects)
            if len(subjects) > MAX_SUBJECTS:
                problems.append(f"only some of more than {MAX_SUBJECTS} users and groups are listed")
                break
            work += 1
            if work > WORK_PER_TURN:
                work = 0
                await asyncio.sleep(0)
        return ResourceAccessReviewResponse(
            namespace=attributes.namespace,
            users=tuple(sorted(name for kind, name in subjects if kind == "User")),
            groups=tuple(sorted(name for kind, name in subjects if kind == "Group")),
            evaluation_error=", ".join((*sorted(missing), *problems)),
        )

    def _bindings(self, namespace: str) -> Iterable[Binding]:
        """Return the bindings in the whole cluster, and in the namespace if there is one."""
        records = self._store.list(group_resource(ClusterRoleBinding))
        if namespace:
            records = [*records, *self._store.list(group_resource(RoleBinding), namespace)]
        return (record.object for record in records)


def _check_action(review: ResourceAccessReview) -> None:
    problems = []
    if not review.verb:
        problems.append(FieldError("verb", '""', "a verb is required", MISSING))
    if review.is_non_resource_url and type(review) is not LegacySubjectAccessReview:
        problems.append(FieldError("isNonResourceURL", "true", "disallowed on this kind of request"))
    elif not review.resource and not review.is_non_resource_url:
        problems.append(FieldError("resource", '""', "a resource is required", MISSING))
    if problems:
        raise errors.invalid_review(review.KIND, problems)


def _check_subject(review: Object, path: str, user: str, groups: tuple[str, ...], *, is_required: bool) -> None:
    problems = []
    if is_required and not user and not groups:
        problems.append(FieldError(f"{path}user", '""', "at least one of user and groups must be given", MISSING))
    if len(groups) > MAX_GROUPS:
        problems.append(too_many_groups(f"{path}groups", groups))
    if problems:
        raise errors.invalid_review(review.KIND, problems)


def _check_scopes(review: Object, path: str, scopes: tuple[str, ...] | None) -> None:
    if scopes is not None and len(scopes) > MAX_SCOPES:
        problem = FieldError(f"{path}scopes", f"{len(scopes)} scopes", f"at most {MAX_SCOPES} are accepted")
        raise errors.invalid_review(review.KIND, [problem])


def _limited(user: User, scopes: tuple[str, ...] | None) -> User:
    """Return the user limited by scopes. None leaves those that the user has; an empty list removes them."""
    if scopes is None:
        return user
    others = tuple((key, values) for key, values in user.extra if key != SCOPES_EXTRA)
    return User(user.name, user.groups, user.uid, (*others, (SCOPES_EXTRA, scopes)) if scopes else others)


def _attributes(review: ResourceAccessReview, namespace: str) -> Attributes:
    resource, _, subresource = review.resource.partition("/")
    return Attributes(review.verb, review.resource_api_group, resource, subresource, namespace, review.resource_name)


def _access(review: ResourceAccessReview, namespace: str) -> ResourceAttributes | NonResourceAttributes:
    if review.is_non_resource_url:
        return NonResourceAttributes(path=review.path, verb=review.verb)
    attributes = _attributes(review, namespace)
    return ResourceAttributes(
        namespace=attributes.namespace,
        verb=attributes.verb,
        group=attributes.group,
        version=review.resource_api_version,
        resource=attributes.resource,
        subresource=attributes.subresource,
        name=attributes.name,
    )

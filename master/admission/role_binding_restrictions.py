"""RoleBindingRestriction: a namespace with restrictions accepts only subjects in role bindings that one of them allows.
Pure.

Source: the admission plugin authorization.openshift.io/RestrictSubjectBindings of OpenShift.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from api.meta.selectors import LabelSelector, compile_selector
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.resources.group_resource import GroupResource
from master.resources.legacy_rbac import GROUP, SERVICE_ACCOUNT, USER, RoleBindingRestriction
from master.resources.rbac import RoleBinding, Subject
from master.resources.scheme import group_resource
from master.storage.interface import Key, Transaction

USERS, GROUPS = GroupResource("user.openshift.io", "users"), GroupResource("user.openshift.io", "groups")


class RoleBindingRestrictions(AdmissionPlugin):
    """Rejects role bindings with a new subject that the restrictions of their namespace do not allow."""

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        resource = request.resource
        if request.operation is Operation.DELETE or resource.stored_resource.type is not RoleBinding:
            return
        binding: RoleBinding = resource.to_stored(obj)
        namespace = binding.metadata.namespace
        restrictions = objects.list(group_resource(RoleBindingRestriction), namespace)
        if not restrictions:
            return
        old: frozenset[Subject] = frozenset(() if request.old is None else resource.to_stored(request.old).subjects)
        denied = [
            f'rolebindings to {subject.kind} "{subject.name}" are not allowed in project "{namespace}"'
            for subject in dict.fromkeys(binding.subjects)
            if subject not in old and not any(allows(each, subject, objects) for each in restrictions)
        ]
        if denied:
            shown = denied[: errors.MAX_FIELD_ERRORS]
            reason = shown[0] if len(denied) == 1 else f"[{', '.join(shown)}]"
            raise errors.forbidden(resource, binding.metadata.name, reason)


def allows(restriction: RoleBindingRestriction, subject: Subject, objects: Transaction) -> bool:
    """Return whether a restriction allows a subject. `objects` has the Users and Groups."""
    spec = restriction.spec
    if spec.user_restriction is not None and subject.kind == USER:
        users = spec.user_restriction
        return (
            subject.name in users.users
            or any(_is_member(group, subject.name, objects) for group in users.groups)
            or _has_labels(USERS, subject.name, users.labels, objects)
        )
    if spec.group_restriction is not None and subject.kind == GROUP:
        groups = spec.group_restriction
        return subject.name in groups.groups or _has_labels(GROUPS, subject.name, groups.labels, objects)
    if spec.service_account_restriction is not None and subject.kind == SERVICE_ACCOUNT:
        own = restriction.metadata.namespace
        namespace, accounts = subject.namespace or own, spec.service_account_restriction
        return namespace in accounts.namespaces or any(
            (account.namespace or own, account.name) == (namespace, subject.name)
            for account in accounts.service_accounts
        )
    return False


def _is_member(group: str, user: str, objects: Transaction) -> bool:
    stored = objects.get(Key(GROUPS, "", group))
    return stored is not None and user in (stored.users or ())


def _has_labels(resource: GroupResource, name: str, selectors: Iterable[LabelSelector], objects: Transaction) -> bool:
    """Return whether there is a User or Group of that name with labels that a selector matches."""
    stored = objects.get(Key(resource, "", name))
    return stored is not None and any(
        compile_selector(selector).matches(stored.metadata.labels) for selector in selectors
    )

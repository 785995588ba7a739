"""RoleBindingRestriction: a namespace with restrictions accepts only subjects in role bindings that one of them allows.
Pure.

Source: the admission plugin authorization.openshift.io/RestrictSubjectBindings of OpenShift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from api.meta.selectors import LabelSelector, compile_selector
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.resources.legacy_rbac import (
    GROUP,
    SERVICE_ACCOUNT,
    USER,
    RoleBindingRestriction,
    ServiceAccountRestriction,
)
from master.resources.rbac import RoleBinding, Subject
from master.resources.scheme import group_resource
from master.resources.users import Group, User
from master.storage.interface import Key, Transaction


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
        matchers = [matcher(restriction, objects) for restriction in restrictions]
        old: frozenset[Subject] = frozenset(() if request.old is None else resource.to_stored(request.old).subjects)
        denied = [
            f'rolebindings to {subject.kind} "{subject.name}" are not allowed in project "{namespace}"'
            for subject in dict.fromkeys(binding.subjects)
            if subject not in old and not any(matches(subject) for matches in matchers)
        ]
        if denied:
            shown = denied[: errors.MAX_FIELD_ERRORS]
            reason = shown[0] if len(denied) == 1 else f"[{', '.join(shown)}]"
            raise errors.forbidden(resource, binding.metadata.name, reason)


def matcher(restriction: RoleBindingRestriction, objects: Transaction) -> Callable[[Subject], bool]:
    """Return the function that says whether a restriction allows a subject. `objects` has the Users and Groups.

    A binding and a group may have tens of thousands of users, so names are looked up in sets.
    """
    spec, own = restriction.spec, restriction.metadata.namespace
    if (users := spec.user_restriction) is not None:
        names = frozenset(users.users).union(*(_members(group, objects) for group in users.groups))
        return _named_or_labelled(USER, names, User, users.labels, objects)
    if (groups := spec.group_restriction) is not None:
        return _named_or_labelled(GROUP, frozenset(groups.groups), Group, groups.labels, objects)
    accounts = spec.service_account_restriction or ServiceAccountRestriction()
    namespaces = frozenset(accounts.namespaces)
    named = frozenset((account.namespace or own, account.name) for account in accounts.service_accounts)

    def matches(subject: Subject) -> bool:
        namespace = subject.namespace or own
        return subject.kind == SERVICE_ACCOUNT and (namespace in namespaces or (namespace, subject.name) in named)

    return matches


def _members(group: str, objects: Transaction) -> tuple[str, ...]:
    stored: Group | None = objects.get(Key(group_resource(Group), "", group))
    return () if stored is None else stored.users


def _named_or_labelled(
    kind: str, names: frozenset[str], of: type[User | Group], labels: Iterable[LabelSelector], objects: Transaction
) -> Callable[[Subject], bool]:
    """Return the function that says whether a subject has one of the names, or an object with selected labels."""
    selectors = tuple(map(compile_selector, labels))

    def matches(subject: Subject) -> bool:
        if subject.kind != kind:
            return False
        if subject.name in names or not selectors:
            return subject.name in names
        stored = objects.get(Key(group_resource(of), "", subject.name))
        return stored is not None and any(selector.matches(stored.metadata.labels) for selector in selectors)

    return matches

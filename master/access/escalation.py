"""Nobody gives away by roles what they do not have themselves. Pure. Raises `answers.Failure`.

Source: the storage of roles and bindings in Kubernetes. Who has the verb `escalate` on roles, or `bind` on the
role that is bound, is not held to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from master.access.authorize import MASTERS, Attributes, User
from master.access.rbac import EVERYTHING, quoted, quoted_all, shown_rule, uncovered
from master.kinds.kind import AnyKind
from master.kinds.rbac import GROUP, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef
from master.wire import answers

GUARDED = (Role, ClusterRole, RoleBinding, ClusterRoleBinding)


@dataclass(frozen=True, slots=True)
class Giver:
    """Who writes a role or a binding: what they may do, and what they hold in a namespace.

    `rules(reference, namespace)` are those of a role; None if it is not there.
    """

    user: User
    may: Callable[[Attributes], bool]
    held: Callable[[str], Sequence[PolicyRule]]
    rules: Callable[[RoleRef, str], tuple[PolicyRule, ...] | None]


def check(kind: AnyKind, new: Any, old: Any, giver: Giver) -> None:
    """Whether the role or the binding may be written so; `old` is None if it is new."""
    if MASTERS in giver.user.groups or (old is not None and _only_goes(new, old)):
        return
    namespace, name = new.metadata.namespace, new.metadata.name
    if isinstance(new, Role | ClusterRole):
        # What a request does not name in its path, a rule cannot allow by name.
        path_name = name if old is not None else ""
        if giver.may(Attributes("escalate", GROUP, kind.plural, namespace=namespace, name=path_name)):
            return
        _check_held(kind, name, new.rules, namespace, giver)
        if (_gathers(new) or _gathers(old)) and uncovered(giver.held(namespace), EVERYTHING):
            raise answers.forbidden(kind, name, "must have cluster-admin privileges to use the aggregationRule")
        return
    reference: RoleRef = new.role_ref
    plural = f"{reference.kind.lower()}s"
    if giver.may(Attributes("bind", reference.api_group, plural, namespace=namespace, name=reference.name)):
        return
    rules = giver.rules(reference, namespace)
    if rules is None:
        raise answers.failure(404, "NotFound", f"{plural}.{GROUP} {quoted(reference.name)} not found")
    _check_held(kind, name, rules, namespace, giver)


def _check_held(kind: AnyKind, name: str, wanted: Sequence[PolicyRule], namespace: str, giver: Giver) -> None:
    missing = uncovered(giver.held(namespace), wanted)
    if missing:
        user, rules = giver.user, "\n".join(sorted(map(shown_rule, missing)))
        who = f"user {quoted(user.name)} (groups={quoted_all(sorted(user.groups))})"
        why = f"{who} is attempting to grant RBAC permissions not currently held:\n{rules}"
        raise answers.forbidden(kind, name, why)


def _gathers(role: Role | ClusterRole | None) -> bool:
    rule = role.aggregation_rule if isinstance(role, ClusterRole) else None
    return rule is not None and bool(rule.cluster_role_selectors)


def _only_goes(new: Any, old: Any) -> bool:
    """Whether nothing changes but what lets the object go: its finalizers and owners."""
    meta = msgspec.structs.replace(
        new.metadata, finalizers=old.metadata.finalizers, owner_references=old.metadata.owner_references
    )
    return bool(msgspec.structs.replace(new, metadata=meta) == old)

"""Terminating namespaces: deletes their contents, and removes them when they are empty. Pure."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.core.node import Namespace, NamespaceSpec
from api.core.pod import Pod
from api.meta.types import Condition, Object
from master.controllers.actions import Action, Delete, Failed, ForceDelete, Update, WriteAction, isolate_errors
from master.controllers.context import Lister
from master.resources.metadata import format_time
from master.resources.namespaces import KUBERNETES_FINALIZER
from master.resources.scheme import BY_KIND, STORED


def reconcile(
    namespaces: Iterable[Namespace], contents: Iterable[Object], now: datetime.datetime
) -> Iterator[WriteAction | Failed]:
    """Yield the deletion of the contents of terminating namespaces. Pods have their grace period, and objects with
    finalizers wait for them.
    """
    terminating = {
        terminating_namespace.metadata.name: terminating_namespace
        for terminating_namespace in namespaces
        if terminating_namespace.metadata.deletion_timestamp
    }
    remaining: dict[str, list[Object]] = defaultdict(list)
    deleting: set[str] = set()
    for obj in contents:
        namespace_name = obj.metadata.namespace
        if namespace_name not in terminating:
            continue
        if not isinstance(obj, Pod) and not obj.metadata.finalizers:
            yield ForceDelete(obj)
            continue
        remaining[namespace_name].append(obj)
        if not obj.metadata.deletion_timestamp:
            deleting.add(namespace_name)
            yield Delete(obj)

    def sync_namespace(namespace: Namespace) -> Iterator[WriteAction]:
        name = namespace.metadata.name
        if name not in remaining:
            yield from _finalize(namespace, now)
        elif name not in deleting:
            yield from _with_conditions(namespace, _remaining_conditions(remaining[name]), now)

    yield from isolate_errors(terminating.values(), sync_namespace)


def _finalize(namespace: Namespace, now: datetime.datetime) -> Iterator[WriteAction]:
    """Yield the removal of an empty namespace, unless it has other finalizers."""
    others = tuple(name for name in namespace.spec.finalizers if name != KUBERNETES_FINALIZER)
    if not others and not namespace.metadata.finalizers:
        yield ForceDelete(namespace)
        return
    finalized = replace(namespace, spec=NamespaceSpec(finalizers=others))
    conditions = _remaining_conditions([]) if namespace.status.conditions else ()
    update = next(_with_conditions(finalized, conditions, now), None)
    new = finalized if update is None else update.object
    if new != namespace:
        yield Update(new, namespace)


ConditionFields = tuple[str, str, str, str]
"""(type, status, reason, message) of a condition."""


def _remaining_conditions(items: Iterable[Object]) -> tuple[ConditionFields, ...]:
    """Return the conditions of a terminating namespace in which these objects remain."""
    items = tuple(items)
    kinds = Counter(f"{BY_KIND[obj.KIND].plural}.{BY_KIND[obj.KIND].group}" for obj in items)
    finalizers = Counter(name for obj in items for name in obj.metadata.finalizers)
    resources_text, finalizers_text = _format_counts(kinds, "has"), _format_counts(finalizers, "in")
    content_condition: ConditionFields = (
        "NamespaceContentRemaining",
        "False",
        "ContentRemoved",
        "All content successfully removed",
    )
    finalizer_condition: ConditionFields = (
        "NamespaceFinalizersRemaining", "False", "ContentHasNoFinalizers", "All content-preserving finalizers finished",
    )  # fmt: skip
    if kinds:
        message = f"Some resources are remaining: {resources_text}"
        content_condition = ("NamespaceContentRemaining", "True", "SomeResourcesRemain", message)
    if finalizers:
        message = f"Some content in the namespace has finalizers remaining: {finalizers_text}"
        finalizer_condition = ("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain", message)
    return (
        ("NamespaceDeletionDiscoveryFailure", "False", "ResourcesDiscovered", "All resources successfully discovered"),
        ("NamespaceDeletionGroupVersionParsingFailure", "False", "ParsedGroupVersions",
         "All legacy kube types successfully parsed"),
        ("NamespaceDeletionContentFailure", "False", "ContentDeleted",
         "All content successfully deleted, may be waiting on finalization"),
        content_condition,
        finalizer_condition,
    )  # fmt: skip


def _format_counts(counts: Counter[str], preposition: str) -> str:
    return ", ".join(f"{name} {preposition} {number} resource instances" for name, number in sorted(counts.items()))


def _with_conditions(
    namespace: Namespace, conditions: Iterable[ConditionFields], now: datetime.datetime
) -> Iterator[Update]:
    """Yield the namespace with these conditions, if they changed."""
    old = {condition.type: condition for condition in namespace.status.conditions}
    new = {
        condition.type: condition
        for condition in (_condition(condition, old.get(condition[0]), now) for condition in conditions)
    }
    if any(old.get(name) != condition for name, condition in new.items()):
        status = replace(namespace.status, conditions=tuple((old | new).values()))
        yield Update(replace(namespace, status=status), namespace)


def _condition(content: ConditionFields, old: Condition | None, now: datetime.datetime) -> Condition:
    name, status, reason, message = content
    since = old.last_transition_time if old is not None and old.status == status else format_time(now)
    return Condition(type=name, status=status, reason=reason, message=message, last_transition_time=since)


NAMESPACED_RESOURCES = tuple(resource.group_resource for resource in STORED if resource.namespaced)
"""Resources whose objects are deleted with their namespace."""


def sync_namespaces(lister: Lister) -> Iterable[Action]:
    """Delete the contents of terminating namespaces."""
    namespaces = lister.list(Namespace)
    if not any(namespace.metadata.deletion_timestamp for namespace in namespaces):
        return ()
    contents = [obj for resource in NAMESPACED_RESOURCES for obj in lister.list_resource(resource)]
    return reconcile(namespaces, contents, lister.now)

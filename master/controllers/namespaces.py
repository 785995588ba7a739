"""Terminating namespaces: deletes their contents, and removes them when they are empty. Pure."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from api.core.node import Namespace, NamespaceSpec
from api.core.pod import Pod
from api.meta.types import Condition, Object
from master.controllers.actions import Action, Delete, Failed, ForceDelete, Update, WriteAction, isolate_errors
from master.controllers.context import Lister
from master.registry.aggregated_apis import NO_CONTENTS, RemoteContents
from master.resources.metadata import format_time
from master.resources.namespaces import KUBERNETES_FINALIZER
from master.resources.scheme import STORED


def reconcile(
    namespaces: Iterable[Namespace],
    contents: Iterable[Object],
    now: datetime.datetime,
    remote: Callable[[Namespace], RemoteContents | None] = lambda _: NO_CONTENTS,
) -> Iterator[WriteAction | Failed]:
    """Yield the deletion of the contents of terminating namespaces. Pods have their grace period, and objects with
    finalizers wait for them. `remote` returns what a namespace still has on other servers, None if that is not known.

    Pods are deleted first, and everything else when they are gone: a pod that still runs keeps what it uses, such as
    its NetworkPolicies and ConfigMaps.
    """
    terminating = {
        terminating_namespace.metadata.name: terminating_namespace
        for terminating_namespace in namespaces
        if terminating_namespace.metadata.deletion_timestamp
    }
    remaining: dict[str, list[Object]] = defaultdict(list)
    deleting: set[str] = set()
    contents = [obj for obj in contents if obj.metadata.namespace in terminating]
    with_pods = {obj.metadata.namespace for obj in contents if isinstance(obj, Pod)}
    for obj in contents:
        namespace_name = obj.metadata.namespace
        if namespace_name in with_pods and not isinstance(obj, Pod):
            remaining[namespace_name].append(obj)
            continue
        if not isinstance(obj, Pod) and not obj.metadata.finalizers:
            yield ForceDelete(obj)
            continue
        remaining[namespace_name].append(obj)
        if not obj.metadata.deletion_timestamp:
            deleting.add(namespace_name)
            yield Delete(obj)

    def sync_namespace(namespace: Namespace) -> Iterator[WriteAction]:
        name, elsewhere = namespace.metadata.name, remote(namespace)
        if name not in remaining and elsewhere == NO_CONTENTS:
            yield from _finalize(namespace, now)
        elif name not in deleting and (name in remaining or elsewhere is not None):
            conditions = _remaining_conditions(remaining.get(name, ()), elsewhere or NO_CONTENTS)
            yield from _with_conditions(namespace, conditions, now)

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


MAX_MESSAGE = 4000
"""Characters of a condition that repeats what servers have said."""

ConditionFields = tuple[str, str, str, str]
"""(type, status, reason, message) of a condition."""


def _remaining_conditions(
    items: Iterable[Object], elsewhere: RemoteContents = NO_CONTENTS
) -> tuple[ConditionFields, ...]:
    """Return the conditions of a terminating namespace in which these objects remain, here and on other servers."""
    items = tuple(items)
    kinds = Counter(f"{obj.PLURAL}.{obj.API_VERSION.rpartition('/')[0]}" for obj in items)
    finalizers = Counter(name for obj in items for name in obj.metadata.finalizers)
    kinds.update(dict(elsewhere.remaining))
    finalizers.update(dict(elsewhere.finalizers))
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
    discovery_condition: ConditionFields = (
        "NamespaceDeletionDiscoveryFailure", "False", "ResourcesDiscovered", "All resources successfully discovered",
    )  # fmt: skip
    if elsewhere.discovery_failures:
        failing = ", ".join(elsewhere.discovery_failures)
        message = (
            f"Discovery failed for some groups, {len(elsewhere.discovery_failures)} failing: "
            f"unable to retrieve the complete list of server APIs: {failing}"
        )
        discovery_condition = ("NamespaceDeletionDiscoveryFailure", "True", "DiscoveryFailed", message[:MAX_MESSAGE])
    deletion_condition: ConditionFields = (
        "NamespaceDeletionContentFailure", "False", "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    )  # fmt: skip
    if elsewhere.failures:
        message = (
            f"Failed to delete all resource types, {len(elsewhere.failures)} remaining: {', '.join(elsewhere.failures)}"
        )
        deletion_condition = ("NamespaceDeletionContentFailure", "True", "ContentDeletionFailed", message[:MAX_MESSAGE])
    return (
        discovery_condition,
        ("NamespaceDeletionGroupVersionParsingFailure", "False", "ParsedGroupVersions",
         "All legacy kube types successfully parsed"),
        deletion_condition,
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
    custom = (kind.group_resource for kind in lister.custom_kinds if kind.stored.namespaced)
    contents = [obj for resource in (*NAMESPACED_RESOURCES, *custom) for obj in lister.list_resource(resource)]
    return reconcile(namespaces, contents, lister.now, lister.context.remote_contents)

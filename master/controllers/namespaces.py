"""Terminating namespaces: deletes their contents, and removes them when they are empty. Pure."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.core.node import Namespace, NamespaceSpec
from api.core.pod import Pod
from api.meta.types import Condition, Object
from master.controllers.actions import Action, Delete, ForceDelete, Update, WriteAction
from master.controllers.context import Lister
from master.resources.metadata import format_time
from master.resources.namespaces import KUBERNETES_FINALIZER
from master.resources.scheme import BY_KIND, STORED


def reconcile(
    namespaces: Iterable[Namespace], contents: Iterable[Object], now: datetime.datetime
) -> Iterator[WriteAction]:
    """Everything to be written. Pods have their grace period, and what bears finalizers waits for them."""
    ending = {item.metadata.name: item for item in namespaces if item.metadata.deletion_timestamp}
    left: dict[str, list[Object]] = defaultdict(list)
    busy: set[str] = set()
    for item in contents:
        place = item.metadata.namespace
        if place not in ending:
            continue
        if not isinstance(item, Pod) and not item.metadata.finalizers:
            yield ForceDelete(item)
            continue
        left[place].append(item)
        if not item.metadata.deletion_timestamp:
            busy.add(place)
            yield Delete(item)
    for name, namespace in ending.items():
        if name not in left:
            yield from _delete_contents(namespace, now)
        elif name not in busy:
            yield from _with_conditions(namespace, _remaining(left[name]), now)


def _delete_contents(namespace: Namespace, now: datetime.datetime) -> Iterator[WriteAction]:
    """It goes, unless somebody else holds it."""
    others = tuple(name for name in namespace.spec.finalizers if name != KUBERNETES_FINALIZER)
    if not others and not namespace.metadata.finalizers:
        yield ForceDelete(namespace)
        return
    let_go = replace(namespace, spec=NamespaceSpec(finalizers=others))
    rows = _remaining([]) if namespace.status.conditions else ()
    told = next(_with_conditions(let_go, rows, now), None)
    new = let_go if told is None else told.item
    if new != namespace:
        yield Update(new, namespace)


ConditionRow = tuple[str, str, str, str]
"""(type, status, reason, message) of a condition."""


def _remaining(items: Iterable[Object]) -> tuple[ConditionRow, ...]:
    """What is known of the end of a namespace in which these objects are left."""
    items = tuple(items)
    kinds = Counter(f"{BY_KIND[item.KIND].plural}.{BY_KIND[item.KIND].group}" for item in items)
    finalizers = Counter(name for item in items for name in item.metadata.finalizers)
    rest, held = _listed(kinds, "has"), _listed(finalizers, "in")
    contents: ConditionRow = (
        "NamespaceContentRemaining",
        "False",
        "ContentRemoved",
        "All content successfully removed",
    )
    waits: ConditionRow = (
        "NamespaceFinalizersRemaining", "False", "ContentHasNoFinalizers", "All content-preserving finalizers finished",
    )  # fmt: skip
    if kinds:
        words = f"Some resources are remaining: {rest}"
        contents = ("NamespaceContentRemaining", "True", "SomeResourcesRemain", words)
    if finalizers:
        words = f"Some content in the namespace has finalizers remaining: {held}"
        waits = ("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain", words)
    return (
        ("NamespaceDeletionDiscoveryFailure", "False", "ResourcesDiscovered", "All resources successfully discovered"),
        ("NamespaceDeletionGroupVersionParsingFailure", "False", "ParsedGroupVersions",
         "All legacy kube types successfully parsed"),
        ("NamespaceDeletionContentFailure", "False", "ContentDeleted",
         "All content successfully deleted, may be waiting on finalization"),
        contents,
        waits,
    )  # fmt: skip


def _listed(found: Counter[str], word: str) -> str:
    return ", ".join(f"{name} {word} {number} resource instances" for name, number in sorted(found.items()))


def _with_conditions(namespace: Namespace, rows: Iterable[ConditionRow], now: datetime.datetime) -> Iterator[Update]:
    """The namespace with these conditions, if they are news."""
    old = {row.type: row for row in namespace.status.conditions}
    new = {row.type: row for row in (_condition(row, old.get(row[0]), now) for row in rows)}
    if any(old.get(name) != row for name, row in new.items()):
        status = replace(namespace.status, conditions=tuple((old | new).values()))
        yield Update(replace(namespace, status=status), namespace)


def _condition(row: ConditionRow, old: Condition | None, now: datetime.datetime) -> Condition:
    name, status, reason, message = row
    since = old.last_transition_time if old is not None and old.status == status else format_time(now)
    return Condition(type=name, status=status, reason=reason, message=message, last_transition_time=since)


NAMESPACED_KINDS = tuple(kind.name for kind in STORED if kind.namespaced)


def sync_namespaces(lister: Lister) -> Iterable[Action]:
    """Delete the contents of terminating namespaces."""
    namespaces = lister.list("Namespace")
    if not any(item.metadata.deletion_timestamp for item in namespaces):
        return ()
    return reconcile(namespaces, [item for kind in NAMESPACED_KINDS for item in lister.list(kind)], lister.now)

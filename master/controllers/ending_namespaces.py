"""Namespaces on their way out: what is in them is deleted, and they go when nothing is left. Pure."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.core.node import Namespace, NamespaceSpec
from api.core.pod import Pod
from api.meta.types import Condition, Object
from master.kinds import BY_NAME
from master.kinds.kind import show_time
from master.kinds.namespace import FINALIZER
from master.writing.outcomes import Change, Drop, End, Write


def passes(namespaces: Iterable[Namespace], contents: Iterable[Object], now: datetime.datetime) -> Iterator[Write]:
    """Everything to be written. Pods have their grace period, and what bears finalizers waits for them."""
    ending = {item.metadata.name: item for item in namespaces if item.metadata.deletion_timestamp}
    left: dict[str, list[Object]] = defaultdict(list)
    busy: set[str] = set()
    for item in contents:
        place = item.metadata.namespace
        if place not in ending:
            continue
        if not isinstance(item, Pod) and not item.metadata.finalizers:
            yield Drop(item)
            continue
        left[place].append(item)
        if not item.metadata.deletion_timestamp:
            busy.add(place)
            yield End(item)
    for name, namespace in ending.items():
        if name not in left:
            yield from _emptied(namespace, now)
        elif name not in busy:
            yield from _told(namespace, _remaining(left[name]), now)


def _emptied(namespace: Namespace, now: datetime.datetime) -> Iterator[Write]:
    """It goes, unless somebody else holds it."""
    others = tuple(name for name in namespace.spec.finalizers if name != FINALIZER)
    if not others and not namespace.metadata.finalizers:
        yield Drop(namespace)
        return
    let_go = replace(namespace, spec=NamespaceSpec(finalizers=others))
    rows = _remaining([]) if namespace.status.conditions else ()
    told = next(_told(let_go, rows, now), None)
    new = let_go if told is None else told.item
    if new != namespace:
        yield Change(new, namespace)


Row = tuple[str, str, str, str]
"""(type, status, reason, message) of a condition."""


def _remaining(items: Iterable[Object]) -> tuple[Row, ...]:
    """What is known of the end of a namespace in which these objects are left."""
    items = tuple(items)
    kinds = Counter(f"{BY_NAME[item.KIND].plural}.{BY_NAME[item.KIND].group}" for item in items)
    finalizers = Counter(name for item in items for name in item.metadata.finalizers)
    rest, held = _listed(kinds, "has"), _listed(finalizers, "in")
    contents: Row = ("NamespaceContentRemaining", "False", "ContentRemoved", "All content successfully removed")
    waits: Row = (
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


def _told(namespace: Namespace, rows: Iterable[Row], now: datetime.datetime) -> Iterator[Change]:
    """The namespace with these conditions, if they are news."""
    old = {row.type: row for row in namespace.status.conditions}
    new = {row.type: row for row in (_condition(row, old.get(row[0]), now) for row in rows)}
    if any(old.get(name) != row for name, row in new.items()):
        status = replace(namespace.status, conditions=tuple((old | new).values()))
        yield Change(replace(namespace, status=status), namespace)


def _condition(row: Row, old: Condition | None, now: datetime.datetime) -> Condition:
    name, status, reason, message = row
    since = old.last_transition_time if old is not None and old.status == status else show_time(now)
    return Condition(type=name, status=status, reason=reason, message=message, last_transition_time=since)

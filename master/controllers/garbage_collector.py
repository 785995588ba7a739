"""Garbage collection by owner references: cascade, foreground and orphan. Pure.

An object is a dependent of the owners that its `ownerReferences` name by uid, kind and name, if they are
cluster-scoped or in its own namespace. A dependent is deleted when none of its owners is left. An owner that is
deleted with the policy Foreground waits for the dependents that block it; they are deleted unless another owner keeps
them. With Orphan it releases all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from msgspec.structs import replace

from api.meta.types import Object, OwnerReference
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, Failed, Update, WriteAction, isolate_errors
from master.controllers.context import FREQUENTLY_WRITTEN_RESOURCES, Lister
from master.registry.strategy import BACKGROUND, FOREGROUND, ORPHAN, finalizer_policy
from master.resources.resource import AnyResource
from master.resources.scheme import SERVED, STORED
from master.storage.interface import Record, WatchEvent

Resolves = Callable[[OwnerReference, Object], bool]
"""Whether the garbage collector can tell if the owner that a reference of an object names exists."""

MAX_OWNER_EVENTS = 10
"""Number of events about owners in other namespaces that one object gets in a pass."""

WarnOwner = Callable[[Object, OwnerReference], Create]
"""Returns the event that an owner reference of an object names nothing in its namespace."""


@dataclass(frozen=True, slots=True)
class _OwnerGraph:
    """Owners and dependents by uid. `waiting` are the owners that are deleted after their dependents, `blocking` the
    pairs of such an owner and a dependent that blocks it.
    """

    objects: Mapping[str, Object]
    waiting: frozenset[str]
    blocking: frozenset[tuple[str, str]]
    dependents: Mapping[str, Sequence[Object]]
    resolves: Resolves

    def exists(self, reference: OwnerReference, obj: Object) -> bool:
        """Return whether an owner exists. One that cannot be resolved here counts as existing."""
        return _is_owner(self.objects.get(reference.uid), reference, obj) or not self.resolves(reference, obj)

    def keeps(self, reference: OwnerReference, obj: Object) -> bool:
        """Return whether an owner exists and is not waiting for the object's deletion."""
        return self.exists(reference, obj) and not (
            reference.uid in self.waiting and _is_owner(self.objects[reference.uid], reference, obj)
        )

    def is_owned(self, obj: Object) -> bool:
        """Return whether an owner keeps the object."""
        return any(self.keeps(reference, obj) for reference in obj.metadata.owner_references)

    def is_elsewhere(self, reference: OwnerReference, obj: Object) -> bool:
        """Return whether a reference of an object is to an owner in another namespace."""
        owner = self.objects.get(reference.uid)
        return owner is not None and not _is_reachable(owner, obj)


def reconcile(
    objects: Sequence[Object], resolves: Resolves, cross_namespace_event: WarnOwner
) -> Iterator[WriteAction | Failed]:
    """Yield the deletions and released references. `cross_namespace_event` makes the event of an object that loses an
    owner in another namespace.
    """
    graph = _owner_graph(objects, resolves)
    handled: set[str] = set()

    def finish_deletion(obj: Object) -> Iterator[Update | Delete]:
        for action in _finish_deletion(obj, graph, handled):
            handled.add(action.object.metadata.uid)
            yield action

    def release(obj: Object) -> Iterator[WriteAction]:
        if obj.metadata.uid not in handled:
            yield from _release_deleted_owners(obj, graph, cross_namespace_event)

    yield from isolate_errors((obj for obj in objects if obj.metadata.deletion_timestamp), finish_deletion)
    dependents = (obj for obj in objects if obj.metadata.owner_references and not obj.metadata.deletion_timestamp)
    yield from isolate_errors(dependents, release)


def _owner_graph(objects: Sequence[Object], resolves: Resolves) -> _OwnerGraph:
    by_uid = {obj.metadata.uid: obj for obj in objects}
    dependents: dict[str, list[Object]] = defaultdict(list)
    waiting = frozenset(obj.metadata.uid for obj in objects if _is_foreground(obj))
    blocking: set[tuple[str, str]] = set()
    for obj in objects:
        references = obj.metadata.owner_references
        # An object may name an owner any number of times.
        for uid in {reference.uid for reference in references if _is_owner(by_uid.get(reference.uid), reference, obj)}:
            dependents[uid].append(obj)
        blocking |= {
            (reference.uid, obj.metadata.uid)
            for reference in references
            if reference.uid in waiting and reference.block_owner_deletion
        }
    return _OwnerGraph(by_uid, waiting, frozenset(blocking), dependents, resolves)


def _release_deleted_owners(obj: Object, graph: _OwnerGraph, cross_namespace_event: WarnOwner) -> Iterator[WriteAction]:
    """Yield an object without its missing owners, or its deletion if none is left."""
    references = obj.metadata.owner_references
    remaining: list[OwnerReference] = []
    missing: list[OwnerReference] = []
    for reference in references:
        (remaining if graph.exists(reference, obj) else missing).append(reference)
    if not missing:
        return
    elsewhere = {reference.uid: reference for reference in missing if graph.is_elsewhere(reference, obj)}
    for reference in islice(elsewhere.values(), MAX_OWNER_EVENTS):
        yield cross_namespace_event(obj, reference)
    if remaining:
        yield Update(_with_metadata(obj, owner_references=tuple(remaining)), obj)
    else:
        yield Delete(obj, finalizer_policy(obj) or BACKGROUND)


def _is_reachable(owner: Object, obj: Object) -> bool:
    return owner.metadata.namespace in ("", obj.metadata.namespace)


def _is_owner(owner: Object | None, reference: OwnerReference, obj: Object) -> bool:
    """Return whether the object with the uid of a reference is the one that the reference names."""
    return (
        owner is not None
        and (owner.KIND, owner.metadata.name) == (reference.kind, reference.name)
        and _is_reachable(owner, obj)
    )


def _is_foreground(obj: Object) -> bool:
    return bool(obj.metadata.deletion_timestamp) and FOREGROUND in obj.metadata.finalizers


def _finish_deletion(owner: Object, graph: _OwnerGraph, handled: set[str]) -> Iterator[Update | Delete]:
    finalizers, uid = owner.metadata.finalizers, owner.metadata.uid
    dependents = [dependent for dependent in graph.dependents.get(uid, ()) if dependent is not owner]
    if ORPHAN in finalizers:
        # An object is written once in a pass. The next pass releases the dependents that are written already.
        released = [dependent for dependent in dependents if dependent.metadata.uid not in handled]
        for dependent in released:
            remaining = tuple(reference for reference in dependent.metadata.owner_references if reference.uid != uid)
            yield Update(_with_metadata(dependent, owner_references=remaining), dependent)
        if len(released) < len(dependents):
            return
        yield Update(_with_metadata(owner, finalizers=tuple(name for name in finalizers if name != ORPHAN)), owner)
    elif FOREGROUND in finalizers:
        blocking = any((uid, dependent.metadata.uid) in graph.blocking for dependent in dependents)
        for dependent in dependents:
            if not dependent.metadata.deletion_timestamp and dependent.metadata.uid not in handled:
                yield _release_dependent(dependent, graph)
        if not blocking:
            yield Update(
                _with_metadata(owner, finalizers=tuple(name for name in finalizers if name != FOREGROUND)), owner
            )


def _release_dependent(obj: Object, graph: _OwnerGraph) -> Update | Delete:
    """Return the action for a dependent of an owner that waits for it. It keeps its other owners, or is deleted after
    its own dependents. In a cycle of owners one is deleted first, so its references no longer block.
    """
    references, own_dependents = obj.metadata.owner_references, graph.dependents.get(obj.metadata.uid, ())
    if graph.is_owned(obj):
        remaining = tuple(reference for reference in references if graph.keeps(reference, obj))
        return Update(_with_metadata(obj, owner_references=remaining), obj)
    if any(_is_foreground(dependent) for dependent in own_dependents) and any(
        reference.block_owner_deletion for reference in references
    ):
        return Update(
            _with_metadata(
                obj, owner_references=tuple(replace(reference, block_owner_deletion=False) for reference in references)
            ),
            obj,
        )
    return Delete(obj, "Foreground" if own_dependents else finalizer_policy(obj) or BACKGROUND)


def _with_metadata(obj: Object, **changes: tuple[object, ...]) -> Object:
    return replace(obj, metadata=replace(obj.metadata, **changes))


COLLECTED_RESOURCES = tuple(
    resource.group_resource for resource in STORED if resource.group_resource not in FREQUENTLY_WRITTEN_RESOURCES
)
"""Resources whose objects are garbage collected, and can be owners of others."""

_OWNER_RESOURCES = {
    (resource.type.API_VERSION, resource.kind): resource.stored_resource
    for resource in SERVED
    if resource.kind == resource.stored_kind and resource.stored_resource in STORED
}
"""API version and kind of an owner reference → the resource as which the owner is stored."""


def concerns_garbage_collector(event: WatchEvent) -> bool:
    """Return whether the garbage collector may have to act after an event.

    It decides by owner references, finalizers and deletion. No other change of an object concerns it, nor does a new
    object without owners.
    """
    if event.type == "DELETED":
        return True
    meta = event.record.head.metadata
    if event.previous is None:
        return bool(meta.owner_references or meta.deletion_timestamp)
    old = event.previous.head.metadata
    return (meta.owner_references, meta.finalizers, meta.deletion_timestamp) != (
        old.owner_references,
        old.finalizers,
        old.deletion_timestamp,
    )


def _collected(record: Record) -> Object:
    """Return an object for the garbage collector. One of a large kind is decoded only if it may be written."""
    head: Object = record.head
    if head.metadata.owner_references or head.metadata.deletion_timestamp:
        obj: Object = record.object
        return obj
    return head


def sync_owners(lister: Lister) -> Iterable[Action]:
    """Delete or release the dependents of deleted owners."""
    kinds = lister.custom_kinds
    collected = (*COLLECTED_RESOURCES, *(kind.group_resource for kind in kinds))
    objects = [_collected(record) for resource in collected for record in lister.records(resource)]
    custom = {name: kind.stored for kind in kinds for name in kind.version_names()}
    return reconcile(
        objects,
        lambda reference, obj: owner_is_resolvable(reference, obj, custom),
        lambda obj, reference: events.invalid_owner_namespace(obj, reference, lister.now),
    )


def owner_is_resolvable(
    reference: OwnerReference, obj: Object, custom: Mapping[tuple[str, str], AnyResource] = {}
) -> bool:
    """Return whether the garbage collector can tell if an owner exists.

    Its kind must be one of COLLECTED_RESOURCES, or one of the `custom` ones (API version and kind). A cluster-scoped
    object cannot have a namespaced owner.
    """
    name = (reference.api_version, reference.kind)
    resource = _OWNER_RESOURCES.get(name) or custom.get(name)
    if resource is None:
        return False
    if resource.group_resource in FREQUENTLY_WRITTEN_RESOURCES:
        return False
    return bool(obj.metadata.namespace) or not resource.namespaced

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

from msgspec.structs import replace

from api.meta.types import Object, OwnerReference
from master.controllers import events
from master.controllers.actions import Action, Create, Delete, Update, WriteAction
from master.controllers.context import SHORT_LIVED_RESOURCES, Lister
from master.registry.strategy import BACKGROUND, FOREGROUND, ORPHAN
from master.resources.scheme import BY_KIND, STORED

Resolves = Callable[[OwnerReference, Object], bool]
"""Whether an owner reference of an object can be resolved: its kind is stored, and its namespace is known."""

WarnOwner = Callable[[Object, OwnerReference], Create]
"""Returns the event that an owner reference of an object names nothing in its namespace."""


@dataclass(frozen=True, slots=True)
class _OwnerGraph:
    """Owners and dependents by uid. `waiting` are the owners that are deleted after their dependents."""

    objects: Mapping[str, Object]
    waiting: frozenset[str]
    dependents: Mapping[str, Sequence[Object]]
    resolves: Resolves

    def exists(self, reference: OwnerReference, item: Object) -> bool:
        """Return whether an owner exists. One that cannot be resolved here counts as existing."""
        return _is_owner(self.objects.get(reference.uid), reference, item) or not self.resolves(reference, item)

    def keeps(self, reference: OwnerReference, item: Object) -> bool:
        """Return whether an owner exists and is not waiting for the object's deletion."""
        return self.exists(reference, item) and not (
            reference.uid in self.waiting and _is_owner(self.objects[reference.uid], reference, item)
        )

    def is_owned(self, item: Object) -> bool:
        """Return whether an owner keeps the object."""
        return any(self.keeps(reference, item) for reference in item.metadata.owner_references)

    def cross_namespace(self, item: Object) -> Iterator[OwnerReference]:
        """Yield the references of an object to owners in another namespace."""
        for reference in item.metadata.owner_references:
            owner = self.objects.get(reference.uid)
            if owner is not None and not _is_reachable(owner, item):
                yield reference


def reconcile(objects: Sequence[Object], resolves: Resolves, cross_namespace_event: WarnOwner) -> Iterator[WriteAction]:
    """Yield the deletions and released references. `cross_namespace_event` makes the event of an object that loses an
    owner in another namespace.
    """
    graph = _owner_graph(objects, resolves)
    handled: set[str] = set()
    for item in objects:
        if item.metadata.deletion_timestamp:
            for action in _finish_deletion(item, graph, handled):
                handled.add(action.item.metadata.uid)
                yield action
    for item in objects:
        meta = item.metadata
        if meta.owner_references and not meta.deletion_timestamp and meta.uid not in handled:
            yield from _release_deleted_owners(item, graph, cross_namespace_event)


def _owner_graph(objects: Sequence[Object], resolves: Resolves) -> _OwnerGraph:
    by_uid = {item.metadata.uid: item for item in objects}
    dependents: dict[str, list[Object]] = defaultdict(list)
    for item in objects:
        for reference in item.metadata.owner_references:
            if _is_owner(by_uid.get(reference.uid), reference, item):
                dependents[reference.uid].append(item)
    waiting = frozenset(item.metadata.uid for item in objects if _is_foreground(item))
    return _OwnerGraph(by_uid, waiting, dependents, resolves)


def _release_deleted_owners(
    item: Object, graph: _OwnerGraph, cross_namespace_event: WarnOwner
) -> Iterator[WriteAction]:
    """Yield an object without its missing owners, or its deletion if none is left."""
    references = item.metadata.owner_references
    remaining = tuple(reference for reference in references if graph.exists(reference, item))
    if len(remaining) == len(references):
        return
    yield from (
        cross_namespace_event(item, reference)
        for reference in graph.cross_namespace(item)
        if reference not in remaining
    )
    yield Update(_with_metadata(item, owner_references=remaining), item) if remaining else Delete(item)


def _is_reachable(owner: Object, item: Object) -> bool:
    return owner.metadata.namespace in ("", item.metadata.namespace)


def _is_owner(owner: Object | None, reference: OwnerReference, item: Object) -> bool:
    """Return whether the object with the uid of a reference is the one that the reference names."""
    return (
        owner is not None
        and (owner.KIND, owner.metadata.name) == (reference.kind, reference.name)
        and _is_reachable(owner, item)
    )


def _is_foreground(item: Object) -> bool:
    return bool(item.metadata.deletion_timestamp) and FOREGROUND in item.metadata.finalizers


def _finish_deletion(owner: Object, graph: _OwnerGraph, handled: set[str]) -> Iterator[Update | Delete]:
    finalizers, uid = owner.metadata.finalizers, owner.metadata.uid
    dependents = [item for item in graph.dependents.get(uid, ()) if item is not owner]
    if ORPHAN in finalizers:
        for item in dependents:
            if item.metadata.uid not in handled:
                remaining = tuple(reference for reference in item.metadata.owner_references if reference.uid != uid)
                yield Update(_with_metadata(item, owner_references=remaining), item)
        yield Update(_with_metadata(owner, finalizers=tuple(name for name in finalizers if name != ORPHAN)), owner)
    elif FOREGROUND in finalizers:
        blocking = [item for item in dependents if _blocks_owner(item, uid)]
        for item in dependents:
            if not item.metadata.deletion_timestamp and item.metadata.uid not in handled:
                yield _release_dependent(item, graph)
        if not blocking:
            yield Update(
                _with_metadata(owner, finalizers=tuple(name for name in finalizers if name != FOREGROUND)), owner
            )


def _release_dependent(item: Object, graph: _OwnerGraph) -> Update | Delete:
    """Return the action for a dependent of an owner that waits for it. It keeps its other owners, or is deleted after
    its own dependents. In a cycle of owners one is deleted first, so its references no longer block.
    """
    references, own_dependents = item.metadata.owner_references, graph.dependents.get(item.metadata.uid, ())
    if graph.is_owned(item):
        remaining = tuple(reference for reference in references if graph.keeps(reference, item))
        return Update(_with_metadata(item, owner_references=remaining), item)
    if any(_is_foreground(dependent) for dependent in own_dependents) and any(
        reference.block_owner_deletion for reference in references
    ):
        return Update(
            _with_metadata(
                item, owner_references=tuple(replace(reference, block_owner_deletion=False) for reference in references)
            ),
            item,
        )
    return Delete(item, "Foreground" if own_dependents else BACKGROUND)


def _blocks_owner(item: Object, uid: str) -> bool:
    return any(reference.uid == uid and reference.block_owner_deletion for reference in item.metadata.owner_references)


def _with_metadata(item: Object, **changes: tuple[object, ...]) -> Object:
    return replace(item, metadata=replace(item.metadata, **changes))


OWNED_RESOURCES = tuple(
    resource.group_resource for resource in STORED if resource.group_resource not in SHORT_LIVED_RESOURCES
)
"""Resources that are garbage collected."""


def sync_owners(lister: Lister) -> Iterable[Action]:
    """Delete or release the dependents of deleted owners."""
    objects = [item for resource in OWNED_RESOURCES for item in lister.list_resource(resource)]
    return reconcile(
        objects,
        owner_is_resolvable,
        lambda item, reference: events.invalid_owner_namespace(item, reference, lister.now),
    )


def owner_is_resolvable(reference: OwnerReference, item: Object) -> bool:
    """Return whether an owner can be resolved: its kind is stored, and it is in the namespace of the object, or
    cluster-scoped.
    """
    resource = BY_KIND.get(reference.kind)
    if resource is None or reference.api_version != resource.type.API_VERSION:
        return False
    return bool(item.metadata.namespace) or not resource.namespaced

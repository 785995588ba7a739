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
from master.controllers.context import SHORT_LIVED_KINDS, Lister
from master.registry.strategy import BACKGROUND, FOREGROUND, ORPHAN
from master.resources.scheme import BY_KIND, STORED

Resolves = Callable[[OwnerReference, Object], bool]
"""Whether the owner that a reference of the object names can be looked for: its kind is kept, and a namespace known."""

WarnOwner = Callable[[Object, OwnerReference], Create]
"""The event that says that a reference of the object names nothing in its namespace."""


@dataclass(frozen=True, slots=True)
class _OwnerGraph:
    """Who belongs to whom, by uid; `waiting` are the owners that are to go after their dependents."""

    present: Mapping[str, Object]
    waiting: frozenset[str]
    dependents: Mapping[str, Sequence[Object]]
    resolves: Resolves

    def is_there(self, row: OwnerReference, item: Object) -> bool:
        """An owner that cannot be looked for here is nothing that could be missed."""
        return _is_owner(self.present.get(row.uid), row, item) or not self.resolves(row, item)

    def stays(self, row: OwnerReference, item: Object) -> bool:
        """Whether an owner is there and is not to go after the object."""
        return self.is_there(row, item) and not (
            row.uid in self.waiting and _is_owner(self.present[row.uid], row, item)
        )

    def is_held(self, item: Object) -> bool:
        """Whether an owner stays that the object may stay for."""
        return any(self.stays(row, item) for row in item.metadata.owner_references)

    def foreign(self, item: Object) -> Iterator[OwnerReference]:
        """The references of an object to what is in another namespace."""
        for row in item.metadata.owner_references:
            owner = self.present.get(row.uid)
            if owner is not None and not _is_reachable(owner, item):
                yield row


def reconcile(objects: Sequence[Object], resolves: Resolves, tell: WarnOwner) -> Iterator[WriteAction]:
    """Everything that ends or changes hands; `tell` makes the event of an object that loses a foreign owner."""
    family = _owner_graph(objects, resolves)
    handed: set[str] = set()
    for item in objects:
        if item.metadata.deletion_timestamp:
            for write in _finish_deletion(item, family, handed):
                handed.add(write.item.metadata.uid)
                yield write
    for item in objects:
        meta = item.metadata
        if meta.owner_references and not meta.deletion_timestamp and meta.uid not in handed:
            yield from _release_gone_owners(item, family, tell)


def _owner_graph(objects: Sequence[Object], resolves: Resolves) -> _OwnerGraph:
    present = {item.metadata.uid: item for item in objects}
    dependents: dict[str, list[Object]] = defaultdict(list)
    for item in objects:
        for row in item.metadata.owner_references:
            if _is_owner(present.get(row.uid), row, item):
                dependents[row.uid].append(item)
    waiting = frozenset(item.metadata.uid for item in objects if _is_foreground(item))
    return _OwnerGraph(present, waiting, dependents, resolves)


def _release_gone_owners(item: Object, family: _OwnerGraph, tell: WarnOwner) -> Iterator[WriteAction]:
    """What becomes of an object of whose owners some may be gone."""
    rows = item.metadata.owner_references
    left = tuple(row for row in rows if family.is_there(row, item))
    if len(left) == len(rows):
        return
    yield from (tell(item, row) for row in family.foreign(item) if row not in left)
    yield Update(_with_metadata(item, owner_references=left), item) if left else Delete(item)


def _is_reachable(owner: Object, item: Object) -> bool:
    return owner.metadata.namespace in ("", item.metadata.namespace)


def _is_owner(owner: Object | None, row: OwnerReference, item: Object) -> bool:
    """Whether what has the uid of a reference is what the reference may name."""
    return (
        owner is not None and (owner.KIND, owner.metadata.name) == (row.kind, row.name) and _is_reachable(owner, item)
    )


def _is_foreground(item: Object) -> bool:
    return bool(item.metadata.deletion_timestamp) and FOREGROUND in item.metadata.finalizers


def _finish_deletion(owner: Object, family: _OwnerGraph, handed: set[str]) -> Iterator[Update | Delete]:
    finalizers, uid = owner.metadata.finalizers, owner.metadata.uid
    dependents = [item for item in family.dependents.get(uid, ()) if item is not owner]
    if ORPHAN in finalizers:
        for item in dependents:
            if item.metadata.uid not in handed:
                left = tuple(row for row in item.metadata.owner_references if row.uid != uid)
                yield Update(_with_metadata(item, owner_references=left), item)
        yield Update(_with_metadata(owner, finalizers=tuple(name for name in finalizers if name != ORPHAN)), owner)
    elif FOREGROUND in finalizers:
        blocking = [item for item in dependents if _blocks_owner(item, uid)]
        for item in dependents:
            if not item.metadata.deletion_timestamp and item.metadata.uid not in handed:
                yield _release_dependent(item, family)
        if not blocking:
            yield Update(
                _with_metadata(owner, finalizers=tuple(name for name in finalizers if name != FOREGROUND)), owner
            )


def _release_dependent(item: Object, family: _OwnerGraph) -> Update | Delete:
    """A dependent of an owner that waits for it: it stays for its other owners, or ends after its own dependents.

    In a circle of owners one has to go first; it no longer holds up its owners.
    """
    rows, own = item.metadata.owner_references, family.dependents.get(item.metadata.uid, ())
    if family.is_held(item):
        left = tuple(row for row in rows if family.stays(row, item))
        return Update(_with_metadata(item, owner_references=left), item)
    if any(_is_foreground(one) for one in own) and any(row.block_owner_deletion for row in rows):
        return Update(
            _with_metadata(item, owner_references=tuple(replace(row, block_owner_deletion=False) for row in rows)), item
        )
    return Delete(item, "Foreground" if own else BACKGROUND)


def _blocks_owner(item: Object, uid: str) -> bool:
    return any(row.uid == uid and row.block_owner_deletion for row in item.metadata.owner_references)


def _with_metadata(item: Object, **changes: tuple[object, ...]) -> Object:
    return replace(item, metadata=replace(item.metadata, **changes))


OWNED_KINDS = tuple(kind.name for kind in STORED if kind.name not in SHORT_LIVED_KINDS)
"""Kinds whose objects go with their owners."""


def sync_owners(lister: Lister) -> Iterable[Action]:
    """Delete or release the dependents of deleted owners."""
    objects = [item for kind in OWNED_KINDS for item in lister.list(kind)]
    return reconcile(
        objects, owner_is_resolvable, lambda item, row: events.invalid_owner_namespace(item, row, lister.now)
    )


def owner_is_resolvable(row: OwnerReference, item: Object) -> bool:
    """Whether the owner can be looked for: its kind is kept, and its namespace is that of the object, if it has one."""
    kind = BY_KIND.get(row.kind)
    if kind is None or row.api_version != kind.type.API_VERSION:
        return False
    return bool(item.metadata.namespace) or not kind.namespaced

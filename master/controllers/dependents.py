"""What belongs to an object goes with it: owner references, as in Kubernetes. Pure.

An object is a dependent of those that its `ownerReferences` name by uid, kind and name, if they are cluster-scoped or
in its own namespace: a reference to another is one to nothing. It ends when none of them is left. An owner that is
deleted with the policy Foreground waits for the dependents that block it, which end unless another owner holds them;
with Orphan it lets all of them go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from api.meta.types import Object, ObjectMeta, OwnerReference
from master.writing.outcomes import Change, End, Make, Write
from master.writing.writes import BACKGROUND, FOREGROUND, ORPHAN


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    """The owner that decides about an object, if it has one."""
    return next((row for row in meta.owner_references if row.controller), None)


def reference_to(owner: Object) -> OwnerReference:
    """How an object names the owner that made it and decides about it."""
    return OwnerReference(
        api_version=owner.API_VERSION,
        kind=owner.KIND,
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


Resolves = Callable[[OwnerReference, Object], bool]
"""Whether the owner that a reference of the object names can be looked for: its kind is kept, and a namespace known."""

Tell = Callable[[Object, OwnerReference], Make]
"""The event that says that a reference of the object names nothing in its namespace."""


@dataclass(frozen=True, slots=True)
class _Family:
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
            if owner is not None and not _in_reach(owner, item):
                yield row


def passes(objects: Sequence[Object], resolves: Resolves, tell: Tell) -> Iterator[Write]:
    """Everything that ends or changes hands; `tell` makes the event of an object that loses a foreign owner."""
    family = _family(objects, resolves)
    handed: set[str] = set()
    for item in objects:
        if item.metadata.deletion_timestamp:
            for write in _ending(item, family, handed):
                handed.add(write.item.metadata.uid)
                yield write
    for item in objects:
        meta = item.metadata
        if meta.owner_references and not meta.deletion_timestamp and meta.uid not in handed:
            yield from _left(item, family, tell)


def _family(objects: Sequence[Object], resolves: Resolves) -> _Family:
    present = {item.metadata.uid: item for item in objects}
    dependents: dict[str, list[Object]] = defaultdict(list)
    for item in objects:
        for row in item.metadata.owner_references:
            if _is_owner(present.get(row.uid), row, item):
                dependents[row.uid].append(item)
    waiting = frozenset(item.metadata.uid for item in objects if _waits(item))
    return _Family(present, waiting, dependents, resolves)


def _left(item: Object, family: _Family, tell: Tell) -> Iterator[Write]:
    """What becomes of an object of whose owners some may be gone."""
    rows = item.metadata.owner_references
    left = tuple(row for row in rows if family.is_there(row, item))
    if len(left) == len(rows):
        return
    yield from (tell(item, row) for row in family.foreign(item) if row not in left)
    yield Change(_with(item, owner_references=left), item) if left else End(item)


def _in_reach(owner: Object, item: Object) -> bool:
    return owner.metadata.namespace in ("", item.metadata.namespace)


def _is_owner(owner: Object | None, row: OwnerReference, item: Object) -> bool:
    """Whether what has the uid of a reference is what the reference may name."""
    return owner is not None and (owner.KIND, owner.metadata.name) == (row.kind, row.name) and _in_reach(owner, item)


def _waits(item: Object) -> bool:
    return bool(item.metadata.deletion_timestamp) and FOREGROUND in item.metadata.finalizers


def _ending(owner: Object, family: _Family, handed: set[str]) -> Iterator[Change | End]:
    finalizers, uid = owner.metadata.finalizers, owner.metadata.uid
    dependents = [item for item in family.dependents.get(uid, ()) if item is not owner]
    if ORPHAN in finalizers:
        for item in dependents:
            if item.metadata.uid not in handed:
                left = tuple(row for row in item.metadata.owner_references if row.uid != uid)
                yield Change(_with(item, owner_references=left), item)
        yield Change(_with(owner, finalizers=tuple(name for name in finalizers if name != ORPHAN)), owner)
    elif FOREGROUND in finalizers:
        blocking = [item for item in dependents if _blocks(item, uid)]
        for item in dependents:
            if not item.metadata.deletion_timestamp and item.metadata.uid not in handed:
                yield _released(item, family)
        if not blocking:
            yield Change(_with(owner, finalizers=tuple(name for name in finalizers if name != FOREGROUND)), owner)


def _released(item: Object, family: _Family) -> Change | End:
    """A dependent of an owner that waits for it: it stays for its other owners, or ends after its own dependents.

    In a circle of owners one has to go first; it no longer holds up its owners.
    """
    rows, own = item.metadata.owner_references, family.dependents.get(item.metadata.uid, ())
    if family.is_held(item):
        left = tuple(row for row in rows if family.stays(row, item))
        return Change(_with(item, owner_references=left), item)
    if any(_waits(one) for one in own) and any(row.block_owner_deletion for row in rows):
        return Change(
            _with(item, owner_references=tuple(replace(row, block_owner_deletion=False) for row in rows)), item
        )
    return End(item, "Foreground" if own else BACKGROUND)


def _blocks(item: Object, uid: str) -> bool:
    return any(row.uid == uid and row.block_owner_deletion for row in item.metadata.owner_references)


def _with(item: Object, **changes: tuple[object, ...]) -> Object:
    return replace(item, metadata=replace(item.metadata, **changes))

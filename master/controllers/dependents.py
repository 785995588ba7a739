"""What belongs to an object goes with it: owner references, as in Kubernetes. Pure.

An object is a dependent of those that its `ownerReferences` name, by uid. It ends when none of them is left. An owner
that is deleted with the policy Foreground waits for the dependents that block it, which end unless another owner holds
them; with Orphan it lets all of them go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from api.objects import Object, ObjectMeta, OwnerReference
from master.writing.outcomes import Change, End, Write
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


@dataclass(frozen=True, slots=True)
class _Family:
    """Who belongs to whom, by uid; `waiting` are the owners that are to go after their dependents."""

    present: frozenset[str]
    waiting: frozenset[str]
    dependents: Mapping[str, Sequence[Object]]
    is_kept: Callable[[OwnerReference], bool]

    def is_there(self, row: OwnerReference) -> bool:
        """An owner of a kind that is not kept here is nothing that could be missed."""
        return row.uid in self.present or not self.is_kept(row)

    def is_held(self, item: Object) -> bool:
        """Whether an owner stays that the object may stay for."""
        return any(self.is_there(row) and row.uid not in self.waiting for row in item.metadata.owner_references)


def passes(objects: Sequence[Object], is_kept: Callable[[OwnerReference], bool]) -> Iterator[Write]:
    """Everything that ends or changes hands; `is_kept` says whether the store keeps the kind of an owner."""
    dependents: dict[str, list[Object]] = defaultdict(list)
    for item in objects:
        for row in item.metadata.owner_references:
            dependents[row.uid].append(item)
    present = frozenset(item.metadata.uid for item in objects)
    family = _Family(present, frozenset(item.metadata.uid for item in objects if _waits(item)), dependents, is_kept)
    handed: set[str] = set()
    for item in objects:
        if item.metadata.deletion_timestamp:
            for write in _ending(item, family, handed):
                handed.add(write.item.metadata.uid)
                yield write
    for item in objects:
        rows = item.metadata.owner_references
        if not rows or item.metadata.deletion_timestamp or item.metadata.uid in handed:
            continue
        left = tuple(row for row in rows if family.is_there(row))
        if not left:
            yield End(item)
        elif len(left) < len(rows):
            yield Change(_with(item, owner_references=left), item)


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
        left = tuple(row for row in rows if family.is_there(row) and row.uid not in family.waiting)
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

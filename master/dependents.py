"""What belongs to an object goes with it: owner references, as in Kubernetes. Pure.

An object is a dependent of those that its `ownerReferences` name, by uid. It ends when none of them is left. An owner
that is deleted with the policy Foreground waits for the dependents that block it; with Orphan it lets all of them go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from api.objects import Object, ObjectMeta, OwnerReference
from master.controllers import Change, End, Write
from master.writes import FOREGROUND, ORPHAN


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


def passes(objects: Sequence[Object], is_kept: Callable[[OwnerReference], bool]) -> Iterator[Write]:
    """Everything that ends or changes hands; `is_kept` says whether the kind of an owner is one that the store keeps.

    An owner of a kind that is not kept here is nothing that could be missed.
    """
    present = {item.metadata.uid for item in objects}
    dependents: dict[str, list[Object]] = defaultdict(list)
    for item in objects:
        for row in item.metadata.owner_references:
            dependents[row.uid].append(item)
    handed: set[str] = set()
    for item in objects:
        if item.metadata.deletion_timestamp:
            for write in _ending(item, dependents[item.metadata.uid], handed):
                handed.add(write.item.metadata.uid)
                yield write
    for item in objects:
        rows = item.metadata.owner_references
        if not rows or item.metadata.deletion_timestamp or item.metadata.uid in handed:
            continue
        left = tuple(row for row in rows if row.uid in present or not is_kept(row))
        if not left:
            yield End(item)
        elif len(left) < len(rows):
            yield Change(_with(item, owner_references=left), item)


def _ending(owner: Object, dependents: Iterable[Object], handed: set[str]) -> Iterator[Change | End]:
    finalizers, uid = owner.metadata.finalizers, owner.metadata.uid
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
                yield End(item)
        if not blocking:
            yield Change(_with(owner, finalizers=tuple(name for name in finalizers if name != FOREGROUND)), owner)


def _blocks(item: Object, uid: str) -> bool:
    return any(row.uid == uid and row.block_owner_deletion for row in item.metadata.owner_references)


def _with(item: Object, **changes: tuple[object, ...]) -> Object:
    return replace(item, metadata=replace(item.metadata, **changes))

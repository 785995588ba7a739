"""Which claim has which volume. Pure.

People write it down, the volume in the claim or the claim in the volume: one side is enough, the other is filled in,
with the claim's uid, so that a claim made anew by the same name does not inherit the storage. A claim that names none
gets the smallest volume that names none, of its class, its modes, its labels and at least its size. No volume is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from api.core.storage import AVAILABLE, BOUND, LOST, PENDING, RELEASED, PersistentVolume, PersistentVolumeClaim
from api.meta import quantity
from api.meta.selectors import selector
from api.meta.types import Object, ObjectReference
from master.writing.outcomes import Change

Key = tuple[str, str]


def bindings(
    volumes: Iterable[PersistentVolume], claims: Iterable[PersistentVolumeClaim], usual: str = ""
) -> Iterator[Change]:
    """The writes that are missing on both sides. `usual` is the class of claims that name none."""
    by_name = {volume.metadata.name: volume for volume in volumes}
    by_key = {(claim.metadata.namespace, claim.metadata.name): claim for claim in claims}
    pairs = dict(_pairs(by_name, by_key, usual))
    holders = {volume: key for key, volume in pairs.items()}
    for name, volume in by_name.items():
        claim = by_key[holders[name]] if name in holders else None
        yield from _changed(volume, _bound_volume(volume, claim))
    for key, claim in by_key.items():
        yield from _changed(claim, _bound_claim(claim, by_name[pairs[key]] if key in pairs else None))


def _pairs(
    volumes: dict[str, PersistentVolume], claims: dict[Key, PersistentVolumeClaim], usual: str
) -> Iterator[tuple[Key, str]]:
    """Volumes that name their claim come first, then claims that name their volume, then those that name none.

    Of several claims to one volume the first by its name has it.
    """
    taken: set[str] = set()
    given: set[Key] = set()
    for name, volume in sorted(volumes.items()):
        wish = volume.spec.claim_ref
        key = (wish.namespace, wish.name) if wish is not None else None
        claim = claims.get(key) if key is not None else None
        if wish is None or key is None or claim is None or key in given:
            continue
        if wish.uid in ("", claim.metadata.uid) and claim.spec.volume_name in ("", name):
            taken.add(name)
            given.add(key)
            yield key, name
    for key, claim in sorted(claims.items(), key=lambda item: item[0]):
        name = claim.spec.volume_name
        if key not in given and name not in taken and name in volumes and volumes[name].spec.claim_ref is None:
            taken.add(name)
            given.add(key)
            yield key, name
    free = [one for one in volumes.values() if one.metadata.name not in taken and _is_free(one)]
    for key, claim in sorted(claims.items(), key=lambda item: item[0]):
        fitting = [one for one in free if key not in given and _suits(one, claim, usual)]
        if fitting:
            best = min(fitting, key=lambda one: (_size(one.spec.capacity), one.metadata.name))
            free.remove(best)
            yield key, best.metadata.name


def _is_free(volume: PersistentVolume) -> bool:
    return volume.spec.claim_ref is None and volume.metadata.deletion_timestamp is None


def _suits(volume: PersistentVolume, claim: PersistentVolumeClaim, usual: str) -> bool:
    """Whether a claim that names no volume, and never had one, may have this one."""
    has, wish = volume.spec, claim.spec
    wanted = usual if wish.storage_class_name is None else wish.storage_class_name
    return (
        not wish.volume_name
        and claim.metadata.deletion_timestamp is None
        and wanted == has.storage_class_name
        and set(wish.access_modes) <= set(has.access_modes)
        and wish.volume_mode == has.volume_mode
        and _size(wish.resources.requests) <= _size(has.capacity)
        and (wish.selector is None or selector(wish.selector).matches(volume.metadata.labels))
    )


def _size(amounts: Mapping[str, str | int | float]) -> int:
    return quantity.to_int(amounts.get("storage", 0))


def _bound_volume(volume: PersistentVolume, claim: PersistentVolumeClaim | None) -> PersistentVolume:
    wish = volume.spec.claim_ref
    if claim is None:
        waits = AVAILABLE if wish is None or not wish.uid else RELEASED
        return replace(volume, status=replace(volume.status, phase=waits))
    meta = claim.metadata
    named = replace(wish or ObjectReference(), api_version="v1", kind=claim.KIND, name=meta.name, uid=meta.uid)
    spec = replace(volume.spec, claim_ref=replace(named, namespace=meta.namespace))
    return replace(volume, spec=spec, status=replace(volume.status, phase=BOUND))


def _bound_claim(claim: PersistentVolumeClaim, volume: PersistentVolume | None) -> PersistentVolumeClaim:
    if volume is None:
        lost = claim.status.phase in (BOUND, LOST)
        return replace(claim, status=replace(claim.status, phase=LOST if lost else PENDING))
    spec = replace(claim.spec, volume_name=volume.metadata.name)
    status = replace(claim.status, phase=BOUND, access_modes=volume.spec.access_modes, capacity=volume.spec.capacity)
    return replace(claim, spec=spec, status=status)


def _changed(old: Object, new: Object) -> Iterator[Change]:
    if new != old:
        yield Change(new, old)

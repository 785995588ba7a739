"""Which claim has which volume: as people write it down, the volume in the claim or the claim in the volume. Pure.

Nobody is given a volume that he did not name: there is no choosing by size or class. One side is enough; the other is
filled in, with the claim's uid, so that a claim made anew by the same name does not inherit the storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.objects import Object
from api.storage import AVAILABLE, BOUND, LOST, PENDING, RELEASED, PersistentVolume, PersistentVolumeClaim
from api.value import ObjectReference
from master.controllers import Change

Key = tuple[str, str]


def bindings(volumes: Iterable[PersistentVolume], claims: Iterable[PersistentVolumeClaim]) -> Iterator[Change]:
    """The writes that are missing on both sides."""
    by_name = {volume.metadata.name: volume for volume in volumes}
    by_key = {(claim.metadata.namespace, claim.metadata.name): claim for claim in claims}
    pairs = dict(_pairs(by_name, by_key))
    holders = {volume: key for key, volume in pairs.items()}
    for name, volume in by_name.items():
        claim = by_key[holders[name]] if name in holders else None
        yield from _changed(volume, _bound_volume(volume, claim))
    for key, claim in by_key.items():
        yield from _changed(claim, _bound_claim(claim, by_name[pairs[key]] if key in pairs else None))


def _pairs(volumes: dict[str, PersistentVolume], claims: dict[Key, PersistentVolumeClaim]) -> Iterator[tuple[Key, str]]:
    """Volumes that name their claim come first; of several claims that name one volume the first has it."""
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
            yield key, name


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

"""PersistentVolumes and claims: binding, and protection of those in use. Pure.

A volume may name its claim, or a claim its volume. One side is enough: the controller fills in the other, with the
claim's uid, so that a new claim of the same name does not inherit the storage. A claim that names no volume gets the
smallest unclaimed volume of its class, access modes, labels and at least its size. Volumes are not provisioned. Both
kinds have a finalizer from the start, which is removed from deleted objects that are no longer used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec.structs import replace

from api.core.pod import FINAL_PHASES, Pod
from api.core.storage import AVAILABLE, BOUND, LOST, PENDING, RELEASED, PersistentVolume, PersistentVolumeClaim
from api.meta import quantity
from api.meta.selectors import selector
from api.meta.types import Object, ObjectReference
from master.controllers.actions import Action, ForceDelete, Update
from master.controllers.context import Lister
from master.resources.metadata import with_metadata
from master.resources.volumes import CLAIM_FINALIZER, VOLUME_FINALIZER, default_class

ClaimKey = tuple[str, str]


def bind_volumes(
    volumes: Iterable[PersistentVolume], claims: Iterable[PersistentVolumeClaim], usual: str = ""
) -> Iterator[Update]:
    """The writes that are missing on both sides. `usual` is the class of claims that name none."""
    by_name = {volume.metadata.name: volume for volume in volumes}
    by_key = {(claim.metadata.namespace, claim.metadata.name): claim for claim in claims}
    pairs = dict(_pairs(by_name, by_key, usual))
    holders = {volume: key for key, volume in pairs.items()}
    for name, volume in by_name.items():
        claim = by_key[holders[name]] if name in holders else None
        yield from _update_if_changed(volume, _volume_state(volume, claim))
    for key, claim in by_key.items():
        yield from _update_if_changed(claim, _claim_state(claim, by_name[pairs[key]] if key in pairs else None))


def _pairs(
    volumes: dict[str, PersistentVolume], claims: dict[ClaimKey, PersistentVolumeClaim], usual: str
) -> Iterator[tuple[ClaimKey, str]]:
    """Volumes that name their claim come first, then claims that name their volume, then those that name none.

    Of several claims to one volume the first by its name has it.
    """
    taken: set[str] = set()
    given: set[ClaimKey] = set()
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
        fitting = [one for one in free if key not in given and _matches(one, claim, usual)]
        if fitting:
            best = min(fitting, key=lambda one: (_storage_size(one.spec.capacity), one.metadata.name))
            free.remove(best)
            yield key, best.metadata.name


def _is_free(volume: PersistentVolume) -> bool:
    return volume.spec.claim_ref is None and volume.metadata.deletion_timestamp is None


def _matches(volume: PersistentVolume, claim: PersistentVolumeClaim, usual: str) -> bool:
    """Whether a claim that names no volume, and never had one, may have this one."""
    has, wish = volume.spec, claim.spec
    wanted = usual if wish.storage_class_name is None else wish.storage_class_name
    return (
        not wish.volume_name
        and claim.metadata.deletion_timestamp is None
        and wanted == has.storage_class_name
        and set(wish.access_modes) <= set(has.access_modes)
        and wish.volume_mode == has.volume_mode
        and _storage_size(wish.resources.requests) <= _storage_size(has.capacity)
        and (wish.selector is None or selector(wish.selector).matches(volume.metadata.labels))
    )


def _storage_size(amounts: Mapping[str, str | int | float]) -> int:
    return quantity.to_int(amounts.get("storage", 0))


def _volume_state(volume: PersistentVolume, claim: PersistentVolumeClaim | None) -> PersistentVolume:
    wish = volume.spec.claim_ref
    if claim is None:
        waits = AVAILABLE if wish is None or not wish.uid else RELEASED
        return replace(volume, status=replace(volume.status, phase=waits))
    meta = claim.metadata
    named = replace(wish or ObjectReference(), api_version="v1", kind=claim.KIND, name=meta.name, uid=meta.uid)
    spec = replace(volume.spec, claim_ref=replace(named, namespace=meta.namespace))
    return replace(volume, spec=spec, status=replace(volume.status, phase=BOUND))


def _claim_state(claim: PersistentVolumeClaim, volume: PersistentVolume | None) -> PersistentVolumeClaim:
    if volume is None:
        lost = claim.status.phase in (BOUND, LOST)
        return replace(claim, status=replace(claim.status, phase=LOST if lost else PENDING))
    spec = replace(claim.spec, volume_name=volume.metadata.name)
    status = replace(claim.status, phase=BOUND, access_modes=volume.spec.access_modes, capacity=volume.spec.capacity)
    return replace(claim, spec=spec, status=status)


def _update_if_changed(old: Object, new: Object) -> Iterator[Update]:
    if new != old:
        yield Update(new, old)


S = TypeVar("S", PersistentVolume, PersistentVolumeClaim)


def release_protection(
    volumes: Iterable[PersistentVolume], claims: Iterable[PersistentVolumeClaim], pods: Iterable[Pod]
) -> Iterator[Update | ForceDelete]:
    """What is being deleted and in nobody's use: it goes, or loses our finalizer and waits for those of others."""
    leaving = [claim for claim in claims if claim.metadata.deletion_timestamp]
    used = frozenset(_used_claims(pods)) if leaving else frozenset()
    for claim in leaving:
        if (claim.metadata.namespace, claim.metadata.name) not in used:
            yield from _without_finalizer(claim, CLAIM_FINALIZER)
    for volume in volumes:
        if volume.metadata.deletion_timestamp and volume.status.phase != BOUND:
            yield from _without_finalizer(volume, VOLUME_FINALIZER)


def _used_claims(pods: Iterable[Pod]) -> Iterator[tuple[str, str]]:
    """The claims of pods that have not ended."""
    for pod in pods:
        if pod.status.phase not in FINAL_PHASES:
            for volume in pod.spec.volumes:
                if volume.persistent_volume_claim is not None:
                    yield pod.metadata.namespace, volume.persistent_volume_claim.claim_name


def _without_finalizer(item: S, finalizer: str) -> Iterator[Update | ForceDelete]:
    left = tuple(one for one in item.metadata.finalizers if one != finalizer)
    if not left:
        yield ForceDelete(item)
    elif left != item.metadata.finalizers:
        yield Update(with_metadata(item, finalizers=left), item)


def sync_claims(lister: Lister) -> Iterable[Action]:
    """What is bound or set free now is looked at again before anything may go."""
    volumes, wishes = lister.list("PersistentVolume"), lister.list("PersistentVolumeClaim")
    found: list[Action] = list(bind_volumes(volumes, wishes, default_class(lister.list("StorageClass"))))
    if not found and any(item.metadata.deletion_timestamp for item in (*volumes, *wishes)):
        found = list(release_protection(volumes, wishes, lister.list("Pod")))
    return found

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
from api.meta.selectors import compile_selector
from api.meta.types import Object, ObjectReference
from master.controllers.actions import Action, Failed, ForceDelete, Update, isolate_errors
from master.controllers.context import Lister
from master.resources.metadata import with_metadata
from master.resources.volumes import CLAIM_FINALIZER, VOLUME_FINALIZER, StorageClass, default_class

ClaimKey = tuple[str, str]


def bind_volumes(
    volumes: Iterable[PersistentVolume], claims: Iterable[PersistentVolumeClaim], default_class: str = ""
) -> Iterator[Update | Failed]:
    """Yield the missing writes on both sides of bindings. `default_class` is the storage class of claims that name
    none.
    """
    by_name = {volume.metadata.name: volume for volume in volumes}
    by_key = {(claim.metadata.namespace, claim.metadata.name): claim for claim in claims}
    pairs: dict[ClaimKey, str] = {}
    failed_claims: set[ClaimKey] = set()
    for pair in _pairs(by_name, by_key, default_class):
        if isinstance(pair, Failed):
            failed_claims.add((pair.object.metadata.namespace, pair.object.metadata.name))
            yield pair
        else:
            key, name = pair
            pairs[key] = name
    claim_by_volume = {volume: key for key, volume in pairs.items()}
    for name, volume in by_name.items():
        claim = by_key[claim_by_volume[name]] if name in claim_by_volume else None
        yield from _update_if_changed(volume, _volume_state(volume, claim))
    for key, claim in by_key.items():
        if key not in failed_claims:
            yield from _update_if_changed(claim, _claim_state(claim, by_name[pairs[key]] if key in pairs else None))


def _pairs(
    volumes: dict[str, PersistentVolume], claims: dict[ClaimKey, PersistentVolumeClaim], default_class: str
) -> Iterator[tuple[ClaimKey, str] | Failed]:
    """Yield (claim, volume) pairs: volumes that name their claim first, then claims that name their volume, then
    others. Of several claims to one volume the first by name gets it.
    """
    bound_volumes: set[str] = set()
    bound_claims: set[ClaimKey] = set()
    for name, volume in sorted(volumes.items()):
        claim_ref = volume.spec.claim_ref
        key = (claim_ref.namespace, claim_ref.name) if claim_ref is not None else None
        claim = claims.get(key) if key is not None else None
        if claim_ref is None or key is None or claim is None or key in bound_claims:
            continue
        if claim_ref.uid in ("", claim.metadata.uid) and claim.spec.volume_name in ("", name):
            bound_volumes.add(name)
            bound_claims.add(key)
            yield key, name
    for key, claim in sorted(claims.items(), key=lambda entry: entry[0]):
        name = claim.spec.volume_name
        if (
            key not in bound_claims
            and name not in bound_volumes
            and name in volumes
            and volumes[name].spec.claim_ref is None
        ):
            bound_volumes.add(name)
            bound_claims.add(key)
            yield key, name
    free: list[tuple[int, str]] = []

    def measure(volume: PersistentVolume) -> tuple[()]:
        free.append((_storage_size(volume.spec.capacity), volume.metadata.name))
        return ()

    def bind_smallest(claim: PersistentVolumeClaim) -> Iterator[tuple[ClaimKey, str]]:
        for size, name in free:
            if _matches(volumes[name], claim, default_class):
                free.remove((size, name))
                yield (claim.metadata.namespace, claim.metadata.name), name
                return

    unbound = (volume for name, volume in volumes.items() if name not in bound_volumes and _is_free(volume))
    yield from isolate_errors(unbound, measure)
    free.sort()
    yield from isolate_errors(
        (claim for key, claim in sorted(claims.items(), key=lambda entry: entry[0]) if key not in bound_claims),
        bind_smallest,
    )


def _is_free(volume: PersistentVolume) -> bool:
    return volume.spec.claim_ref is None and volume.metadata.deletion_timestamp is None


def _matches(volume: PersistentVolume, claim: PersistentVolumeClaim, default_class: str) -> bool:
    """Return whether a claim that names no volume may be bound to this one."""
    offered, requested = volume.spec, claim.spec
    storage_class = default_class if requested.storage_class_name is None else requested.storage_class_name
    return (
        not requested.volume_name
        and claim.metadata.deletion_timestamp is None
        and storage_class == offered.storage_class_name
        and set(requested.access_modes) <= set(offered.access_modes)
        and requested.volume_mode == offered.volume_mode
        and _storage_size(requested.resources.requests) <= _storage_size(offered.capacity)
        and (requested.selector is None or compile_selector(requested.selector).matches(volume.metadata.labels))
    )


def _storage_size(amounts: Mapping[str, str | int | float]) -> int:
    return quantity.to_int(amounts.get("storage", 0))


def _volume_state(volume: PersistentVolume, claim: PersistentVolumeClaim | None) -> PersistentVolume:
    claim_ref = volume.spec.claim_ref
    if claim is None:
        phase = AVAILABLE if claim_ref is None or not claim_ref.uid else RELEASED
        return replace(volume, status=replace(volume.status, phase=phase))
    meta = claim.metadata
    named = replace(claim_ref or ObjectReference(), api_version="v1", kind=claim.KIND, name=meta.name, uid=meta.uid)
    spec = replace(volume.spec, claim_ref=replace(named, namespace=meta.namespace))
    return replace(volume, spec=spec, status=replace(volume.status, phase=BOUND))


def _claim_state(claim: PersistentVolumeClaim, volume: PersistentVolume | None) -> PersistentVolumeClaim:
    if volume is None:
        was_bound = claim.status.phase in (BOUND, LOST)
        return replace(claim, status=replace(claim.status, phase=LOST if was_bound else PENDING))
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
    """Yield deleted volumes and claims that are not in use, without our finalizer or, if it was the last, their
    removal.
    """
    deleted_claims = [claim for claim in claims if claim.metadata.deletion_timestamp]
    used = frozenset(_used_claims(pods)) if deleted_claims else frozenset()
    for claim in deleted_claims:
        if (claim.metadata.namespace, claim.metadata.name) not in used:
            yield from _without_finalizer(claim, CLAIM_FINALIZER)
    for volume in volumes:
        if volume.metadata.deletion_timestamp and volume.status.phase != BOUND:
            yield from _without_finalizer(volume, VOLUME_FINALIZER)


def _used_claims(pods: Iterable[Pod]) -> Iterator[tuple[str, str]]:
    """Yield the claims of pods that are not terminated."""
    for pod in pods:
        if pod.status.phase not in FINAL_PHASES:
            for volume in pod.spec.volumes:
                if volume.persistent_volume_claim is not None:
                    yield pod.metadata.namespace, volume.persistent_volume_claim.claim_name


def _without_finalizer(obj: S, finalizer: str) -> Iterator[Update | ForceDelete]:
    remaining = tuple(name for name in obj.metadata.finalizers if name != finalizer)
    if not remaining:
        yield ForceDelete(obj)
    elif remaining != obj.metadata.finalizers:
        yield Update(with_metadata(obj, finalizers=remaining), obj)


def sync_claims(lister: Lister) -> Iterable[Action]:
    """Bind volumes; when nothing is left to bind, release deleted ones. A binding made now must be seen before anything
    is removed.
    """
    volumes, claims = lister.list(PersistentVolume), lister.list(PersistentVolumeClaim)
    actions: list[Action] = list(bind_volumes(volumes, claims, default_class(lister.list(StorageClass))))
    has_bound = any(not isinstance(action, Failed) for action in actions)
    if not has_bound and any(obj.metadata.deletion_timestamp for obj in (*volumes, *claims)):
        actions += release_protection(volumes, claims, lister.list(Pod))
    return actions

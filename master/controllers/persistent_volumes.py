"""PersistentVolumes and claims: binding, events of claims that wait, and protection of those in use. Pure.

A volume may name its claim, or a claim its volume. One side is enough: the controller fills in the other, with the
claim's uid, so that a new claim of the same name does not inherit the storage. A claim that names no volume gets the
smallest unclaimed volume of its class, access modes, labels and at least its size. If its class waits for the first
consumer, the scheduler chooses instead (`scheduling/volume_binding.py`). `local_volumes.py` provisions and reclaims.
Both kinds have a finalizer from the start, which is removed from deleted objects that are no longer used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec.structs import replace

from api.core.events import Event
from api.core.pod import FINAL_PHASES, Pod
from api.core.storage import (
    AVAILABLE,
    BOUND,
    FAILED,
    LOST,
    PENDING,
    RELEASED,
    LocalVolume,
    PersistentVolume,
    PersistentVolumeClaim,
)
from api.meta import quantity
from api.meta.selectors import compile_selector
from api.meta.types import Object, ObjectReference
from master.controllers.actions import Action, Failed, ForceDelete, Update, isolate_errors
from master.controllers.claim_events import ClaimKey, claims_of, report_waiting, waits_for_consumer
from master.controllers.context import Lister
from master.resources.metadata import with_metadata
from master.resources.volumes import (
    CLAIM_FINALIZER,
    VOLUME_FINALIZER,
    StorageClass,
    claim_class,
    default_class,
)


def bind_volumes(
    volumes: Iterable[PersistentVolume],
    claims: Iterable[PersistentVolumeClaim],
    classes: Iterable[StorageClass] = (),
) -> Iterator[Update | Failed]:
    """Yield the missing writes on both sides of bindings. A claim that names no class gets the default class."""
    all_classes = tuple(classes)
    usual = default_class(all_classes)
    delayed = frozenset(each.metadata.name for each in all_classes if waits_for_consumer(each))
    by_name = {volume.metadata.name: volume for volume in volumes}
    stored = {(claim.metadata.namespace, claim.metadata.name): claim for claim in claims}
    by_key = {key: with_class(claim, usual) for key, claim in stored.items()}
    pairs: dict[ClaimKey, str] = {}
    failed_claims: set[ClaimKey] = set()
    for pair in _pairs(by_name, by_key, delayed):
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
            bound_volume = by_name[pairs[key]] if key in pairs else None
            yield from _update_if_changed(stored[key], _claim_state(claim, bound_volume))


def with_class(claim: PersistentVolumeClaim, default: str) -> PersistentVolumeClaim:
    """Return a claim that waits and names no class with the default class, as if it had been created now."""
    if claim_class(claim) is not None or claim.status.phase != PENDING or claim.spec.volume_name or not default:
        return claim
    return replace(claim, spec=replace(claim.spec, storage_class_name=default))


def _pairs(
    volumes: dict[str, PersistentVolume],
    claims: dict[ClaimKey, PersistentVolumeClaim],
    delayed: frozenset[str],
) -> Iterator[tuple[ClaimKey, str] | Failed]:
    """Yield (claim, volume) pairs: volumes that name their claim first, then claims that name their volume, then
    others. Of several claims to one volume the first by name gets it. `delayed` are the classes for whose claims the
    scheduler chooses.
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
        free.append((storage_size(volume.spec.capacity), volume.metadata.name))
        return ()

    def bind_smallest(claim: PersistentVolumeClaim) -> Iterator[tuple[ClaimKey, str]]:
        for size, name in free:
            if claim_class(claim) not in delayed and matches_claim(volumes[name], claim):
                free.remove((size, name))
                yield (claim.metadata.namespace, claim.metadata.name), name
                return

    unbound = (volume for name, volume in volumes.items() if name not in bound_volumes and is_free(volume))
    yield from isolate_errors(unbound, measure)
    free.sort()
    yield from isolate_errors(
        (claim for key, claim in sorted(claims.items(), key=lambda entry: entry[0]) if key not in bound_claims),
        bind_smallest,
    )


def is_free(volume: PersistentVolume) -> bool:
    """Return whether a volume can be bound to a claim that it does not name."""
    return volume.spec.claim_ref is None and volume.metadata.deletion_timestamp is None


def matches_claim(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Return whether a claim that names no volume may be bound to this one."""
    offered, requested = volume.spec, claim.spec
    return (
        not requested.volume_name
        and claim.metadata.deletion_timestamp is None
        and (claim_class(claim) or "") == offered.storage_class_name
        and set(requested.access_modes) <= set(offered.access_modes)
        and requested.volume_mode == offered.volume_mode
        and storage_size(requested.resources.requests) <= storage_size(offered.capacity)
        and (requested.selector is None or compile_selector(requested.selector).matches(volume.metadata.labels))
    )


def storage_size(amounts: Mapping[str, str | int | float]) -> int:
    """Return the bytes of `storage` in a capacity or a request. Raises BadQuantity."""
    return quantity.to_int(amounts.get("storage", 0))


def _volume_state(volume: PersistentVolume, claim: PersistentVolumeClaim | None) -> PersistentVolume:
    claim_ref = volume.spec.claim_ref
    if claim is None:
        phase = AVAILABLE if claim_ref is None or not claim_ref.uid else RELEASED
        if (phase, volume.status.phase) == (RELEASED, FAILED):
            return volume  # Its reclamation has failed, and is tried again.
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
            yield from without_finalizer(claim, CLAIM_FINALIZER)
    for volume in volumes:
        if volume.metadata.deletion_timestamp and volume.status.phase != BOUND:
            yield from without_finalizer(volume, VOLUME_FINALIZER)


def _used_claims(pods: Iterable[Pod]) -> Iterator[ClaimKey]:
    """Yield the claims of pods that are not terminated."""
    for pod in pods:
        if pod.status.phase not in FINAL_PHASES:
            yield from claims_of(pod)


def without_finalizer(obj: S, finalizer: str) -> Iterator[Update | ForceDelete]:
    """Yield the object without a finalizer, or its removal if it was the last; nothing if it does not have it."""
    remaining = tuple(name for name in obj.metadata.finalizers if name != finalizer)
    if not remaining:
        yield ForceDelete(obj)
    elif remaining != obj.metadata.finalizers:
        yield Update(with_metadata(obj, finalizers=remaining), obj)


def sync_claims(lister: Lister) -> Iterable[Action]:
    """Bind volumes; when nothing is left to bind, report why claims wait, and release deleted ones. A binding made now
    must be seen before anything is removed.
    """
    volumes, claims = lister.list(PersistentVolume), lister.list(PersistentVolumeClaim)
    classes = lister.list(StorageClass)
    actions: list[Action] = list(bind_volumes(volumes, claims, classes))
    has_bound = any(not isinstance(action, Failed) for action in actions)
    if not has_bound and any(obj.metadata.deletion_timestamp for obj in (*volumes, *claims)):
        actions += release_protection(volumes, claims, lister.list(Pod))
    if not has_bound:
        actions += report_waiting(
            claims,
            volumes,
            classes,
            lister.list(LocalVolume),
            lambda: lister.list(Pod),
            lambda event: lister.get(Event, event.metadata.name, event.metadata.namespace) is not None,
            lister.now,
        )
    return actions

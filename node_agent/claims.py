"""Claims to storage → the storage that they have. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from api.objects import Object, Pod
from api.references import Reference
from api.storage import BOUND, PersistentVolume, PersistentVolumeClaim
from api.volumes import Volume
from node_agent.volume_paths import source_of
from reconcile.errors import DriverError, NotReady, Refused


def storage_of(claims: Mapping[Reference, Object]) -> Iterator[Reference]:
    """The volumes that claims have."""
    for claim in claims.values():
        if isinstance(claim, PersistentVolumeClaim) and claim.spec.volume_name:
            yield Reference(PersistentVolume, "", claim.spec.volume_name)


def resolved(volume: Volume, namespace: str, objects: Mapping[Reference, Object]) -> tuple[Volume, tuple[str, ...]]:
    """The volume with its storage as its source, beside the claim, and the options with which it is mounted.

    Raises NotReady while the claim has none, Refused when it is not the claim's own.
    """
    wish = volume.persistent_volume_claim
    if wish is None:
        return volume, ()
    reference = Reference(PersistentVolumeClaim, namespace, wish.claim_name)
    claim = objects.get(reference)
    if not isinstance(claim, PersistentVolumeClaim):
        raise NotReady(f"{reference} not found")
    if claim.status.phase != BOUND or not claim.spec.volume_name:
        raise NotReady(f"{reference} is not bound to a volume: it is {claim.status.phase or 'Pending'}")
    place = Reference(PersistentVolume, "", claim.spec.volume_name)
    storage = objects.get(place)
    if not isinstance(storage, PersistentVolume):
        raise NotReady(f"{place} not found")
    holder = storage.spec.claim_ref
    if holder is None or holder.uid != claim.metadata.uid:
        raise Refused(f"{place} does not belong to {reference}")
    spec = storage.spec
    nfs = spec.nfs and replace(spec.nfs, read_only=spec.nfs.read_only or wish.read_only)
    return replace(volume, nfs=nfs, host_path=spec.host_path), spec.mount_options


def places(pod: Pod, objects: Mapping[Reference, Object], pod_dir: str) -> dict[str, str]:
    """The directories behind those volumes of a pod that are claims, by the volumes' names, as far as is known."""
    found = {}
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            try:
                storage, _ = resolved(volume, pod.metadata.namespace, objects)
                found[volume.name] = source_of(pod_dir, storage)
            except DriverError:
                continue
    return found

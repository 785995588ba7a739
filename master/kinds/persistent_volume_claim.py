"""PersistentVolumeClaim: a project's claim to storage. Pure."""

from __future__ import annotations

import datetime

import msgspec

from api.core.storage import PersistentVolumeClaim, PersistentVolumeClaimStatus
from master.kinds.kind import AGE, NAME, Column, Kind, age, with_metadata
from master.kinds.persistent_volume import modes, or_unset

CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
"""Keeps what is being deleted as long as it is in use."""


def _cells(item: PersistentVolumeClaim, now: datetime.datetime) -> tuple[object, ...]:
    spec, status = item.spec, item.status
    return (
        item.metadata.name,
        "Terminating" if item.metadata.deletion_timestamp else status.phase,
        spec.volume_name,
        str(status.capacity.get("storage", "")),
        modes(status.access_modes),
        spec.storage_class_name or "",
        or_unset(spec.volume_attributes_class_name),
        age(item.metadata.creation_timestamp, now),
        spec.volume_mode or "<unset>",
    )


def _on_create(item: PersistentVolumeClaim) -> PersistentVolumeClaim:
    finalizers = tuple(dict.fromkeys((*item.metadata.finalizers, CLAIM_FINALIZER)))
    return with_metadata(
        msgspec.structs.replace(item, status=PersistentVolumeClaimStatus(phase="Pending")), finalizers=finalizers
    )


PERSISTENT_VOLUME_CLAIM = Kind(
    type=PersistentVolumeClaim,
    plural="persistentvolumeclaims",
    singular="persistentvolumeclaim",
    namespaced=True,
    short=("pvc",),
    columns=(
        NAME,
        Column("Status", "Pending, Bound or Lost."),
        Column("Volume", "The volume that it has, or asks for."),
        Column("Capacity", "How much the volume holds."),
        Column("Access Modes", "How many may use it, and how."),
        Column("StorageClass", "The class that it asks for."),
        Column("VolumeAttributesClass", "The attributes that it asks for."),
        AGE,
        Column("VolumeMode", "Whether it is a filesystem.", wide=True),
    ),
    cells=_cells,
    on_create=_on_create,
    on_update=lambda new, old: msgspec.structs.replace(new, status=old.status),
    with_status=lambda new, old: msgspec.structs.replace(old, status=new.status),
)

"""PersistentVolume: storage that an administrator has set up. Pure."""

from __future__ import annotations

import datetime

import msgspec

from api.core.storage import ACCESS_MODES, PersistentVolume, PersistentVolumeStatus
from master.kinds.kind import AGE, NAME, Column, Kind, age, with_metadata

VOLUME_FINALIZER = "kubernetes.io/pv-protection"
"""Keeps what is being deleted as long as it is in use."""


def modes(names: tuple[str, ...]) -> str:
    """Access modes in the short form of tables."""
    return ",".join(ACCESS_MODES.get(name, name) for name in names)


def or_unset(text: str | None) -> str:
    """The text, or how tables show that there is none."""
    return text or "<unset>"


def _cells(item: PersistentVolume, now: datetime.datetime) -> tuple[object, ...]:
    spec, status = item.spec, item.status
    claim = f"{spec.claim_ref.namespace}/{spec.claim_ref.name}" if spec.claim_ref is not None else ""
    return (
        item.metadata.name,
        str(spec.capacity.get("storage", "")),
        modes(spec.access_modes),
        spec.persistent_volume_reclaim_policy,
        "Terminating" if item.metadata.deletion_timestamp else status.phase,
        claim,
        spec.storage_class_name,
        or_unset(spec.volume_attributes_class_name),
        status.reason,
        age(item.metadata.creation_timestamp, now),
        spec.volume_mode or "<unset>",
    )


def _on_create(item: PersistentVolume) -> PersistentVolume:
    finalizers = tuple(dict.fromkeys((*item.metadata.finalizers, VOLUME_FINALIZER)))
    return with_metadata(
        msgspec.structs.replace(item, status=PersistentVolumeStatus(phase="Pending")), finalizers=finalizers
    )


PERSISTENT_VOLUME = Kind(
    type=PersistentVolume,
    plural="persistentvolumes",
    singular="persistentvolume",
    namespaced=False,
    short=("pv",),
    columns=(
        NAME,
        Column("Capacity", "How much it holds."),
        Column("Access Modes", "How many may use it, and how."),
        Column("Reclaim Policy", "What becomes of it when its claim is gone."),
        Column("Status", "Available, Bound or Released."),
        Column("Claim", "The claim that has it."),
        Column("StorageClass", "The class to which it belongs."),
        Column("VolumeAttributesClass", "The attributes that it was given."),
        Column("Reason", "Why it is as it is."),
        AGE,
        Column("VolumeMode", "Whether it is a filesystem.", wide=True),
    ),
    cells=_cells,
    on_create=_on_create,
    on_update=lambda new, old: msgspec.structs.replace(new, status=old.status),
    with_status=lambda new, old: msgspec.structs.replace(old, status=new.status),
)

"""PersistentVolume and PersistentVolumeClaim. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from api.core.pod import ResourceRequirements
from api.core.volumes import HostPathVolumeSource, NFSVolumeSource
from api.meta.selectors import LabelSelector
from api.meta.types import Json, Object, ObjectReference, Value
from api.meta.values import Quantity

ACCESS_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX"}
"""Name of an access mode → its short form in tables."""

RECLAIM_POLICIES = ("Retain",)
VOLUME_MODES = ("Filesystem",)
PENDING, AVAILABLE, BOUND, RELEASED, LOST = "Pending", "Available", "Bound", "Released", "Lost"


class PersistentVolumeSpec(Value, frozen=True):
    """The storage of a volume. Exactly one of `nfs` and `host_path` is set. `claim_ref` is the claim to which it is
    bound.
    """

    capacity: dict[str, Quantity] = {}
    access_modes: tuple[str, ...] = ()
    persistent_volume_reclaim_policy: str = ""
    storage_class_name: str = ""
    volume_attributes_class_name: str | None = None
    volume_mode: str | None = None
    mount_options: tuple[str, ...] = ()
    claim_ref: ObjectReference | None = None
    nfs: NFSVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    local: Json = None
    csi: Json = None
    node_affinity: Json = None


class PersistentVolumeStatus(Value, frozen=True):
    """The status of a volume. `phase` is Available, Bound or Released."""

    phase: str = ""
    message: str = ""
    reason: str = ""
    last_phase_transition_time: str | None = None


class PersistentVolume(Object, frozen=True):
    """Storage that an administrator provides."""

    API_VERSION = "v1"
    KIND = "PersistentVolume"
    PLURAL = "persistentvolumes"
    NAMESPACED = False

    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class PersistentVolumeClaimSpec(Value, frozen=True):
    """The requested storage. `volume_name` is the volume that is requested, or to which the claim is bound."""

    access_modes: tuple[str, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_attributes_class_name: str | None = None
    volume_mode: str | None = None
    selector: LabelSelector | None = None
    data_source: Json = None
    data_source_ref: Json = None


class PersistentVolumeClaimStatus(Value, frozen=True):
    """The status of a claim. `phase` is Pending, Bound or Lost."""

    phase: str = ""
    access_modes: tuple[str, ...] = ()
    capacity: dict[str, Quantity] = {}
    conditions: Json = None


class PersistentVolumeClaim(Object, frozen=True):
    """A request of a project for storage."""

    API_VERSION = "v1"
    KIND = "PersistentVolumeClaim"
    PLURAL = "persistentvolumeclaims"
    NAMESPACED = True

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


def persistent_volume_defaults(volume: PersistentVolume) -> PersistentVolume:
    """Return the volume with every default set."""
    host_path = volume.spec.host_path
    spec = replace(
        volume.spec,
        persistent_volume_reclaim_policy=volume.spec.persistent_volume_reclaim_policy or "Retain",
        volume_mode=volume.spec.volume_mode or "Filesystem",
        host_path=None if host_path is None else replace(host_path, type=host_path.type or ""),
    )
    return replace(volume, spec=spec, status=replace(volume.status, phase=volume.status.phase or PENDING))


def persistent_volume_claim_defaults(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    """Return the claim with every default set."""
    spec = replace(claim.spec, volume_mode=claim.spec.volume_mode or "Filesystem")
    return replace(claim, spec=spec, status=replace(claim.status, phase=claim.status.phase or PENDING))

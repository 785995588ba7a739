"""PersistentVolume and PersistentVolumeClaim. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from api.core.placement import NodeSelector
from api.core.pod import ResourceRequirements
from api.core.volumes import HostPathVolumeSource, NFSVolumeSource
from api.meta.selectors import LabelSelector
from api.meta.types import Json, Object, ObjectReference, Value
from api.meta.values import Quantity, Time

ACCESS_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX"}
"""Name of an access mode → its short form in tables."""

RETAIN, DELETE, RECYCLE = "Retain", "Delete", "Recycle"
RECLAIM_POLICIES = (RETAIN, DELETE, RECYCLE)
VOLUME_MODES = ("Filesystem",)
PENDING, AVAILABLE, BOUND, RELEASED, LOST = "Pending", "Available", "Bound", "Released", "Lost"
FAILED = "Failed"

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: the node for which its volume is to be provisioned."""
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
"""Annotation of a volume: its provisioner."""


class LocalVolumeSource(Value, frozen=True):
    """A directory of the nodes that the node affinity of its volume selects."""

    path: str
    fs_type: str | None = None


class VolumeNodeAffinity(Value, frozen=True):
    """The nodes from which a volume can be used."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(Value, frozen=True):
    """The storage of a volume. Exactly one of `nfs`, `host_path` and `local` is set. `claim_ref` is the claim to which
    it is bound. `node_affinity` selects the nodes from which it can be used, all if it is None.
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
    local: LocalVolumeSource | None = None
    csi: Json = None
    node_affinity: VolumeNodeAffinity | None = None


class PersistentVolumeStatus(Value, frozen=True):
    """The status of a volume. `phase` is Pending, Available, Bound, Released or Failed."""

    phase: str = ""
    message: str = ""
    reason: str = ""
    last_phase_transition_time: Time | None = None


class PersistentVolume(Object, frozen=True):
    """Storage that an administrator provides, or a provisioner."""

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


class LocalVolumeSpec(Value, frozen=True):
    """What is to become of the directory on the node `node_name`.

    `state` is Created while the volume is provisioned, Present while there is a PersistentVolume, Scrubbed if the
    directory is to be emptied, Absent if it is to be deleted. `claim_ref` is the claim for which it was provisioned.
    """

    node_name: str = ""
    state: str = ""
    claim_ref: ObjectReference | None = None


class LocalVolumeStatus(Value, frozen=True):
    """What the node has done. `phase` is empty, or Ready, Scrubbed or Deleted; `path` is the directory.

    `message` is the reason why the node has not reached the desired state; empty if it has, or has not tried yet.
    """

    phase: str = ""
    path: str = ""
    message: str = ""


class LocalVolume(Object, frozen=True):
    """A directory of a node for one PersistentVolume of the same name. The master decides, the node acts and reports.

    A node writes nothing but the status of its own LocalVolumes, and neither volumes nor claims.
    """

    API_VERSION = "podlane.io/v1"
    KIND = "LocalVolume"
    PLURAL = "localvolumes"
    NAMESPACED = False

    spec: LocalVolumeSpec = LocalVolumeSpec()
    status: LocalVolumeStatus = LocalVolumeStatus()


CREATED, PRESENT, SCRUBBED, ABSENT = "Created", "Present", "Scrubbed", "Absent"
LOCAL_VOLUME_STATES = (CREATED, PRESENT, SCRUBBED, ABSENT)
READY, DELETED = "Ready", "Deleted"
LOCAL_VOLUME_PHASES = ("", READY, SCRUBBED, DELETED)
MAX_LOCAL_VOLUME_MESSAGE = 1024
"""Characters of the message of a node about a volume."""

LOCAL_VOLUMES_LABEL = "podlane.io/local-volumes"
"""Label of a Node: `true` if its agent creates local volumes, otherwise `false`."""


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

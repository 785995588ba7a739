"""PersistentVolume and PersistentVolumeClaim: storage that outlives pods, its defaults and what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import asdict, replace

from api import names, quantity
from api.label_selector import LabelSelector, check_selector
from api.objects import Object, ResourceRequirements
from api.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, Problem, choices, shown
from api.value import Json, ObjectReference, Value
from api.volume_checks import check_host_path, check_nfs
from api.volumes import HostPathVolumeSource, NFSVolumeSource

ACCESS_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX"}
"""Name of an access mode → its short form in tables."""
RECLAIM_POLICIES = ("Retain",)
VOLUME_MODES = ("Filesystem",)
PENDING, AVAILABLE, BOUND, RELEASED, LOST = "Pending", "Available", "Bound", "Released", "Lost"


class PersistentVolumeSpec(Value, frozen=True):
    """Exactly one of `nfs` and `host_path` is set; `claim_ref` is the claim that has it."""

    capacity: dict[str, str | int | float] = {}
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
    """`phase` is Available, Bound or Released."""

    phase: str = ""
    message: str = ""
    reason: str = ""
    last_phase_transition_time: str | None = None


class PersistentVolume(Object, frozen=True):
    """Storage that an administrator has set up."""

    API_VERSION = "v1"
    KIND = "PersistentVolume"

    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class PersistentVolumeClaimSpec(Value, frozen=True):
    """`volume_name` is the volume that is asked for, or that the claim has."""

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
    """`phase` is Pending, Bound or Lost."""

    phase: str = ""
    access_modes: tuple[str, ...] = ()
    capacity: dict[str, str | int | float] = {}
    conditions: Json = None


class PersistentVolumeClaim(Object, frozen=True):
    """A project's claim to storage."""

    API_VERSION = "v1"
    KIND = "PersistentVolumeClaim"

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


def defaulted_volume(volume: PersistentVolume) -> PersistentVolume:
    """The volume with every default written out."""
    policy = volume.spec.persistent_volume_reclaim_policy or "Retain"
    mode = volume.spec.volume_mode or "Filesystem"
    path = volume.spec.host_path
    path = path if path is None else replace(path, type=path.type or "")
    spec = replace(volume.spec, persistent_volume_reclaim_policy=policy, volume_mode=mode, host_path=path)
    return replace(volume, spec=spec, status=replace(volume.status, phase=volume.status.phase or PENDING))


def defaulted_claim(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    """The claim with every default written out."""
    spec = replace(claim.spec, volume_mode=claim.spec.volume_mode or "Filesystem")
    return replace(claim, spec=spec, status=replace(claim.status, phase=claim.status.phase or PENDING))


def check_volume(volume: PersistentVolume) -> Iterator[Problem]:
    """Every problem, by path."""
    spec = volume.spec
    yield from _sources(spec)
    if "storage" not in spec.capacity:
        yield Problem("spec.capacity[storage]", "null", "a size is required", MISSING)
    yield from _sizes("spec.capacity", spec.capacity)
    yield from _access_modes(spec.access_modes)
    policy, mode = spec.persistent_volume_reclaim_policy, spec.volume_mode or ""
    yield from choices(
        ("spec.persistentVolumeReclaimPolicy", policy, RECLAIM_POLICIES), ("spec.volumeMode", mode, VOLUME_MODES)
    )
    if spec.node_affinity:
        yield Problem("spec.nodeAffinity", "given", "is not supported by this version", FORBIDDEN)
    if spec.claim_ref is not None and not (spec.claim_ref.namespace and spec.claim_ref.name):
        yield Problem("spec.claimRef", "given", "a namespace and a name are required", MISSING)
    for number, option in enumerate(spec.mount_options):
        if not option or "," in option or option.startswith("-"):
            yield Problem(f"spec.mountOptions[{number}]", shown(option), "one option of mount is accepted")


def _sources(spec: PersistentVolumeSpec) -> Iterator[Problem]:
    held = asdict(spec)
    sources = {"nfs": spec.nfs, "hostPath": spec.host_path, "local": held["local"], "csi": held["csi"]}
    named = [name for name, source in sources.items() if source is not None]
    if len(named) != 1:
        yield Problem("spec", shown(named), "exactly one of nfs and hostPath is required", MISSING)
    for name in named:
        if name not in ("nfs", "hostPath"):
            yield Problem(f"spec.{name}", "given", "nfs and hostPath are accepted", FORBIDDEN)
    if spec.nfs is not None:
        yield from check_nfs("spec.nfs", spec.nfs)
    if spec.host_path is not None:
        yield from check_host_path("spec.hostPath", spec.host_path)


def check_claim(claim: PersistentVolumeClaim) -> Iterator[Problem]:
    """Every problem, by path."""
    spec = claim.spec
    yield from _access_modes(spec.access_modes)
    if "storage" not in spec.resources.requests:
        yield Problem("spec.resources.requests[storage]", "null", "a size is required", MISSING)
    yield from _sizes("spec.resources.requests", spec.resources.requests)
    yield from choices(("spec.volumeMode", spec.volume_mode or "", VOLUME_MODES))
    if spec.volume_name and names.dns_subdomain(spec.volume_name):
        yield Problem("spec.volumeName", shown(spec.volume_name), names.dns_subdomain(spec.volume_name))
    if spec.selector is not None:
        yield from check_selector("spec.selector", spec.selector)
    for field, value in (("dataSource", spec.data_source), ("dataSourceRef", spec.data_source_ref)):
        if value is not None:
            yield Problem(f"spec.{field}", "given", "is not supported by this version", FORBIDDEN)


def _sizes(path: str, sizes: Mapping[str, str | int | float]) -> Iterator[Problem]:
    for name, text in sizes.items():
        try:
            if quantity.parse(text) <= 0:
                yield Problem(f"{path}[{name}]", shown(text), "more than 0 is accepted")
        except quantity.BadQuantity as error:
            yield Problem(f"{path}[{name}]", shown(text), str(error))


def _access_modes(modes: tuple[str, ...]) -> Iterator[Problem]:
    if not modes:
        yield Problem("spec.accessModes", "[]", "at least one access mode is required", MISSING)
    for number, mode in enumerate(modes):
        if mode not in ACCESS_MODES:
            wanted = f"{', '.join(ACCESS_MODES)} are accepted"
            yield Problem(f"spec.accessModes[{number}]", shown(mode), wanted, NOT_SUPPORTED)


def immutable_volume(old: PersistentVolume, new: PersistentVolume) -> Iterator[Problem]:
    """What an update changes although it may not: where the storage is."""
    if (old.spec.nfs, old.spec.host_path, old.spec.volume_mode) != (
        new.spec.nfs,
        new.spec.host_path,
        new.spec.volume_mode,
    ):
        yield Problem("spec.persistentvolumesource", "changed", "field is immutable after creation", FORBIDDEN)


def immutable_claim(old: PersistentVolumeClaim, new: PersistentVolumeClaim) -> Iterator[Problem]:
    """A claim's spec stays as it is, but that it may name a volume once."""
    named = replace(old.spec, volume_name=old.spec.volume_name or new.spec.volume_name)
    if new.spec != named:
        wanted = "spec is immutable after creation except spec.volumeName while it is empty"
        yield Problem("spec", "changed", wanted, FORBIDDEN)

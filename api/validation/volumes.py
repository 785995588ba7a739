"""Checks of volumes and mounts, PersistentVolumes and PersistentVolumeClaims. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import asdict, replace

from api.core.storage import (
    ACCESS_MODES,
    RECLAIM_POLICIES,
    VOLUME_MODES,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
)
from api.core.volumes import (
    DownwardAPIVolumeFile,
    HostPathVolumeSource,
    KeyToPath,
    NFSVolumeSource,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from api.meta import names, quantity
from api.meta.schema import (
    DUPLICATE,
    FORBIDDEN,
    MISSING,
    NOT_SUPPORTED,
    FieldError,
    duplicate_values,
    quoted,
    unsupported_values,
)
from api.meta.selectors import check_selector
from api.validation import containers

MEDIUMS = ("Memory",)
HOST_PATH_TYPES = ("DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice")


PROPAGATIONS = ("None", "HostToContainer", "Bidirectional")
RECURSIVE_READ_ONLY = ("Disabled", "IfPossible")

LEAST_TOKEN_SECONDS = 600
LONGEST_PATH = 4096

FILE_FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations")
"""Fields of the pod that may become a file; besides, metadata.labels['KEY'] and metadata.annotations['KEY']."""

ACCEPTED = ("emptyDir", "hostPath", "configMap", "secret", "downwardAPI", "projected", "persistentVolumeClaim", "nfs")
ACCEPTED_PROJECTIONS = ("configMap", "secret", "downwardAPI", "serviceAccountToken")


def check_volumes(volumes: tuple[Volume, ...]) -> Iterator[FieldError]:
    """Every problem of a pod's volumes, by path."""
    yield from duplicate_values("spec.volumes[{}].name", [volume.name for volume in volumes])
    for number, volume in enumerate(volumes):
        path = f"spec.volumes[{number}]"
        if names.dns_label_error(volume.name):
            yield FieldError(f"{path}.name", quoted(volume.name), names.dns_label_error(volume.name))
        yield from _one_of(path, volume, ACCEPTED, "name")
        yield from _of_the_host(path, volume)
        yield from _of_files(path, volume)
        yield from _of_storage(path, volume)


def _one_of(path: str, holder: Volume | VolumeProjection, accepted: tuple[str, ...], *but: str) -> Iterator[FieldError]:
    wire = {field.name: field.encode_name for field in msgspec.structs.fields(type(holder))}
    named = [wire[field] for field, value in asdict(holder).items() if field not in but and value is not None]
    if len(named) != 1:
        yield FieldError(path, quoted(named), f"exactly one of {', '.join(accepted)} is required", MISSING)
    for name in named:
        if name not in accepted:
            yield FieldError(f"{path}.{name}", "given", f"{', '.join(accepted)} are accepted", FORBIDDEN)


def _of_the_host(path: str, volume: Volume) -> Iterator[FieldError]:
    if volume.empty_dir is not None:
        yield from unsupported_values((f"{path}.emptyDir.medium", volume.empty_dir.medium, MEDIUMS))
        if volume.empty_dir.size_limit is not None:
            yield from _size(f"{path}.emptyDir.sizeLimit", volume.empty_dir.size_limit)
    if volume.host_path is not None:
        yield from check_host_path(f"{path}.hostPath", volume.host_path)


def check_host_path(path: str, source: HostPathVolumeSource) -> Iterator[FieldError]:
    """Every problem of a file or directory of the host."""
    yield from _absolute(f"{path}.path", source.path)
    yield from unsupported_values((f"{path}.type", source.type or "", HOST_PATH_TYPES))


def check_nfs(path: str, source: NFSVolumeSource) -> Iterator[FieldError]:
    """Every problem of a directory of an NFS server."""
    if not source.server or source.server.startswith("-") or any(c.isspace() for c in source.server):
        yield FieldError(f"{path}.server", quoted(source.server), "the name or address of an NFS server is accepted")
    yield from _absolute(f"{path}.path", source.path)


def _absolute(path: str, text: str) -> Iterator[FieldError]:
    if not text.startswith("/") or ".." in text.split("/") or ":" in text:
        yield FieldError(path, quoted(text), 'an absolute path without ".." and ":" is accepted')


def _size(path: str, text: str | float) -> Iterator[FieldError]:
    try:
        if quantity.parse(text) < 0:
            yield FieldError(path, quoted(text), "0 or more bytes are accepted")
    except quantity.BadQuantity as error:
        yield FieldError(path, quoted(text), str(error))


def _of_storage(path: str, volume: Volume) -> Iterator[FieldError]:
    if volume.nfs is not None:
        yield from check_nfs(f"{path}.nfs", volume.nfs)
    if volume.persistent_volume_claim is not None:
        claim = volume.persistent_volume_claim.claim_name
        yield from _name(f"{path}.persistentVolumeClaim.claimName", claim)


def _of_files(path: str, volume: Volume) -> Iterator[FieldError]:
    if volume.config_map is not None:
        yield from _name(f"{path}.configMap.name", volume.config_map.name)
        yield from _items(f"{path}.configMap", volume.config_map.items)
        yield from _mode(f"{path}.configMap.defaultMode", volume.config_map.default_mode)
    if volume.secret is not None:
        yield from _name(f"{path}.secret.secretName", volume.secret.secret_name)
        yield from _items(f"{path}.secret", volume.secret.items)
        yield from _mode(f"{path}.secret.defaultMode", volume.secret.default_mode)
    if volume.downward_api is not None:
        yield from _downward(f"{path}.downwardAPI", volume.downward_api.items)
        yield from _mode(f"{path}.downwardAPI.defaultMode", volume.downward_api.default_mode)
    if volume.projected is not None:
        yield from _mode(f"{path}.projected.defaultMode", volume.projected.default_mode)
        for number, source in enumerate(volume.projected.sources):
            yield from _one_projection(f"{path}.projected.sources[{number}]", source)
        yield from _collisions(f"{path}.projected.sources", volume.projected.sources)


def _one_projection(path: str, source: VolumeProjection) -> Iterator[FieldError]:
    yield from _one_of(path, source, ACCEPTED_PROJECTIONS)
    if source.config_map is not None:
        yield from _name(f"{path}.configMap.name", source.config_map.name)
        yield from _items(f"{path}.configMap", source.config_map.items)
    if source.secret is not None:
        yield from _name(f"{path}.secret.name", source.secret.name)
        yield from _items(f"{path}.secret", source.secret.items)
    if source.downward_api is not None:
        yield from _downward(f"{path}.downwardAPI", source.downward_api.items)
    token = source.service_account_token
    if token is not None:
        yield from check_file(f"{path}.serviceAccountToken.path", token.path)
        seconds = token.expiration_seconds
        if seconds is not None and not LEAST_TOKEN_SECONDS <= seconds <= 1 << 32:
            found, wanted = quoted(seconds), f"{LEAST_TOKEN_SECONDS} to {1 << 32} seconds are accepted"
            yield FieldError(f"{path}.serviceAccountToken.expirationSeconds", found, wanted)


def _collisions(path: str, sources: tuple[VolumeProjection, ...]) -> Iterator[FieldError]:
    named: dict[str, int] = {}
    for number, source in enumerate(sources):
        for file in _named_files(source):
            if named.setdefault(file, number) != number:
                yield FieldError(
                    f"{path}[{number}]", quoted(file), "a path that no other source has is accepted", DUPLICATE
                )


def _named_files(source: VolumeProjection) -> Iterable[str]:
    token = source.service_account_token
    items: tuple[KeyToPath | DownwardAPIVolumeFile, ...] = (
        *(source.config_map.items if source.config_map else ()),
        *(source.secret.items if source.secret else ()),
        *(source.downward_api.items if source.downward_api else ()),
    )
    return (*(item.path for item in items), *((token.path,) if token else ()))


def _items(path: str, items: tuple[KeyToPath, ...]) -> Iterator[FieldError]:
    for number, item in enumerate(items):
        if not item.key:
            yield FieldError(f"{path}.items[{number}].key", '""', "a key is required", MISSING)
        yield from check_file(f"{path}.items[{number}].path", item.path)
        yield from _mode(f"{path}.items[{number}].mode", item.mode)
    yield from duplicate_values(path + ".items[{}].path", [item.path for item in items])


def _downward(path: str, items: tuple[DownwardAPIVolumeFile, ...]) -> Iterator[FieldError]:
    for number, item in enumerate(items):
        place = f"{path}.items[{number}]"
        yield from check_file(f"{place}.path", item.path)
        yield from _mode(f"{place}.mode", item.mode)
        if (item.field_ref is None) == (item.resource_field_ref is None):
            yield FieldError(place, "given", "exactly one of fieldRef and resourceFieldRef is required", MISSING)
        if item.field_ref is not None and not _is_file_field(item.field_ref.field_path):
            wanted = f"{', '.join(FILE_FIELDS)}, metadata.labels['KEY'] and metadata.annotations['KEY'] are accepted"
            yield FieldError(f"{place}.fieldRef.fieldPath", quoted(item.field_ref.field_path), wanted, NOT_SUPPORTED)
        if item.resource_field_ref is not None:
            yield from containers.check_resource_field(f"{place}.resourceFieldRef", item.resource_field_ref)
            if not item.resource_field_ref.container_name:
                yield FieldError(f"{place}.resourceFieldRef.containerName", '""', "a container is required", MISSING)
    yield from duplicate_values(path + ".items[{}].path", [item.path for item in items])


def _is_file_field(path: str) -> bool:
    by_key = path.startswith(("metadata.labels['", "metadata.annotations['")) and path.endswith("']")
    return path in FILE_FIELDS or (by_key and path.count("'") == 2)


def check_file(path: str, text: str) -> Iterator[FieldError]:
    """What is wrong with the path of a file in a volume."""
    parts = text.split("/")
    if not text or text.startswith("/") or ".." in parts or parts[0].startswith("..") or len(text) > LONGEST_PATH:
        wanted = 'a relative path is accepted, without ".." and not beginning with it, up to 4096 characters'
        yield FieldError(path, quoted(text), wanted)


def _name(path: str, text: str) -> Iterator[FieldError]:
    if not text:
        yield FieldError(path, '""', "a name is required", MISSING)
    elif names.dns_subdomain_error(text):
        yield FieldError(path, quoted(text), names.dns_subdomain_error(text))


def _mode(path: str, mode: int | None) -> Iterator[FieldError]:
    if mode is not None and not 0 <= mode <= 0o777:
        yield FieldError(path, quoted(mode), "0 to 511 (0777 in octal) is accepted")


def check_mounts(
    path: str, mounts: tuple[VolumeMount, ...], volumes: set[str], privileged: bool
) -> Iterator[FieldError]:
    """Every problem of the mounts of a container that is privileged or not, `volumes` being the names there are."""
    for number, mount in enumerate(mounts):
        place = f"{path}[{number}]"
        if mount.name not in volumes:
            known = ", ".join(sorted(volumes)) or "none"
            yield FieldError(f"{place}.name", quoted(mount.name), f"a volume of this pod is accepted: {known}")
        if not mount.mount_path.startswith("/") or ":" in mount.mount_path:
            yield FieldError(f"{place}.mountPath", quoted(mount.mount_path), "an absolute path is accepted")
        for field, value in (("subPath", mount.sub_path), ("subPathExpr", mount.sub_path_expr)):
            if value.startswith("/") or ".." in value.split("/"):
                yield FieldError(f"{place}.{field}", quoted(value), 'a relative path without ".." is accepted')
        if mount.sub_path and mount.sub_path_expr:
            found = quoted(mount.sub_path_expr)
            yield FieldError(f"{place}.subPathExpr", found, "a subPath or a subPathExpr is accepted, not both")
        yield from _propagation(place, mount, privileged)
    yield from duplicate_values(path + "[{}].mountPath", [mount.mount_path for mount in mounts])


def _propagation(path: str, mount: VolumeMount, privileged: bool) -> Iterator[FieldError]:
    yield from unsupported_values((f"{path}.mountPropagation", mount.mount_propagation or "", PROPAGATIONS))
    if mount.mount_propagation == "Bidirectional" and not privileged:
        wanted = "None and HostToContainer are accepted: Bidirectional is for privileged containers"
        yield FieldError(f"{path}.mountPropagation", quoted("Bidirectional"), wanted, FORBIDDEN)
    recursive = mount.recursive_read_only
    if recursive not in (None, *RECURSIVE_READ_ONLY):
        wanted = f"{', '.join(RECURSIVE_READ_ONLY)} are accepted: Docker does not tell whether it could do more"
        yield FieldError(f"{path}.recursiveReadOnly", quoted(recursive), wanted, FORBIDDEN)
    elif recursive == "IfPossible" and not mount.read_only:
        yield FieldError(f"{path}.recursiveReadOnly", quoted(recursive), "is accepted only with readOnly", FORBIDDEN)
    elif recursive == "IfPossible" and mount.mount_propagation not in (None, "None"):
        wanted = "is accepted only with mountPropagation None"
        yield FieldError(f"{path}.recursiveReadOnly", quoted(recursive), wanted, FORBIDDEN)


def check_volume(volume: PersistentVolume) -> Iterator[FieldError]:
    """Every problem, by path."""
    spec = volume.spec
    yield from _sources(spec)
    if "storage" not in spec.capacity:
        yield FieldError("spec.capacity[storage]", "null", "a size is required", MISSING)
    yield from _sizes("spec.capacity", spec.capacity)
    yield from _access_modes(spec.access_modes)
    policy, mode = spec.persistent_volume_reclaim_policy, spec.volume_mode or ""
    yield from unsupported_values(
        ("spec.persistentVolumeReclaimPolicy", policy, RECLAIM_POLICIES), ("spec.volumeMode", mode, VOLUME_MODES)
    )
    if spec.node_affinity:
        yield FieldError("spec.nodeAffinity", "given", "is not supported by this version", FORBIDDEN)
    if spec.claim_ref is not None and not (spec.claim_ref.namespace and spec.claim_ref.name):
        yield FieldError("spec.claimRef", "given", "a namespace and a name are required", MISSING)
    for number, option in enumerate(spec.mount_options):
        if not option or "," in option or option.startswith("-"):
            yield FieldError(f"spec.mountOptions[{number}]", quoted(option), "one option of mount is accepted")


def _sources(spec: PersistentVolumeSpec) -> Iterator[FieldError]:
    held = asdict(spec)
    sources = {"nfs": spec.nfs, "hostPath": spec.host_path, "local": held["local"], "csi": held["csi"]}
    named = [name for name, source in sources.items() if source is not None]
    if len(named) != 1:
        yield FieldError("spec", quoted(named), "exactly one of nfs and hostPath is required", MISSING)
    for name in named:
        if name not in ("nfs", "hostPath"):
            yield FieldError(f"spec.{name}", "given", "nfs and hostPath are accepted", FORBIDDEN)
    if spec.nfs is not None:
        yield from check_nfs("spec.nfs", spec.nfs)
    if spec.host_path is not None:
        yield from check_host_path("spec.hostPath", spec.host_path)


def check_claim(claim: PersistentVolumeClaim) -> Iterator[FieldError]:
    """Every problem, by path."""
    spec = claim.spec
    yield from _access_modes(spec.access_modes)
    if "storage" not in spec.resources.requests:
        yield FieldError("spec.resources.requests[storage]", "null", "a size is required", MISSING)
    yield from _sizes("spec.resources.requests", spec.resources.requests)
    yield from unsupported_values(("spec.volumeMode", spec.volume_mode or "", VOLUME_MODES))
    if spec.volume_name and names.dns_subdomain_error(spec.volume_name):
        yield FieldError("spec.volumeName", quoted(spec.volume_name), names.dns_subdomain_error(spec.volume_name))
    if spec.selector is not None:
        yield from check_selector("spec.selector", spec.selector)
    for field, value in (("dataSource", spec.data_source), ("dataSourceRef", spec.data_source_ref)):
        if value is not None:
            yield FieldError(f"spec.{field}", "given", "is not supported by this version", FORBIDDEN)


def _sizes(path: str, sizes: Mapping[str, str | int | float]) -> Iterator[FieldError]:
    for name, text in sizes.items():
        try:
            if quantity.parse(text) <= 0:
                yield FieldError(f"{path}[{name}]", quoted(text), "more than 0 is accepted")
        except quantity.BadQuantity as error:
            yield FieldError(f"{path}[{name}]", quoted(text), str(error))


def _access_modes(modes: tuple[str, ...]) -> Iterator[FieldError]:
    if not modes:
        yield FieldError("spec.accessModes", "[]", "at least one access mode is required", MISSING)
    for number, mode in enumerate(modes):
        if mode not in ACCESS_MODES:
            wanted = f"{', '.join(ACCESS_MODES)} are accepted"
            yield FieldError(f"spec.accessModes[{number}]", quoted(mode), wanted, NOT_SUPPORTED)


def immutable_volume(old: PersistentVolume, new: PersistentVolume) -> Iterator[FieldError]:
    """What an update changes although it may not: where the storage is."""
    if (old.spec.nfs, old.spec.host_path, old.spec.volume_mode) != (
        new.spec.nfs,
        new.spec.host_path,
        new.spec.volume_mode,
    ):
        yield FieldError("spec.persistentvolumesource", "changed", "field is immutable after creation", FORBIDDEN)


def immutable_claim(old: PersistentVolumeClaim, new: PersistentVolumeClaim) -> Iterator[FieldError]:
    """A claim's spec stays as it is, but that it may name a volume once."""
    named = replace(old.spec, volume_name=old.spec.volume_name or new.spec.volume_name)
    if new.spec != named:
        wanted = "spec is immutable after creation except spec.volumeName while it is empty"
        yield FieldError("spec", "changed", wanted, FORBIDDEN)

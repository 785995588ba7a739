"""Checks of volumes and mounts, PersistentVolumes and PersistentVolumeClaims. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import asdict, replace

from api.core.storage import (
    ACCESS_MODES,
    LOCAL_VOLUME_PHASES,
    MAX_LOCAL_VOLUME_MESSAGE,
    RECLAIM_POLICIES,
    VOLUME_MODES,
    LocalVolume,
    LocalVolumeSource,
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
    struct_fields,
    unsupported_values,
)
from api.meta.selectors import check_selector
from api.validation import containers
from api.validation.placement import check_node_selector

EMPTY_DIR_MEDIUMS = ("Memory",)
HOST_PATH_TYPES = ("DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice")
MOUNT_PROPAGATIONS = ("None", "HostToContainer", "Bidirectional")
RECURSIVE_READ_ONLY = ("Disabled", "IfPossible")

MIN_TOKEN_SECONDS = 600
MAX_TOKEN_SECONDS = 1 << 32
MAX_PATH_LENGTH = 4096

FILE_FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations")
"""Fields of the pod that a file may hold, besides metadata.labels['KEY'] and metadata.annotations['KEY']."""

VOLUME_SOURCES = (
    "emptyDir",
    "hostPath",
    "configMap",
    "secret",
    "downwardAPI",
    "projected",
    "persistentVolumeClaim",
    "nfs",
)
IMAGE_VOLUME_REASON = (
    "Docker cannot mount an image in a container: let an init container of the image copy its files to an emptyDir"
)
PROJECTION_SOURCES = ("configMap", "secret", "downwardAPI", "serviceAccountToken")


# --- volumes of a pod -------------------------------------------------------------------------------------------------


def check_volumes(volumes: tuple[Volume, ...]) -> Iterator[FieldError]:
    """Yield the errors of a pod's volumes."""
    yield from duplicate_values("spec.volumes[{}].name", [volume.name for volume in volumes])
    for index, volume in enumerate(volumes):
        path = f"spec.volumes[{index}]"
        if error := names.dns_label_error(volume.name):
            yield FieldError(f"{path}.name", quoted(volume.name), error)
        yield from _check_one_source(path, volume, VOLUME_SOURCES)
        yield from _check_host_volumes(path, volume)
        yield from _check_file_volumes(path, volume)
        yield from _check_storage_volumes(path, volume)


def _check_one_source(path: str, holder: Volume | VolumeProjection, accepted: tuple[str, ...]) -> Iterator[FieldError]:
    json_names = {field.name: field.encode_name for field in struct_fields(type(holder))}
    set_fields = [json_names[name] for name, value in asdict(holder).items() if name != "name" and value is not None]
    if len(set_fields) != 1:
        yield FieldError(path, quoted(set_fields), f"exactly one of {', '.join(accepted)} is required", MISSING)
    for name in set_fields:
        if name not in accepted:
            reason = f"; {IMAGE_VOLUME_REASON}" if name == "image" else ""
            yield FieldError(f"{path}.{name}", "given", f"{', '.join(accepted)} are accepted{reason}", FORBIDDEN)


def _check_host_volumes(path: str, volume: Volume) -> Iterator[FieldError]:
    if volume.empty_dir is not None:
        yield from unsupported_values((f"{path}.emptyDir.medium", volume.empty_dir.medium, EMPTY_DIR_MEDIUMS))
        if volume.empty_dir.size_limit is not None:
            yield from _check_size(f"{path}.emptyDir.sizeLimit", volume.empty_dir.size_limit)
    if volume.host_path is not None:
        yield from check_host_path(f"{path}.hostPath", volume.host_path)


def check_host_path(path: str, source: HostPathVolumeSource) -> Iterator[FieldError]:
    """Yield the errors of a file or directory of the host."""
    yield from _check_absolute_path(f"{path}.path", source.path)
    yield from unsupported_values((f"{path}.type", source.type or "", HOST_PATH_TYPES))


def check_nfs(path: str, source: NFSVolumeSource) -> Iterator[FieldError]:
    """Yield the errors of a directory of an NFS server."""
    if not source.server or source.server.startswith("-") or any(c.isspace() for c in source.server):
        yield FieldError(f"{path}.server", quoted(source.server), "the name or address of an NFS server is accepted")
    yield from _check_absolute_path(f"{path}.path", source.path)


def _check_absolute_path(path: str, text: str) -> Iterator[FieldError]:
    if not text.startswith("/") or ".." in text.split("/") or ":" in text:
        yield FieldError(path, quoted(text), 'an absolute path without ".." and ":" is accepted')


def _check_size(path: str, text: str | float) -> Iterator[FieldError]:
    try:
        if quantity.parse(text) < 0:
            yield FieldError(path, quoted(text), "0 or more bytes are accepted")
    except quantity.BadQuantity as error:
        yield FieldError(path, quoted(text), str(error))


def _check_storage_volumes(path: str, volume: Volume) -> Iterator[FieldError]:
    if volume.nfs is not None:
        yield from check_nfs(f"{path}.nfs", volume.nfs)
    if volume.persistent_volume_claim is not None:
        claim_name = volume.persistent_volume_claim.claim_name
        yield from _check_object_name(f"{path}.persistentVolumeClaim.claimName", claim_name)


def _check_file_volumes(path: str, volume: Volume) -> Iterator[FieldError]:
    if volume.config_map is not None:
        yield from _check_object_name(f"{path}.configMap.name", volume.config_map.name)
        yield from _check_items(f"{path}.configMap", volume.config_map.items)
        yield from _check_mode(f"{path}.configMap.defaultMode", volume.config_map.default_mode)
    if volume.secret is not None:
        yield from _check_object_name(f"{path}.secret.secretName", volume.secret.secret_name)
        yield from _check_items(f"{path}.secret", volume.secret.items)
        yield from _check_mode(f"{path}.secret.defaultMode", volume.secret.default_mode)
    if volume.downward_api is not None:
        yield from _check_downward_api(f"{path}.downwardAPI", volume.downward_api.items)
        yield from _check_mode(f"{path}.downwardAPI.defaultMode", volume.downward_api.default_mode)
    if volume.projected is not None:
        yield from _check_mode(f"{path}.projected.defaultMode", volume.projected.default_mode)
        for index, source in enumerate(volume.projected.sources):
            yield from _check_projection(f"{path}.projected.sources[{index}]", source)
        yield from _check_path_conflicts(f"{path}.projected.sources", volume.projected.sources)


def _check_projection(path: str, source: VolumeProjection) -> Iterator[FieldError]:
    yield from _check_one_source(path, source, PROJECTION_SOURCES)
    if source.config_map is not None:
        yield from _check_object_name(f"{path}.configMap.name", source.config_map.name)
        yield from _check_items(f"{path}.configMap", source.config_map.items)
    if source.secret is not None:
        yield from _check_object_name(f"{path}.secret.name", source.secret.name)
        yield from _check_items(f"{path}.secret", source.secret.items)
    if source.downward_api is not None:
        yield from _check_downward_api(f"{path}.downwardAPI", source.downward_api.items)
    token = source.service_account_token
    if token is None:
        return
    yield from check_relative_path(f"{path}.serviceAccountToken.path", token.path)
    seconds = token.expiration_seconds
    if seconds is not None and not MIN_TOKEN_SECONDS <= seconds <= MAX_TOKEN_SECONDS:
        accepted = f"{MIN_TOKEN_SECONDS} to {MAX_TOKEN_SECONDS} seconds are accepted"
        yield FieldError(f"{path}.serviceAccountToken.expirationSeconds", quoted(seconds), accepted)


def _check_path_conflicts(path: str, sources: tuple[VolumeProjection, ...]) -> Iterator[FieldError]:
    source_of_file: dict[str, int] = {}
    for index, source in enumerate(sources):
        for file in _file_paths(source):
            if source_of_file.setdefault(file, index) != index:
                accepted = "a path that no other source has is accepted"
                yield FieldError(f"{path}[{index}]", quoted(file), accepted, DUPLICATE)


def _file_paths(source: VolumeProjection) -> Iterator[str]:
    if source.config_map is not None:
        yield from (key_to_path.path for key_to_path in source.config_map.items)
    if source.secret is not None:
        yield from (key_to_path.path for key_to_path in source.secret.items)
    if source.downward_api is not None:
        yield from (file.path for file in source.downward_api.items)
    if source.service_account_token is not None:
        yield source.service_account_token.path


def _check_items(path: str, items: tuple[KeyToPath, ...]) -> Iterator[FieldError]:
    for index, key_to_path in enumerate(items):
        if not key_to_path.key:
            yield FieldError(f"{path}.items[{index}].key", '""', "a key is required", MISSING)
        yield from check_relative_path(f"{path}.items[{index}].path", key_to_path.path)
        yield from _check_mode(f"{path}.items[{index}].mode", key_to_path.mode)
    yield from duplicate_values(path + ".items[{}].path", [key_to_path.path for key_to_path in items])


def _check_downward_api(path: str, items: tuple[DownwardAPIVolumeFile, ...]) -> Iterator[FieldError]:
    for index, file in enumerate(items):
        item_path = f"{path}.items[{index}]"
        yield from check_relative_path(f"{item_path}.path", file.path)
        yield from _check_mode(f"{item_path}.mode", file.mode)
        if (file.field_ref is None) == (file.resource_field_ref is None):
            yield FieldError(item_path, "given", "exactly one of fieldRef and resourceFieldRef is required", MISSING)
        if file.field_ref is not None and not _is_file_field(file.field_ref.field_path):
            accepted = f"{', '.join(FILE_FIELDS)}, metadata.labels['KEY'] and metadata.annotations['KEY'] are accepted"
            yield FieldError(
                f"{item_path}.fieldRef.fieldPath", quoted(file.field_ref.field_path), accepted, NOT_SUPPORTED
            )
        if file.resource_field_ref is not None:
            yield from containers.check_resource_field(f"{item_path}.resourceFieldRef", file.resource_field_ref)
            if not file.resource_field_ref.container_name:
                yield FieldError(
                    f"{item_path}.resourceFieldRef.containerName", '""', "a container is required", MISSING
                )
    yield from duplicate_values(path + ".items[{}].path", [file.path for file in items])


def _is_file_field(path: str) -> bool:
    by_key = path.startswith(("metadata.labels['", "metadata.annotations['")) and path.endswith("']")
    return path in FILE_FIELDS or (by_key and path.count("'") == 2)


def check_relative_path(path: str, text: str) -> Iterator[FieldError]:
    """Yield an error if a text is not a path of a file in a volume."""
    parts = text.split("/")
    if not text or text.startswith("/") or ".." in parts or parts[0].startswith("..") or len(text) > MAX_PATH_LENGTH:
        accepted = 'a relative path is accepted, without ".." and not beginning with it, up to 4096 characters'
        yield FieldError(path, quoted(text), accepted)


def _check_object_name(path: str, text: str) -> Iterator[FieldError]:
    if not text:
        yield FieldError(path, '""', "a name is required", MISSING)
    elif error := names.dns_subdomain_error(text):
        yield FieldError(path, quoted(text), error)


def _check_mode(path: str, mode: int | None) -> Iterator[FieldError]:
    if mode is not None and not 0 <= mode <= 0o777:
        yield FieldError(path, quoted(mode), "0 to 511 (0777 in octal) is accepted")


# --- mounts -----------------------------------------------------------------------------------------------------------


def check_mounts(
    path: str, mounts: tuple[VolumeMount, ...], volume_names: set[str], privileged: bool
) -> Iterator[FieldError]:
    """Yield the errors of the volume mounts of a container. `privileged` says whether the container is privileged."""
    for index, mount in enumerate(mounts):
        mount_path = f"{path}[{index}]"
        if mount.name not in volume_names:
            accepted = f"a volume of this pod is accepted: {', '.join(sorted(volume_names)) or 'none'}"
            yield FieldError(f"{mount_path}.name", quoted(mount.name), accepted)
        if not mount.mount_path.startswith("/") or ":" in mount.mount_path:
            yield FieldError(f"{mount_path}.mountPath", quoted(mount.mount_path), "an absolute path is accepted")
        for field, value in (("subPath", mount.sub_path), ("subPathExpr", mount.sub_path_expr)):
            if value.startswith("/") or ".." in value.split("/"):
                accepted = 'a relative path without ".." is accepted'
                yield FieldError(f"{mount_path}.{field}", quoted(value), accepted)
        if mount.sub_path and mount.sub_path_expr:
            accepted = "a subPath or a subPathExpr is accepted, not both"
            yield FieldError(f"{mount_path}.subPathExpr", quoted(mount.sub_path_expr), accepted)
        yield from _check_propagation(mount_path, mount, privileged)
    yield from duplicate_values(path + "[{}].mountPath", [mount.mount_path for mount in mounts])


def _check_propagation(path: str, mount: VolumeMount, privileged: bool) -> Iterator[FieldError]:
    yield from unsupported_values((f"{path}.mountPropagation", mount.mount_propagation or "", MOUNT_PROPAGATIONS))
    if mount.mount_propagation == "Bidirectional" and not privileged:
        accepted = "None and HostToContainer are accepted: Bidirectional is for privileged containers"
        yield FieldError(f"{path}.mountPropagation", quoted("Bidirectional"), accepted, FORBIDDEN)
    recursive = mount.recursive_read_only
    if recursive not in (None, *RECURSIVE_READ_ONLY):
        accepted = f"{', '.join(RECURSIVE_READ_ONLY)} are accepted: Docker does not tell whether it could do more"
        yield FieldError(f"{path}.recursiveReadOnly", quoted(recursive), accepted, FORBIDDEN)
    elif recursive == "IfPossible" and not mount.read_only:
        yield FieldError(f"{path}.recursiveReadOnly", quoted(recursive), "is accepted only with readOnly", FORBIDDEN)
    elif recursive == "IfPossible" and mount.mount_propagation not in (None, "None"):
        accepted = "is accepted only with mountPropagation None"
        yield FieldError(f"{path}.recursiveReadOnly", quoted(recursive), accepted, FORBIDDEN)


# --- PersistentVolume and PersistentVolumeClaim -----------------------------------------------------------------------


def check_persistent_volume(volume: PersistentVolume) -> Iterator[FieldError]:
    """Yield the errors of a PersistentVolume."""
    spec = volume.spec
    yield from _check_volume_source(spec)
    if "storage" not in spec.capacity:
        yield FieldError("spec.capacity[storage]", "null", "a size is required", MISSING)
    yield from _check_sizes("spec.capacity", spec.capacity)
    yield from _check_access_modes(spec.access_modes)
    yield from unsupported_values(
        ("spec.persistentVolumeReclaimPolicy", spec.persistent_volume_reclaim_policy, RECLAIM_POLICIES),
        ("spec.volumeMode", spec.volume_mode or "", VOLUME_MODES),
    )
    if spec.node_affinity is not None and spec.node_affinity.required is None:
        yield FieldError("spec.nodeAffinity.required", "null", "a node selector is required", MISSING)
    if spec.node_affinity is not None and spec.node_affinity.required is not None:
        yield from check_node_selector("spec.nodeAffinity.required", spec.node_affinity.required)
    if spec.claim_ref is not None and not (spec.claim_ref.namespace and spec.claim_ref.name):
        yield FieldError("spec.claimRef", "given", "a namespace and a name are required", MISSING)
    for index, option in enumerate(spec.mount_options):
        if not option or "," in option or option.startswith("-"):
            yield FieldError(f"spec.mountOptions[{index}]", quoted(option), "one option of mount is accepted")


def _check_volume_source(spec: PersistentVolumeSpec) -> Iterator[FieldError]:
    sources = {"nfs": spec.nfs, "hostPath": spec.host_path, "local": spec.local, "csi": spec.csi}
    set_fields = [name for name, source in sources.items() if source is not None]
    if len(set_fields) != 1:
        yield FieldError("spec", quoted(set_fields), "exactly one of nfs, hostPath and local is required", MISSING)
    if spec.csi is not None:
        yield FieldError("spec.csi", "given", "nfs, hostPath and local are accepted", FORBIDDEN)
    if spec.local is not None:
        yield from _check_local(spec, spec.local)
    if spec.nfs is not None:
        yield from check_nfs("spec.nfs", spec.nfs)
    if spec.host_path is not None:
        yield from check_host_path("spec.hostPath", spec.host_path)


def _check_local(spec: PersistentVolumeSpec, source: LocalVolumeSource) -> Iterator[FieldError]:
    yield from _check_absolute_path("spec.local.path", source.path)
    if source.fs_type:
        accepted = "none is accepted: a local volume is a directory, and is not formatted"
        yield FieldError("spec.local.fsType", quoted(source.fs_type), accepted, FORBIDDEN)
    if spec.node_affinity is None:
        yield FieldError("spec.nodeAffinity", "null", "Local volume requires node affinity", MISSING)
    if spec.mount_options:
        yield FieldError("spec.mountOptions", "given", "none is accepted with local", FORBIDDEN)


def check_persistent_volume_claim(claim: PersistentVolumeClaim) -> Iterator[FieldError]:
    """Yield the errors of a PersistentVolumeClaim."""
    spec = claim.spec
    yield from _check_access_modes(spec.access_modes)
    if "storage" not in spec.resources.requests:
        yield FieldError("spec.resources.requests[storage]", "null", "a size is required", MISSING)
    yield from _check_sizes("spec.resources.requests", spec.resources.requests)
    yield from unsupported_values(("spec.volumeMode", spec.volume_mode or "", VOLUME_MODES))
    if spec.volume_name and (error := names.dns_subdomain_error(spec.volume_name)):
        yield FieldError("spec.volumeName", quoted(spec.volume_name), error)
    if spec.selector is not None:
        yield from check_selector("spec.selector", spec.selector)
    for field, value in (("dataSource", spec.data_source), ("dataSourceRef", spec.data_source_ref)):
        if value is not None:
            yield FieldError(f"spec.{field}", "given", "is not supported by this version", FORBIDDEN)


def _check_sizes(path: str, sizes: Mapping[str, str | int | float]) -> Iterator[FieldError]:
    for name, text in sizes.items():
        try:
            if quantity.parse(text) <= 0:
                yield FieldError(f"{path}[{name}]", quoted(text), "more than 0 is accepted")
        except quantity.BadQuantity as error:
            yield FieldError(f"{path}[{name}]", quoted(text), str(error))


def _check_access_modes(modes: tuple[str, ...]) -> Iterator[FieldError]:
    if not modes:
        yield FieldError("spec.accessModes", "[]", "at least one access mode is required", MISSING)
    for index, mode in enumerate(modes):
        if mode not in ACCESS_MODES:
            accepted = f"{', '.join(ACCESS_MODES)} are accepted"
            yield FieldError(f"spec.accessModes[{index}]", quoted(mode), accepted, NOT_SUPPORTED)


def check_persistent_volume_update(old: PersistentVolume, new: PersistentVolume) -> Iterator[FieldError]:
    """Yield an error if an update changes the source, the mode or the nodes of the volume."""
    old_source = (old.spec.nfs, old.spec.host_path, old.spec.local, old.spec.volume_mode)
    new_source = (new.spec.nfs, new.spec.host_path, new.spec.local, new.spec.volume_mode)
    if old_source != new_source:
        yield FieldError("spec.persistentvolumesource", "changed", "field is immutable after creation", FORBIDDEN)
    if old.spec.node_affinity is not None and new.spec.node_affinity != old.spec.node_affinity:
        yield FieldError("spec.nodeAffinity", "changed", "field is immutable once it is set", FORBIDDEN)


def check_persistent_volume_claim_update(
    old: PersistentVolumeClaim, new: PersistentVolumeClaim
) -> Iterator[FieldError]:
    """Yield an error if an update changes the spec, except for an empty `volumeName` that is set."""
    accepted = replace(old.spec, volume_name=old.spec.volume_name or new.spec.volume_name)
    if new.spec != accepted:
        reason = "spec is immutable after creation except spec.volumeName while it is empty"
        yield FieldError("spec", "changed", reason, FORBIDDEN)


# --- LocalVolume ------------------------------------------------------------------------------------------------------


def check_local_volume_status(volume: LocalVolume) -> Iterator[FieldError]:
    """Yield the errors of a status as a node reports it."""
    status = volume.status
    if status.phase not in LOCAL_VOLUME_PHASES:
        accepted = f"{', '.join(filter(None, LOCAL_VOLUME_PHASES))} are accepted"
        yield FieldError("status.phase", quoted(status.phase), accepted, NOT_SUPPORTED)
    if status.path:
        yield from _check_absolute_path("status.path", status.path)
    if len(status.path) > MAX_PATH_LENGTH:
        accepted = f"at most {MAX_PATH_LENGTH} characters are accepted"
        yield FieldError("status.path", f"{len(status.path)} characters", accepted)
    if len(status.message) > MAX_LOCAL_VOLUME_MESSAGE:
        accepted = f"at most {MAX_LOCAL_VOLUME_MESSAGE} characters are accepted"
        yield FieldError("status.message", f"{len(status.message)} characters", accepted)

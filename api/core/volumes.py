"""The volume sources of a Pod and their defaults. Pure.

Modes are numbers (420 is 0644 in octal); paths of files in a volume are relative to it.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec.structs import replace

from api.meta.types import Json, ObjectFieldSelector, ResourceFieldSelector, Value
from api.meta.values import Int32

DEFAULT_MODE = 0o644
DEFAULT_TOKEN_SECONDS = 3600


class VolumeMount(Value, frozen=True):
    """A volume as it is mounted in a container.

    `name` is the name of the volume. `mount_path` is the directory in the container. `read_only` prevents the container
    from writing. `sub_path` is the path in the volume that is mounted instead of the whole volume. `sub_path_expr` is
    the same, with $(NAME) for environment variables. `mount_propagation` is None, HostToContainer or Bidirectional:
    whether mounts that are made later on one side appear on the other. `recursive_read_only` is Disabled, IfPossible or
    Enabled: whether mounts below it are read-only, too.
    """

    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""
    sub_path_expr: str = ""
    mount_propagation: str | None = None
    recursive_read_only: str | None = None


class EmptyDirVolumeSource(Value, frozen=True):
    """A directory that exists as long as the pod. `medium` is empty for the disk, or Memory for a tmpfs."""

    medium: str = ""
    size_limit: str | int | None = None


class HostPathVolumeSource(Value, frozen=True):
    """A file or directory of the node. `type` says what must exist, or is created, at `path`."""

    path: str
    type: str | None = None


class KeyToPath(Value, frozen=True):
    """A key of a ConfigMap or Secret that becomes a file at `path`."""

    key: str
    path: str
    mode: Int32 | None = None


class ConfigMapProjection(Value, frozen=True):
    """Files from a ConfigMap: all keys, or those in `items`."""

    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool = False


class ConfigMapVolumeSource(ConfigMapProjection, frozen=True):
    """A volume with files from a ConfigMap."""

    default_mode: Int32 | None = None


class SecretProjection(Value, frozen=True):
    """Files from a Secret: all keys, or those in `items`."""

    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool = False


class SecretVolumeSource(Value, frozen=True):
    """A volume with files from a Secret: all keys, or those in `items`."""

    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool = False
    default_mode: Int32 | None = None


class DownwardAPIVolumeFile(Value, frozen=True):
    """A file with a field of the pod, or with a resource of a container."""

    path: str
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    mode: Int32 | None = None


class DownwardAPIProjection(Value, frozen=True):
    """Files with fields of the pod and resources of its containers."""

    items: tuple[DownwardAPIVolumeFile, ...] = ()


class DownwardAPIVolumeSource(DownwardAPIProjection, frozen=True):
    """A volume with fields of the pod and resources of its containers."""

    default_mode: Int32 | None = None


class ServiceAccountTokenProjection(Value, frozen=True):
    """A file with a token of the pod's service account. An empty `audience` stands for the API server."""

    path: str
    audience: str = ""
    expiration_seconds: int | None = None


class VolumeProjection(Value, frozen=True):
    """A source of a projected volume. Exactly one field is set."""

    config_map: ConfigMapProjection | None = None
    secret: SecretProjection | None = None
    downward_api: DownwardAPIProjection | None = msgspec.field(default=None, name="downwardAPI")
    service_account_token: ServiceAccountTokenProjection | None = None
    cluster_trust_bundle: Json = None
    pod_certificate: Json = None


class ProjectedVolumeSource(Value, frozen=True):
    """A volume with files from several sources."""

    sources: tuple[VolumeProjection, ...] = ()
    default_mode: Int32 | None = None


class NFSVolumeSource(Value, frozen=True):
    """A directory of an NFS server."""

    server: str
    path: str
    read_only: bool = False


class PersistentVolumeClaimVolumeSource(Value, frozen=True):
    """The volume that is bound to a PersistentVolumeClaim of the pod's namespace."""

    claim_name: str
    read_only: bool = False


class Volume(Value, frozen=True):
    """A volume of a pod. Exactly one source is set."""

    name: str
    empty_dir: EmptyDirVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    config_map: ConfigMapVolumeSource | None = None
    secret: SecretVolumeSource | None = None
    downward_api: DownwardAPIVolumeSource | None = msgspec.field(default=None, name="downwardAPI")
    projected: ProjectedVolumeSource | None = None
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    nfs: NFSVolumeSource | None = None
    ephemeral: Json = None
    csi: Json = None
    image: Json = None


# --- defaults ---------------------------------------------------------------------------------------------------------


def volume_defaults(volume: Volume) -> Volume:
    """Return the volume with every default set. Idempotent."""
    return replace(
        volume,
        host_path=volume.host_path and replace(volume.host_path, type=volume.host_path.type or ""),
        config_map=volume.config_map and _with_mode(volume.config_map),
        secret=volume.secret and _with_mode(volume.secret),
        downward_api=volume.downward_api and _with_mode(_with_versions(volume.downward_api)),
        projected=volume.projected
        and _with_mode(replace(volume.projected, sources=tuple(map(_defaulted_projection, volume.projected.sources)))),
    )


M = TypeVar("M", ConfigMapVolumeSource, SecretVolumeSource, DownwardAPIVolumeSource, ProjectedVolumeSource)
D = TypeVar("D", DownwardAPIVolumeSource, DownwardAPIProjection)


def _with_mode(source: M) -> M:
    return source if source.default_mode is not None else replace(source, default_mode=DEFAULT_MODE)


def _with_versions(source: D) -> D:
    return replace(source, items=tuple(map(_with_version, source.items)))


def _with_version(file: DownwardAPIVolumeFile) -> DownwardAPIVolumeFile:
    selector = file.field_ref
    return replace(file, field_ref=selector and replace(selector, api_version=selector.api_version or "v1"))


def _defaulted_projection(source: VolumeProjection) -> VolumeProjection:
    token = source.service_account_token
    if token is not None and token.expiration_seconds is None:
        token = replace(token, expiration_seconds=DEFAULT_TOKEN_SECONDS)
    downward = source.downward_api and _with_versions(source.downward_api)
    return replace(source, service_account_token=token, downward_api=downward)

"""The volume sources of a Pod and their defaults. Pure.

Modes are numbers (420 is 0644 in octal); paths of files in a volume are relative to it.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec.structs import replace

from api.meta.types import Json, ObjectFieldSelector, ResourceFieldSelector, Value

DEFAULT_MODE = 0o644
TOKEN_SECONDS = 3600


class VolumeMount(Value, frozen=True):
    """Where a container finds a volume of its pod.

    `name` is the volume's. `mount_path` is the directory in the container. `read_only` keeps the container from
    writing. `sub_path` is the part of the volume that is seen, instead of the whole. `sub_path_expr` is the same with
    $(NAME) for variables. `mount_propagation` is None, HostToContainer or Bidirectional: whether what is mounted
    later on one side is seen on the other. `recursive_read_only` is Disabled, IfPossible or Enabled: whether what is
    mounted below may not be written either.
    """

    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""
    sub_path_expr: str = ""
    mount_propagation: str | None = None
    recursive_read_only: str | None = None


class EmptyDirVolumeSource(Value, frozen=True):
    medium: str = ""
    size_limit: str | int | None = None


class HostPathVolumeSource(Value, frozen=True):
    path: str
    type: str | None = None


class KeyToPath(Value, frozen=True):
    """One key of a ConfigMap or Secret as a file."""

    key: str
    path: str
    mode: int | None = None


class ConfigMapProjection(Value, frozen=True):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool = False


class ConfigMapVolumeSource(ConfigMapProjection, frozen=True):
    default_mode: int | None = None


class SecretProjection(Value, frozen=True):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool = False


class SecretVolumeSource(Value, frozen=True):
    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool = False
    default_mode: int | None = None


class DownwardAPIVolumeFile(Value, frozen=True):
    """Something about the pod itself as a file."""

    path: str
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    mode: int | None = None


class DownwardAPIProjection(Value, frozen=True):
    items: tuple[DownwardAPIVolumeFile, ...] = ()


class DownwardAPIVolumeSource(DownwardAPIProjection, frozen=True):
    default_mode: int | None = None


class ServiceAccountTokenProjection(Value, frozen=True):
    """A token of the pod's service account; `audience` empty means the API server's own."""

    path: str
    audience: str = ""
    expiration_seconds: int | None = None


class VolumeProjection(Value, frozen=True):
    """One source of a projected volume: exactly one of the fields is set."""

    config_map: ConfigMapProjection | None = None
    secret: SecretProjection | None = None
    downward_api: DownwardAPIProjection | None = msgspec.field(default=None, name="downwardAPI")
    service_account_token: ServiceAccountTokenProjection | None = None
    cluster_trust_bundle: Json = None
    pod_certificate: Json = None


class ProjectedVolumeSource(Value, frozen=True):
    sources: tuple[VolumeProjection, ...] = ()
    default_mode: int | None = None


class NFSVolumeSource(Value, frozen=True):
    server: str
    path: str
    read_only: bool = False


class PersistentVolumeClaimVolumeSource(Value, frozen=True):
    claim_name: str
    read_only: bool = False


class Volume(Value, frozen=True):
    """Exactly one source is set."""

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


def defaulted(volume: Volume) -> Volume:
    """The volume with every default written out; doing it twice changes nothing."""
    return replace(
        volume,
        host_path=volume.host_path and replace(volume.host_path, type=volume.host_path.type or ""),
        config_map=volume.config_map and _with_mode(volume.config_map),
        secret=volume.secret and _with_mode(volume.secret),
        downward_api=volume.downward_api and _with_mode(_with_versions(volume.downward_api)),
        projected=volume.projected
        and _with_mode(replace(volume.projected, sources=tuple(map(_projection, volume.projected.sources)))),
    )


M = TypeVar("M", ConfigMapVolumeSource, SecretVolumeSource, DownwardAPIVolumeSource, ProjectedVolumeSource)
D = TypeVar("D", DownwardAPIVolumeSource, DownwardAPIProjection)


def _with_mode(source: M) -> M:
    return source if source.default_mode is not None else replace(source, default_mode=DEFAULT_MODE)


def _with_versions(source: D) -> D:
    return replace(source, items=tuple(map(_versioned, source.items)))


def _versioned(item: DownwardAPIVolumeFile) -> DownwardAPIVolumeFile:
    selector = item.field_ref
    return replace(item, field_ref=selector and replace(selector, api_version=selector.api_version or "v1"))


def _projection(source: VolumeProjection) -> VolumeProjection:
    token = source.service_account_token
    if token is not None and token.expiration_seconds is None:
        token = replace(token, expiration_seconds=TOKEN_SECONDS)
    downward = source.downward_api and _with_versions(source.downward_api)
    return replace(source, service_account_token=token, downward_api=downward)

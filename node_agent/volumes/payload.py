"""Files of ConfigMap, Secret, downward API and projected volumes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from api.core import references
from api.core.config import ConfigMap, Secret, binary_data
from api.core.pod import Pod
from api.core.references import Reference
from api.core.volumes import (
    DEFAULT_MODE,
    DownwardAPIVolumeFile,
    KeyToPath,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from api.meta.types import Object
from reconcile.errors import NotReady, Refused

TOKEN_MODE = 0o600
"""Mode of a token that belongs to one user or group."""

GROUP_READ_MODE = 0o440
"""Permissions that files of a volume with fsGroup have in addition to their mode."""

O = TypeVar("O", bound=Object)


@dataclass(frozen=True, slots=True)
class PayloadFile:
    """A file of a volume: its content, its permissions and the uid of its owner."""

    content: bytes
    mode: int
    owner: int = 0


@dataclass(frozen=True, slots=True)
class PayloadSources:
    """The inputs of a volume's files besides the pod: existing objects, the node's allocatable resources, tokens."""

    objects: Mapping[Reference, Object]
    allocatable: Mapping[str, str]
    tokens: Mapping[ServiceAccountTokenProjection, str] = field(default_factory=dict)


def has_payload(volume: Volume) -> bool:
    """Return whether the agent writes the files of this volume."""
    return any((volume.config_map, volume.secret, volume.downward_api, volume.projected))


def needs_tmpfs(volume: Volume) -> bool:
    """Return whether the files of this volume must not be on a disk."""
    return volume.secret is not None or volume.projected is not None


def fs_group(pod: Pod) -> int | None:
    """Return the gid that owns the pod's volumes (`securityContext.fsGroup`), or None."""
    context = pod.spec.security_context
    return None if context is None else context.fs_group


def trusts_volume_root(pod: Pod) -> bool:
    """Return whether a volume keeps its groups if its root has the right one (`fsGroupChangePolicy`)."""
    context = pod.spec.security_context
    return context is not None and context.fs_group_change_policy == "OnRootMismatch"


def single_run_as_user(pod: Pod) -> int | None:
    """Return the uid of all containers if the pod's spec gives all of them the same uid, otherwise None."""
    context = pod.spec.security_context
    pod_user = None if context is None else context.run_as_user
    users: set[int | None] = set()
    for container in (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers):
        user = None if container.security_context is None else container.security_context.run_as_user
        users.add(pod_user if user is None else user)
    return users.pop() if len(users) == 1 else None


def projected_tokens(volume: Volume) -> tuple[ServiceAccountTokenProjection, ...]:
    """Return the service account tokens of a projected volume."""
    sources = volume.projected.sources if volume.projected is not None else ()
    return tuple(source.service_account_token for source in sources if source.service_account_token is not None)


def payload_files(volume: Volume, pod: Pod, sources: PayloadSources) -> dict[str, PayloadFile]:
    """Return all files of a volume by their path.

    Raises NotReady if an object or a key is missing that is not optional, Refused if two sources have the same path.
    """
    files: dict[str, PayloadFile] = {}
    for path, file in _all_files(volume, pod, sources):
        if path in files:
            raise Refused(f"two sources have the path {path!r}")
        files[path] = file
    parents = {path.rsplit("/", depth)[0] for path in files for depth in range(1, path.count("/") + 1)}
    if conflicts := sorted(parents & files.keys()):
        raise Refused(f"{conflicts[0]!r} is a file and a directory")
    if fs_group(pod) is not None:
        return {path: replace(file, mode=file.mode | GROUP_READ_MODE) for path, file in files.items()}
    return files


def format_map(values: Mapping[str, str]) -> str:
    r"""Return labels or annotations as sorted lines `key="value"`; `"`, `\` and unprintable characters are escaped."""
    return "\n".join(f'{key}="{"".join(map(_escape, value))}"' for key, value in sorted(values.items()))


def _all_files(volume: Volume, pod: Pod, sources: PayloadSources) -> Iterator[tuple[str, PayloadFile]]:
    if volume.config_map is not None:
        config_map = volume.config_map
        mode = _default_mode(config_map.default_mode)
        yield from _config_map_files(
            config_map.name, config_map.items, pod, sources, mode, optional=config_map.optional
        )
    elif volume.secret is not None:
        secret = volume.secret
        mode = _default_mode(secret.default_mode)
        yield from _secret_files(secret.secret_name, secret.items, pod, sources, mode, optional=secret.optional)
    elif volume.downward_api is not None:
        mode = _default_mode(volume.downward_api.default_mode)
        yield from _downward_files(volume.downward_api.items, pod, sources, mode)
    elif volume.projected is not None:
        for projection in volume.projected.sources:
            yield from _projection_files(projection, pod, sources, _default_mode(volume.projected.default_mode))


def _default_mode(mode: int | None) -> int:
    return DEFAULT_MODE if mode is None else mode


def _projection_files(
    projection: VolumeProjection, pod: Pod, sources: PayloadSources, mode: int
) -> Iterator[tuple[str, PayloadFile]]:
    if projection.config_map is not None:
        config_map = projection.config_map
        yield from _config_map_files(
            config_map.name, config_map.items, pod, sources, mode, optional=config_map.optional
        )
    if projection.secret is not None:
        secret = projection.secret
        yield from _secret_files(secret.name, secret.items, pod, sources, mode, optional=secret.optional)
    if projection.downward_api is not None:
        yield from _downward_files(projection.downward_api.items, pod, sources, mode)
    if projection.service_account_token is not None:
        token = projection.service_account_token
        user = single_run_as_user(pod)
        content = sources.tokens[token].encode()
        has_several_users = user is None and fs_group(pod) is None
        yield token.path, PayloadFile(content, mode if has_several_users else TOKEN_MODE, user or 0)


def _config_map_files(
    name: str, items: tuple[KeyToPath, ...], pod: Pod, sources: PayloadSources, mode: int, *, optional: bool
) -> Iterable[tuple[str, PayloadFile]]:
    config_map = _get_object(ConfigMap, name, pod, sources, optional=optional)
    data = {} if config_map is None else binary_data(config_map)
    return _select_keys(data, items, mode, "config", optional=optional)


def _secret_files(
    name: str, items: tuple[KeyToPath, ...], pod: Pod, sources: PayloadSources, mode: int, *, optional: bool
) -> Iterable[tuple[str, PayloadFile]]:
    secret = _get_object(Secret, name, pod, sources, optional=optional)
    data = {} if secret is None else secret.data
    return _select_keys(data, items, mode, "secret", optional=optional)


def _get_object(kind: type[O], name: str, pod: Pod, sources: PayloadSources, *, optional: bool) -> O | None:
    reference = Reference(kind, pod.metadata.namespace, name)
    obj = sources.objects.get(reference)
    if obj is None and not optional:
        raise NotReady(f"{reference} not found")
    return obj if isinstance(obj, kind) else None


def _select_keys(
    data: Mapping[str, bytes], items: tuple[KeyToPath, ...], mode: int, source_name: str, *, optional: bool
) -> Iterator[tuple[str, PayloadFile]]:
    """Yield a file for every key, or only for the keys that `items` names. `source_name` names the data in errors."""
    if not items:
        yield from ((key, PayloadFile(content, mode)) for key, content in data.items())
    for key_to_path in items:
        if key_to_path.key in data:
            yield (
                key_to_path.path,
                PayloadFile(data[key_to_path.key], mode if key_to_path.mode is None else key_to_path.mode),
            )
        elif not optional:
            raise NotReady(f"references non-existent {source_name} key: {key_to_path.key}")


def _downward_files(
    items: tuple[DownwardAPIVolumeFile, ...], pod: Pod, sources: PayloadSources, mode: int
) -> Iterator[tuple[str, PayloadFile]]:
    for file in items:
        text = _downward_value(file, pod, sources.allocatable)
        yield file.path, PayloadFile(text.encode(), mode if file.mode is None else file.mode)


def _downward_value(file: DownwardAPIVolumeFile, pod: Pod, allocatable: Mapping[str, str]) -> str:
    if file.field_ref is not None:
        path = file.field_ref.field_path
        if path == "metadata.labels":
            return format_map(pod.metadata.labels)
        if path == "metadata.annotations":
            return format_map(pod.metadata.annotations)
        return references.pod_field_value(pod, path)
    if file.resource_field_ref is None:
        return ""
    try:
        return references.resource_field_value(pod, file.resource_field_ref, "", allocatable)
    except KeyError as error:
        raise Refused(f"the pod has no container {error}") from None


_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

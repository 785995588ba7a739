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

PRIVATE_MODE = 0o600
"""Of a token that one user or group reads."""

READABLE = 0o440
"""What the group of a volume may do with its files, beyond their modes."""

O = TypeVar("O", bound=Object)


@dataclass(frozen=True, slots=True)
class File:
    """`mode` are its permissions, `owner` is a uid."""

    content: bytes
    mode: int
    owner: int = 0


@dataclass(frozen=True, slots=True)
class PayloadSources:
    """What files are made of besides the pod: the objects there are, what the node can give, tokens."""

    objects: Mapping[Reference, Object]
    allocatable: Mapping[str, str]
    tokens: Mapping[ServiceAccountTokenProjection, str] = field(default_factory=dict)


def is_projected(volume: Volume) -> bool:
    """Whether the agent writes this volume."""
    return any((volume.config_map, volume.secret, volume.downward_api, volume.projected))


def needs_tmpfs(volume: Volume) -> bool:
    """Whether its files may never be on a disk."""
    return volume.secret is not None or volume.projected is not None


def fs_group(pod: Pod) -> int | None:
    """The group that owns the pod's volumes (`securityContext.fsGroup`)."""
    context = pod.spec.security_context
    return None if context is None else context.fs_group


def single_run_as_user(pod: Pod) -> int | None:
    """The uid under which every container of the pod runs, if the pod names one for all."""
    context = pod.spec.security_context
    given = None if context is None else context.run_as_user
    containers = (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers)
    own = [one.security_context.run_as_user if one.security_context is not None else None for one in containers]
    users = {given if user is None else user for user in own}
    return users.pop() if len(users) == 1 else None


def projected_tokens(volume: Volume) -> tuple[ServiceAccountTokenProjection, ...]:
    """The tokens that the volume holds."""
    sources = volume.projected.sources if volume.projected is not None else ()
    return tuple(source.service_account_token for source in sources if source.service_account_token is not None)


def payload_files(volume: Volume, pod: Pod, material: PayloadSources) -> dict[str, File]:
    """Every file of the volume by its path.

    Raises NotReady when an object or a key is missing that is not optional, Refused when two sources want one path.
    """
    found: dict[str, File] = {}
    for path, file in _all_files(volume, pod, material):
        if path in found:
            raise Refused(f"two sources have the path {path!r}")
        found[path] = file
    parents = {path.rsplit("/", number)[0] for path in found for number in range(1, path.count("/") + 1)}
    if both := sorted(parents & found.keys()):
        raise Refused(f"{both[0]!r} is a file and a directory")
    if fs_group(pod) is not None:
        return {path: replace(file, mode=file.mode | READABLE) for path, file in found.items()}
    return found


def _all_files(volume: Volume, pod: Pod, material: PayloadSources) -> Iterator[tuple[str, File]]:
    if volume.config_map is not None:
        source = volume.config_map
        mode = _mode(source.default_mode)
        yield from _config_map(source.name, source.items, pod, material, mode, optional=source.optional)
    elif volume.secret is not None:
        secret = volume.secret
        mode = _mode(secret.default_mode)
        yield from _secret(secret.secret_name, secret.items, pod, material, mode, optional=secret.optional)
    elif volume.downward_api is not None:
        yield from _downward(volume.downward_api.items, pod, material, _mode(volume.downward_api.default_mode))
    elif volume.projected is not None:
        for projection in volume.projected.sources:
            yield from _projected(projection, pod, material, _mode(volume.projected.default_mode))


def _mode(given: int | None) -> int:
    return DEFAULT_MODE if given is None else given


def _projected(source: VolumeProjection, pod: Pod, material: PayloadSources, mode: int) -> Iterator[tuple[str, File]]:
    if source.config_map is not None:
        config = source.config_map
        yield from _config_map(config.name, config.items, pod, material, mode, optional=config.optional)
    if source.secret is not None:
        secret = source.secret
        yield from _secret(secret.name, secret.items, pod, material, mode, optional=secret.optional)
    if source.downward_api is not None:
        yield from _downward(source.downward_api.items, pod, material, mode)
    if source.service_account_token is not None:
        token, user = source.service_account_token, single_run_as_user(pod)
        shared = user is None and fs_group(pod) is None
        content = material.tokens[token].encode()
        yield token.path, File(content, mode if shared else PRIVATE_MODE, user or 0)


def _config_map(
    name: str, items: tuple[KeyToPath, ...], pod: Pod, material: PayloadSources, mode: int, *, optional: bool
) -> Iterable[tuple[str, File]]:
    config = _object(ConfigMap, name, pod, material, optional=optional)
    held = {} if config is None else binary_data(config)
    return _keys(held, items, mode, "config", optional=optional)


def _secret(
    name: str, items: tuple[KeyToPath, ...], pod: Pod, material: PayloadSources, mode: int, *, optional: bool
) -> Iterable[tuple[str, File]]:
    secret = _object(Secret, name, pod, material, optional=optional)
    return _keys({} if secret is None else secret.data, items, mode, "secret", optional=optional)


def _object(kind: type[O], name: str, pod: Pod, material: PayloadSources, *, optional: bool) -> O | None:
    reference = Reference(kind, pod.metadata.namespace, name)
    found = material.objects.get(reference)
    if found is None and not optional:
        raise NotReady(f"{reference} not found")
    return found if isinstance(found, kind) else None


def _keys(
    held: Mapping[str, bytes], items: tuple[KeyToPath, ...], mode: int, what: str, *, optional: bool
) -> Iterator[tuple[str, File]]:
    """Every key, or those that `items` names."""
    if not items:
        yield from ((key, File(content, mode)) for key, content in held.items())
    for item in items:
        if item.key in held:
            yield item.path, File(held[item.key], mode if item.mode is None else item.mode)
        elif not optional:
            raise NotReady(f"references non-existent {what} key: {item.key}")


def _downward(
    items: tuple[DownwardAPIVolumeFile, ...], pod: Pod, material: PayloadSources, mode: int
) -> Iterator[tuple[str, File]]:
    for item in items:
        text = _about(item, pod, material.allocatable)
        yield item.path, File(text.encode(), mode if item.mode is None else item.mode)


def _about(item: DownwardAPIVolumeFile, pod: Pod, allocatable: Mapping[str, str]) -> str:
    if item.field_ref is not None:
        path = item.field_ref.field_path
        whole = {"metadata.labels": pod.metadata.labels, "metadata.annotations": pod.metadata.annotations}.get(path)
        return references.pod_field_value(pod, path) if whole is None else format_map(whole)
    if item.resource_field_ref is None:
        return ""
    try:
        return references.resource_field_value(pod, item.resource_field_ref, "", allocatable)
    except KeyError as error:
        raise Refused(f"the pod has no container {error}") from None


def format_map(marks: Mapping[str, str]) -> str:
    r"""Labels or annotations, sorted, as lines `key="value"` with `"`, `\` and unprintable characters escaped."""
    return "\n".join(f'{key}="{"".join(map(_escaped, value))}"' for key, value in sorted(marks.items()))


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


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

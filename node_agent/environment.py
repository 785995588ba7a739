"""A container's environment, and the words of its command that use it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from api import fields, resource_fields
from api.configuration import ConfigMap, Secret
from api.objects import Container, Object, Pod
from api.references import Reference
from api.value import ResourceFieldSelector
from api.variables import EnvVar, KeySelector, is_name
from reconcile.errors import Refused

_VARIABLE = re.compile(r"\$(?:\$|\(([^()]*)\))")


@dataclass(frozen=True, slots=True)
class Sources:
    """What variables come from besides the pod: the objects there are, and what the node can give, as quantities.

    `services` are variables that stand before all others.
    """

    objects: Mapping[Reference, Object] = field(default_factory=lambda: MappingProxyType({}))
    allocatable: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    services: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def environment(pod: Pod, container: Container, sources: Sources) -> dict[str, str]:
    """The variables in order; each may use those declared before it. The pod's status has its addresses.

    Keys of whole objects that cannot be names of variables are left out. Raises Refused when an object or a key is
    missing that is not optional.
    """
    known = dict(sources.services)
    for source in container.env_from:
        for kind, ref in ((ConfigMap, source.config_map_ref), (Secret, source.secret_ref)):
            if ref is not None:
                held = _held(Reference(kind, pod.metadata.namespace, ref.name), bool(ref.optional), sources)
                known |= {f"{source.prefix}{key}": _text(value) for key, value in held.items() if is_name(key)}
    for variable in container.env:
        value = _value(pod, container, variable, known, sources)
        if value is not None:
            known[variable.name] = value
    return known


def _value(pod: Pod, container: Container, variable: EnvVar, known: Mapping[str, str], sources: Sources) -> str | None:
    """None when the variable is optional and there is nothing to take it from."""
    source = variable.value_from
    if source is None:
        return expand(variable.value, known)
    if source.field_ref is not None:
        return fields.value_of(pod, source.field_ref.field_path)
    if source.resource_field_ref is not None:
        return _resource(pod, container, source.resource_field_ref, sources)
    for kind, ref in ((ConfigMap, source.config_map_key_ref), (Secret, source.secret_key_ref)):
        if ref is not None:
            return _key(Reference(kind, pod.metadata.namespace, ref.name), ref, sources)
    return None


def _resource(pod: Pod, container: Container, ref: ResourceFieldSelector, sources: Sources) -> str:
    try:
        return resource_fields.value_of(pod, ref, container.name, sources.allocatable)
    except KeyError as error:
        raise Refused(f"container {error.args[0]!r} not found") from None


def _key(wanted: Reference, ref: KeySelector, sources: Sources) -> str | None:
    held = _held(wanted, bool(ref.optional), sources)
    if ref.key in held:
        return _text(held[ref.key])
    if ref.optional:
        return None
    raise Refused(f"couldn't find key {ref.key} in {wanted.kind.KIND} {wanted.namespace}/{wanted.name}")


def _held(wanted: Reference, optional: bool, sources: Sources) -> Mapping[str, bytes]:
    found = sources.objects.get(wanted)
    if isinstance(found, ConfigMap):
        return {key: text.encode() for key, text in found.data.items()}  # variables are text: not its binary data
    if isinstance(found, Secret):
        return found.data
    if optional:
        return {}
    raise Refused(f"{wanted} not found")


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def unknown(text: str, known: Mapping[str, str]) -> list[str]:
    """The names in `$(NAME)` that are not known."""
    return [found[1] for found in _VARIABLE.finditer(text) if found[1] is not None and found[1] not in known]


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replace `$(NAME)` where NAME is known; `$$` stands for `$`, everything else for itself."""

    def value(found: re.Match[str]) -> str:
        if found.group() == "$$":
            return "$"
        return known.get(found.group(1), found.group())

    return _VARIABLE.sub(value, text)

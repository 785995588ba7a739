"""Environment variables of a container, expansion of $(NAME), service variables. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from api.core import references
from api.core.config import ConfigMap, Secret
from api.core.pod import Container, EnvVar, KeySelector, Pod, is_env_name
from api.core.references import Reference
from api.core.services import Service
from api.meta.types import Object, ResourceFieldSelector
from reconcile.errors import Refused

_VARIABLE = re.compile(r"\$(?:\$|\(([^()]*)\))")


@dataclass(frozen=True, slots=True)
class EnvSources:
    """What environment variables depend on besides the pod.

    `objects`: existing ConfigMaps and Secrets. `allocatable`: the node's allocatable resources, as quantities.
    `services`: variables that precede all others.
    """

    objects: Mapping[Reference, Object] = field(default_factory=lambda: MappingProxyType({}))
    allocatable: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    services: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def container_env(pod: Pod, container: Container, sources: EnvSources) -> dict[str, str]:
    """Return the variables of a container in order. Each may refer to earlier ones. The pod's status has its addresses.

    Keys of `envFrom` objects that are no valid names are skipped.

    Raises Refused if a required object or key is missing.
    """
    known = dict(sources.services)
    for source in container.env_from:
        for kind, ref in ((ConfigMap, source.config_map_ref), (Secret, source.secret_ref)):
            if ref is not None:
                held = _held(Reference(kind, pod.metadata.namespace, ref.name), bool(ref.optional), sources)
                known |= {f"{source.prefix}{key}": _text(value) for key, value in held.items() if is_env_name(key)}
    for variable in container.env:
        value = _value(pod, container, variable, known, sources)
        if value is not None:
            known[variable.name] = value
    return known


def _value(
    pod: Pod, container: Container, variable: EnvVar, known: Mapping[str, str], sources: EnvSources
) -> str | None:
    """Return the value. Return None if the variable is optional and its source is missing."""
    source = variable.value_from
    if source is None:
        return expand(variable.value, known)
    if source.field_ref is not None:
        return references.pod_field_value(pod, source.field_ref.field_path)
    if source.resource_field_ref is not None:
        return _resource(pod, container, source.resource_field_ref, sources)
    for kind, ref in ((ConfigMap, source.config_map_key_ref), (Secret, source.secret_key_ref)):
        if ref is not None:
            return _key(Reference(kind, pod.metadata.namespace, ref.name), ref, sources)
    return None


def _resource(pod: Pod, container: Container, ref: ResourceFieldSelector, sources: EnvSources) -> str:
    try:
        return references.resource_field_value(pod, ref, container.name, sources.allocatable)
    except KeyError as error:
        raise Refused(f"container {error.args[0]!r} not found") from None


def _key(wanted: Reference, ref: KeySelector, sources: EnvSources) -> str | None:
    held = _held(wanted, bool(ref.optional), sources)
    if ref.key in held:
        return _text(held[ref.key])
    if ref.optional:
        return None
    raise Refused(f"couldn't find key {ref.key} in {wanted.kind.KIND} {wanted.namespace}/{wanted.name}")


def _held(wanted: Reference, optional: bool, sources: EnvSources) -> Mapping[str, bytes]:
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


def undefined_variables(text: str, known: Mapping[str, str]) -> list[str]:
    """Return the names in `$(NAME)` that are not defined."""
    return [found[1] for found in _VARIABLE.finditer(text) if found[1] is not None and found[1] not in known]


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replace `$(NAME)` where NAME is known; `$$` stands for `$`, everything else for itself."""

    def value(found: re.Match[str]) -> str:
        if found.group() == "$$":
            return "$"
        return known.get(found.group(1), found.group())

    return _VARIABLE.sub(value, text)


NO_ADDRESS = ("", "None")
API_SERVER = ("default", "kubernetes")
"""The service of the API server, which has variables in every container."""


def service_env(pod: Pod, services: Iterable[Service]) -> dict[str, str]:
    """Return the variables of the services of the pod's namespace, unless it disables them, and of the API server."""
    links = pod.spec.enable_service_links is not False
    chosen: dict[str, Service] = {}
    for service in services:
        namespace, name = service.metadata.namespace, service.metadata.name
        if service.spec.cluster_ip in NO_ADDRESS or not service.spec.ports:
            continue
        if links and namespace == pod.metadata.namespace:
            chosen[name] = service
        elif (namespace, name) == API_SERVER:
            chosen.setdefault(name, service)
    return {name: value for key in sorted(chosen) for name, value in _variables(chosen[key])}


def _variables(service: Service) -> Iterator[tuple[str, str]]:
    name, address, ports = _name(service.metadata.name), service.spec.cluster_ip, service.spec.ports
    host = f"[{address}]" if ":" in address else address
    yield f"{name}_SERVICE_HOST", address
    yield f"{name}_SERVICE_PORT", str(ports[0].port)
    for port in ports:
        if port.name:
            yield f"{name}_SERVICE_PORT_{_name(port.name)}", str(port.port)
    for number, port in enumerate(ports):
        protocol = (port.protocol or "TCP").lower()
        url = f"{protocol}://{host}:{port.port}"
        prefix = f"{name}_PORT_{port.port}_{protocol.upper()}"
        if number == 0:
            yield f"{name}_PORT", url
        yield prefix, url
        yield f"{prefix}_PROTO", protocol
        yield f"{prefix}_PORT", str(port.port)
        yield f"{prefix}_ADDR", address


def _name(text: str) -> str:
    return text.upper().replace("-", "_")

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
    """The inputs of environment variables besides the pod.

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
    env = dict(sources.services)
    for source in container.env_from:
        for kind, ref in ((ConfigMap, source.config_map_ref), (Secret, source.secret_ref)):
            if ref is not None:
                data = _object_data(Reference(kind, pod.metadata.namespace, ref.name), bool(ref.optional), sources)
                env |= {f"{source.prefix}{key}": _decode(value) for key, value in data.items() if is_env_name(key)}
    for variable in container.env:
        value = _value(pod, container, variable, env, sources)
        if value is not None:
            env[variable.name] = value
    return env


def _value(pod: Pod, container: Container, variable: EnvVar, env: Mapping[str, str], sources: EnvSources) -> str | None:
    """Return the value. Return None if the variable is optional and its source is missing."""
    source = variable.value_from
    if source is None:
        return expand(variable.value, env)
    if source.field_ref is not None:
        return references.pod_field_value(pod, source.field_ref.field_path)
    if source.resource_field_ref is not None:
        return _resource_value(pod, container, source.resource_field_ref, sources)
    for kind, ref in ((ConfigMap, source.config_map_key_ref), (Secret, source.secret_key_ref)):
        if ref is not None:
            return _key_value(Reference(kind, pod.metadata.namespace, ref.name), ref, sources)
    return None


def _resource_value(pod: Pod, container: Container, ref: ResourceFieldSelector, sources: EnvSources) -> str:
    try:
        return references.resource_field_value(pod, ref, container.name, sources.allocatable)
    except KeyError as error:
        raise Refused(f"container {error.args[0]!r} not found") from None


def _key_value(reference: Reference, ref: KeySelector, sources: EnvSources) -> str | None:
    data = _object_data(reference, bool(ref.optional), sources)
    if ref.key in data:
        return _decode(data[ref.key])
    if ref.optional:
        return None
    raise Refused(f"couldn't find key {ref.key} in {reference.kind.KIND} {reference.namespace}/{reference.name}")


def _object_data(reference: Reference, optional: bool, sources: EnvSources) -> Mapping[str, bytes]:
    obj = sources.objects.get(reference)
    if isinstance(obj, ConfigMap):
        return {key: text.encode() for key, text in obj.data.items()}  # Not its binary data, as variables are text.
    if isinstance(obj, Secret):
        return obj.data
    if optional:
        return {}
    raise Refused(f"{reference} not found")


def _decode(value: bytes) -> str:
    return value.decode(errors="replace")


def undefined_variables(text: str, variables: Mapping[str, str]) -> list[str]:
    """Return the names in `$(NAME)` that are not defined."""
    return [match[1] for match in _VARIABLE.finditer(text) if match[1] is not None and match[1] not in variables]


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable NAME if it is defined, and `$$` by `$`. Everything else stays."""

    def value(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$"
        return variables.get(match.group(1), match.group())

    return _VARIABLE.sub(value, text)


NO_ADDRESS = ("", "None")
API_SERVER = ("default", "kubernetes")
"""The service of the API server, which has variables in every container."""


def service_env(pod: Pod, services: Iterable[Service]) -> dict[str, str]:
    """Return the variables of the services of the pod's namespace, unless it disables them, and of the API server."""
    has_service_links = pod.spec.enable_service_links is not False
    by_name: dict[str, Service] = {}
    for service in services:
        namespace = service.metadata.namespace
        name = service.metadata.name
        if service.spec.cluster_ip in NO_ADDRESS or not service.spec.ports:
            continue
        if has_service_links and namespace == pod.metadata.namespace:
            by_name[name] = service
        elif (namespace, name) == API_SERVER:
            by_name.setdefault(name, service)
    return {name: value for key in sorted(by_name) for name, value in _service_variables(by_name[key])}


def _service_variables(service: Service) -> Iterator[tuple[str, str]]:
    name = _env_prefix(service.metadata.name)
    address = service.spec.cluster_ip
    ports = service.spec.ports
    host = f"[{address}]" if ":" in address else address
    yield f"{name}_SERVICE_HOST", address
    yield f"{name}_SERVICE_PORT", str(ports[0].port)
    for port in ports:
        if port.name:
            yield f"{name}_SERVICE_PORT_{_env_prefix(port.name)}", str(port.port)
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


def _env_prefix(text: str) -> str:
    return text.upper().replace("-", "_")

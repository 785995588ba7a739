"""What is wrong with where the environment of a container comes from. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import asdict

from api import fields, names, resource_fields
from api.objects import Container
from api.schema import FORBIDDEN, MISSING, NOT_SUPPORTED, Problem, choices, shown
from api.variables import EnvFromSource, EnvVarSource, is_name

_WIRE = {
    "field_ref": "fieldRef",
    "resource_field_ref": "resourceFieldRef",
    "config_map_key_ref": "configMapKeyRef",
    "secret_key_ref": "secretKeyRef",
    "file_key_ref": "fileKeyRef",
}


def check(path: str, container: Container) -> Iterator[Problem]:
    """Every problem of a container's env and envFrom."""
    for number, variable in enumerate(container.env):
        place = f"{path}.env[{number}]"
        if not is_name(variable.name):
            yield Problem(f"{place}.name", shown(variable.name), 'printable characters but "=" are accepted')
        if variable.value_from is not None:
            yield from _source(f"{place}.valueFrom", variable.value_from)
            if variable.value:
                yield Problem(f"{place}.valueFrom", "given", "a value or a valueFrom is accepted, not both")
    for number, source in enumerate(container.env_from):
        yield from _whole(f"{path}.envFrom[{number}]", source)


def _whole(path: str, source: EnvFromSource) -> Iterator[Problem]:
    refs = (("configMapRef", source.config_map_ref), ("secretRef", source.secret_ref))
    named = [(name, ref) for name, ref in refs if ref is not None]
    if len(named) != 1:
        found = shown([name for name, _ in named])
        yield Problem(path, found, "exactly one of configMapRef and secretRef is required", MISSING)
    for name, ref in named:
        yield from _object(f"{path}.{name}", ref.name)
    if source.prefix and not is_name(source.prefix):
        yield Problem(f"{path}.prefix", shown(source.prefix), 'printable characters but "=" are accepted')


def _source(path: str, source: EnvVarSource) -> Iterator[Problem]:
    given = [_WIRE[name] for name, value in asdict(source).items() if value is not None]
    if len(given) != 1:
        yield Problem(path, shown(given), "exactly one source is required", MISSING)
    if source.file_key_ref is not None:
        yield Problem(f"{path}.fileKeyRef", "given", "is not supported by this version", FORBIDDEN)
    for name, ref in (("configMapKeyRef", source.config_map_key_ref), ("secretKeyRef", source.secret_key_ref)):
        if ref is not None:
            yield from _object(f"{path}.{name}", ref.name)
            if not ref.key:
                yield Problem(f"{path}.{name}.key", '""', "a key is required", MISSING)
    if source.resource_field_ref is not None:
        yield from resource_fields.check(f"{path}.resourceFieldRef", source.resource_field_ref)
    selector = source.field_ref
    if selector is not None:
        if not fields.is_field(selector.field_path):
            yield Problem(f"{path}.fieldRef.fieldPath", shown(selector.field_path), fields.ACCEPTED, NOT_SUPPORTED)
        yield from choices((f"{path}.fieldRef.apiVersion", selector.api_version, ("v1",)))


def _object(path: str, name: str) -> Iterator[Problem]:
    if not name:
        yield Problem(f"{path}.name", '""', "a name is required", MISSING)
    elif names.dns_subdomain(name):
        yield Problem(f"{path}.name", shown(name), names.dns_subdomain(name))

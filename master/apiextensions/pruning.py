"""Pruning: fields that a schema does not name are removed. Pure."""

from __future__ import annotations

from typing import Any

from api.meta.schema import MAX_KEY_LENGTH, MAX_UNKNOWN_FIELDS, struct_fields
from api.meta.types import ObjectMeta
from master.apiextensions.structural_schema import TYPE_META, StructuralSchema

Json = Any

METADATA_FIELDS = frozenset(field.encode_name for field in struct_fields(ObjectMeta)) | {"deletionGracePeriodSeconds"}
"""The fields of metadata. Embedded resources have no others."""


def prune(document: dict[str, Json], schema: StructuralSchema) -> tuple[str, ...]:
    """Remove unknown fields in place. Return the paths of the first MAX_UNKNOWN_FIELDS, sorted.

    apiVersion, kind and metadata of the object and of embedded resources stay.
    """
    found = list[str]()
    _prune_object(document, schema, "", found, is_resource=True)
    return tuple(sorted(found))


def _record(found: list[str], path: str, key: str) -> None:
    if len(found) < MAX_UNKNOWN_FIELDS:
        found.append(_joined(path, key))


def _joined(path: str, key: str) -> str:
    """Return the path of a member. Keys are cut, because the path is copied for each member below."""
    return f"{path}.{key[:MAX_KEY_LENGTH]}" if path else key[:MAX_KEY_LENGTH]


def _prune(value: Json, schema: StructuralSchema | None, path: str, found: list[str]) -> None:
    """Prune a value that is a map or a list. Without a schema it may have no fields."""
    if isinstance(value, dict):
        if schema is not None:
            _prune_object(value, schema, path, found, is_resource=schema.embedded_resource)
            return
        for key in value:
            _record(found, path, key)
        value.clear()
    else:
        _prune_list(value, schema, path, found)


def _prune_list(values: list[Json], schema: StructuralSchema | None, path: str, found: list[str]) -> None:
    items = None if schema is None else schema.items
    if items is None and schema is not None and schema.preserve_unknown_fields:
        return
    for index, value in enumerate(values):
        if isinstance(value, dict | list):
            _prune(value, items, f"{path}[{index}]", found)


def _prune_object(
    value: dict[str, Json], schema: StructuralSchema, path: str, found: list[str], *, is_resource: bool
) -> None:
    properties, unknown = schema.properties, list[str]()
    for key, member in value.items():
        if is_resource and key in TYPE_META:
            if key == "metadata" and path and isinstance(member, dict):
                _prune_metadata(member, _joined(path, key), found)
            continue
        inner = properties.get(key)
        if inner is not None:
            if isinstance(member, dict | list):
                _prune(member, inner, _joined(path, key), found)
        elif schema.has_additional_properties:
            if isinstance(member, dict | list):
                _prune(member, schema.additional_properties, _joined(path, key), found)
        elif not schema.preserve_unknown_fields:
            unknown.append(key)
    for key in unknown:
        _record(found, path, key)
        del value[key]


def _prune_metadata(metadata: dict[str, Json], path: str, found: list[str]) -> None:
    for key in metadata.keys() - METADATA_FIELDS:
        _record(found, path, key)
        del metadata[key]

"""How server-side apply merges custom resources: from x-kubernetes-list-type and x-kubernetes-map-type. Pure."""

from __future__ import annotations

from dataclasses import replace

from api.meta.types import ObjectMeta
from master.apiextensions.structural_schema import StructuralSchema
from master.resources.merge_schema import OPEN, PLAIN, MergeKind, MergeSchema, merge_schema_of


def merge_schema_of_schema(schema: StructuralSchema) -> MergeSchema:
    """Return the merge schema of the objects that a schema describes. They have metadata and its like, too."""
    return _with_type_meta(_schema(schema))


def _with_type_meta(merged: MergeSchema) -> MergeSchema:
    type_meta = {"apiVersion": PLAIN, "kind": PLAIN, "metadata": merge_schema_of(ObjectMeta)}
    fields = {**merged.fields, **type_meta}
    return replace(merged, kind=MergeKind.STRUCT, fields=fields)


def _schema(schema: StructuralSchema) -> MergeSchema:
    if schema.int_or_string:
        return PLAIN
    if schema.type == "array":
        return _list_schema(schema)
    if schema.type != "object" and not schema.properties:
        return OPEN if schema.preserve_unknown_fields or not schema.type else PLAIN
    fields = {name: _schema(inner) for name, inner in schema.properties.items()}
    if schema.map_type == "atomic":
        return MergeSchema(MergeKind.ATOMIC, fields=fields)
    if fields:
        # A field that is not named is OPEN in a struct, which is what preserve-unknown-fields means.
        merged = MergeSchema(MergeKind.STRUCT, fields=fields)
    elif schema.additional_properties is not None:
        merged = MergeSchema(MergeKind.MAP, items=_schema(schema.additional_properties))
    else:
        merged = OPEN
    return _with_type_meta(merged) if schema.embedded_resource else merged


def _list_schema(schema: StructuralSchema) -> MergeSchema:
    items = OPEN if schema.items is None else _schema(schema.items)
    if schema.list_type == "map" and schema.list_map_keys:
        return MergeSchema(MergeKind.LIST_MAP, keys=schema.list_map_keys, items=items)
    if schema.list_type == "set":
        return MergeSchema(MergeKind.SET, items=items)
    return MergeSchema(MergeKind.ATOMIC, items=items)

"""Table and PartialObjectMetadata: forms of the response that omit most of each object. Pure."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from master.resources.resource import AnyResource
from master.serialization.negotiation import View


def columns(resource: AnyResource) -> list[dict[str, object]]:
    """Return the column definitions of a resource."""
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": int(column.wide),
        }
        for column in resource.columns
    ]


def metadata_only(obj: Any, version: str) -> dict[str, object]:
    """Return the object's metadata, as a PartialObjectMetadata of that API version to encode."""
    return {"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": obj.metadata}


def table_row(resource: AnyResource, obj: Any, view: View, now: datetime.datetime, include: str) -> dict[str, object]:
    """Return a row to encode; `include` (None, Metadata or Object) says which part of the object is added to it."""
    row: dict[str, object] = {"cells": resource.cells(obj, now)}
    if include != "None":
        row["object"] = obj if include == "Object" else metadata_only(obj, view.api_version)
    return row


def table_head(view: View, metadata: object, definitions: list[dict[str, object]] | None) -> dict[str, object]:
    """Return a Table to encode, without its rows."""
    return {"kind": "Table", "apiVersion": view.api_version, "metadata": metadata, "columnDefinitions": definitions}


def encode_table(
    view: View, rows: list[dict[str, object]], metadata: object, definitions: list[dict[str, object]] | None
) -> bytes:
    """Return a whole Table as JSON."""
    return msgspec.json.encode({**table_head(view, metadata, definitions), "rows": rows})


def encode_object(
    resource: AnyResource, obj: Any, view: View, now: datetime.datetime, include: str = "Metadata"
) -> bytes:
    """Return an object in the requested form as JSON."""
    if view.is_table:
        metadata = {"resourceVersion": obj.metadata.resource_version}
        return encode_table(view, [table_row(resource, obj, view, now, include)], metadata, columns(resource))
    if view.is_metadata:
        return msgspec.json.encode(metadata_only(obj, view.api_version))
    return msgspec.json.encode(obj)

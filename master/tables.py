"""Tables and bare metadata: the forms of answer that show objects without sending them whole. Pure."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from master.kinds.kind import AnyKind
from master.request import View

META = "meta.k8s.io/v1"


def columns(kind: AnyKind) -> list[dict[str, object]]:
    """The column definitions of a kind."""
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": int(column.wide),
        }
        for column in kind.columns
    ]


def metadata_only(item: Any) -> dict[str, object]:
    """The object's metadata, as a PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": msgspec.to_builtins(item.metadata)}


def row(kind: AnyKind, item: Any, now: datetime.datetime, include: str) -> dict[str, object]:
    """One row; `include` (None, Metadata or Object) says what of the object goes with it."""
    cells: dict[str, object] = {"cells": kind.cells(item, now)}
    if include == "None":
        return cells
    return cells | {"object": msgspec.to_builtins(item) if include == "Object" else metadata_only(item)}


def table(rows: list[dict[str, object]], metadata: object, definitions: list[dict[str, object]] | None) -> bytes:
    """A whole Table."""
    return msgspec.json.encode(
        {"kind": "Table", "apiVersion": META, "metadata": metadata, "columnDefinitions": definitions, "rows": rows}
    )


def shown(kind: AnyKind, item: Any, view: View, now: datetime.datetime, include: str = "Metadata") -> bytes:
    """One object in the form that was asked for."""
    if view is View.TABLE:
        metadata = {"resourceVersion": item.metadata.resource_version}
        return table([row(kind, item, now, include)], metadata, columns(kind))
    if view is View.METADATA:
        return msgspec.json.encode(metadata_only(item))
    return msgspec.json.encode(item)

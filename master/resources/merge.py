"""The merge of server-side apply: a partial document into an object, by the merge schema of the object's type. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from api.codec.limits import copied
from master.resources.merge_schema import OPEN, MergeKind, MergeSchema

Json = Any

KEY_DEFAULTS = {"protocol": "TCP"}
"""Keys that an item may leave out."""


def merge(live: Json, applied: Json, shape: MergeSchema) -> Json:
    """Return the live value with the fields and list items of the applied one. It shares nothing with either."""
    if isinstance(live, dict) and isinstance(applied, dict) and shape.kind is not MergeKind.ATOMIC:
        joined = {key: merge(live[key], value, shape.child(key)) for key, value in applied.items() if key in live}
        return {**copied(live), **copied(applied), **joined}
    if isinstance(live, list) and isinstance(applied, list) and shape.kind in (MergeKind.LIST_MAP, MergeKind.SET):
        wanted = {step_of(element, shape): element for element in applied}
        known = {step_of(element, shape): element for element in live}
        inner = shape.items or OPEN
        merged = [merge(element, wanted[step], inner) if step in wanted else element for step, element in known.items()]
        return copied(merged + [element for step, element in wanted.items() if step not in known])
    return copied(applied)


def step_of(element: Json, shape: MergeSchema) -> str:
    """Return the path step to an item of a list."""
    if shape.kind is MergeKind.LIST_MAP and isinstance(element, dict):
        keys = {key: element.get(key, KEY_DEFAULTS.get(key)) for key in sorted(shape.keys)}
        return "k:" + compact({key: value for key, value in keys.items() if value is not None})
    return "v:" + compact(element)


def compact(value: Json) -> str:
    """Return a value as JSON without spaces."""
    return msgspec.json.encode(value).decode()


# --- what a document to merge must not have ---------------------------------------------------------------------------


def key_errors(applied: Json, shape: MergeSchema, path: str = "") -> Iterator[str]:
    """Yield the items of a document that have no key, or the key of another item of their list."""
    if isinstance(applied, dict) and shape.kind is not MergeKind.ATOMIC:
        for key, value in applied.items():
            yield from key_errors(value, shape.child(key), f"{path}.{key}")
    elif isinstance(applied, list):
        seen: set[str] = set()
        for index, element in enumerate(applied):
            if shape.kind is MergeKind.LIST_MAP:
                yield from _missing_keys(element, shape, f"{path}: element {index}: ")
            if shape.kind in (MergeKind.LIST_MAP, MergeKind.SET):
                step = step_of(element, shape)
                if step in seen:
                    yield f"{path}: duplicate entries for key {step[2:]}"
                seen.add(step)
            yield from key_errors(element, shape.items or OPEN, f"{path}[{index}]")


def _missing_keys(element: Json, shape: MergeSchema, path: str) -> Iterator[str]:
    for key in shape.keys:
        if not isinstance(element, dict) or (key not in element and key not in KEY_DEFAULTS):
            yield (
                f"{path}associative list with keys has an element that omits key field "
                f'"{key}" (and doesn\'t have default value)'
            )


def atomic_parts(applied: Json, shape: MergeSchema, path: str = "") -> Iterator[str]:
    """Yield the paths of lists, maps and structs of a document that replace the live ones as a whole."""
    if isinstance(applied, dict):
        if shape.kind is MergeKind.ATOMIC or shape.is_written_whole:
            yield path
        for key, value in applied.items():
            if key in shape.fields:
                yield from atomic_parts(value, shape.fields[key], f"{path}.{key}")
    elif isinstance(applied, list):
        if shape.kind not in (MergeKind.LIST_MAP, MergeKind.SET):
            yield path
        for index, element in enumerate(applied):
            yield from atomic_parts(element, shape.items or OPEN, f"{path}[{index}]")

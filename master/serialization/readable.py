"""Reject values that typed clients cannot decode: int32 overflow, invalid times and quantities. Pure.

One such object would make every list of its kind fail in clients written in Go. The whole object is checked, with its
status, for every client. The checks are those of the value types of the fields (`api/meta/values.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from api.meta.schema import FieldError, quoted
from api.meta.values import VALUE_TYPES
from master.serialization.messages import json_fields, message_of


def unreadable(version: str, kind: str, document: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield an error for each such value."""
    return _struct(message_of(version, kind), document, "")


def unreadable_metadata(metadata: object) -> Iterator[FieldError]:
    """Yield an error for each such value in the metadata of an object."""
    return _struct("ObjectMeta", metadata, "metadata")


def _struct(name: str, value: Any, path: str) -> Iterator[FieldError]:
    if not isinstance(value, dict):
        return
    fields = json_fields(name)
    for key, field_value in value.items():
        if field_value is None or (field := fields.get(key)) is None:
            continue
        field_path = f"{path}.{key}" if path else key
        if field.map and isinstance(field_value, dict):
            for inner, entry in field_value.items():
                yield from _value(field.type, entry, f"{field_path}[{inner}]")
        elif field.repeated and isinstance(field_value, list):
            for number, entry in enumerate(field_value):
                yield from _value(field.type, entry, f"{field_path}[{number}]")
        else:
            yield from _value(field.type, field_value, field_path)


def _value(field_type: str, value: Any, path: str) -> Iterator[FieldError]:
    if value is None:
        return
    value_type = VALUE_TYPES.get(field_type)
    if value_type is not None:
        if error := value_type.error(value):
            yield FieldError(path, quoted(value), error)
    elif field_type not in _JSON_MESSAGES:
        yield from _struct(field_type, value, path)


_JSON_MESSAGES = frozenset(("RawExtension", "FieldsV1"))
"""Messages that carry JSON; in a document, the JSON is in their place."""

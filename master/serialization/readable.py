"""Reject values that typed clients cannot decode: int32 overflow, invalid times and quantities. Pure.

One such object would make every list of its kind fail in clients written in Go. The whole object is checked, status
included, whoever writes it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from api.meta import quantity
from api.meta.schema import FieldError, quoted
from master.serialization.messages import Field, message_of, messages

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_WIDTHS = {"int32": 1 << 31, "int64": 1 << 63}


def unreadable(version: str, kind: str, document: Mapping[str, Any]) -> Iterator[FieldError]:
    """Return every such value with its path; empty for kinds without a message."""
    name = message_of(version, kind)
    return _struct(name, document, "") if name in messages() else iter(())


@cache
def _fields(name: str) -> Mapping[str, Field]:
    """Return the fields of a message by their name in JSON, with those of inline messages."""
    found: dict[str, Field] = {}
    for field in messages()[name]:
        found |= _fields(field.type) if field.inline else {field.name: field}
    return found


def _struct(name: str, value: Any, path: str) -> Iterator[FieldError]:
    if not isinstance(value, dict):
        return
    fields = _fields(name)
    for key, item in value.items():
        if item is None or (field := fields.get(key)) is None:
            continue
        place = f"{path}.{key}" if path else key
        if field.map and isinstance(item, dict):
            for inner, entry in item.items():
                yield from _value(field.type, entry, f"{place}[{inner}]")
        elif field.repeated and isinstance(item, list):
            for number, entry in enumerate(item):
                yield from _value(field.type, entry, f"{place}[{number}]")
        else:
            yield from _value(field.type, item, place)


def _value(kind: str, value: Any, path: str) -> Iterator[FieldError]:
    if value is None:
        return
    check = _CHECKS.get(kind)
    if check is not None:
        if wanted := check(value):
            yield FieldError(path, quoted(value), wanted)
    elif kind in messages() and kind not in _OWN:
        yield from _struct(kind, value, path)


def _width(kind: str) -> Callable[[Any], str]:
    bound = _WIDTHS[kind]

    def check(value: Any) -> str:
        good = not isinstance(value, int) or -bound <= value < bound
        return "" if good else f"{-bound} to {bound - 1} is accepted"

    return check


def _time(value: Any) -> str:
    if isinstance(value, str) and _TIME.fullmatch(value):
        try:
            datetime.datetime.fromisoformat(f"{value[:19]}+00:00")
        except ValueError:
            pass
        else:
            return ""
    return 'a time is accepted, such as "2026-01-31T12:00:00Z"'


def _quantity(value: Any) -> str:
    try:
        quantity.parse(value)
    except quantity.BadQuantity as error:
        return str(error)
    return ""


_CHECKS: Mapping[str, Callable[[Any], str]] = {
    "int32": _width("int32"),
    "int64": _width("int64"),
    "IntOrString": _width("int32"),
    "Time": _time,
    "MicroTime": _time,
    "Quantity": _quantity,
}
_OWN = frozenset(("RawExtension", "FieldsV1"))

"""Decodes JSON of an API server into typed values. Pure.

Servers written in Go say `null` for a list that is empty and for a struct that is not there; here it means: not said.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class DecodeError(ValueError):
    """What came is not such an object; `str(error)` says where."""


def decode_json(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """The value. Raises Unreadable."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        pass  # Nulls are looked for only where something is wrong: nearly all objects do without them.
    except msgspec.DecodeError as error:
        raise DecodeError(f"not JSON: {error}") from None
    try:
        plain = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise DecodeError(f"not JSON: {error}") from None
    try:
        return msgspec.convert(_without_nulls(plain), kind)
    except msgspec.ValidationError as error:
        raise DecodeError(f"not {_name(kind)}: {error}") from None


def _name(kind: type[Any]) -> str:
    return getattr(kind, "__name__", str(kind))


def _without_nulls(value: Any) -> Any:
    """All of it but nulls in objects."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value

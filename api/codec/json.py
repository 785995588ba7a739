"""Decodes JSON of an API server into typed values. Pure.

API servers written in Go send `null` for an empty list and for an absent struct; here null means absent.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from api.meta.schema import without_nulls

T = TypeVar("T")


class DecodeError(ValueError):
    """A JSON document that is not an object of the type. `str(error)` says where it differs."""


def decode_json(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode JSON as a value of a type. Raises DecodeError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        pass  # Nulls are removed only after a failure, because nearly all objects have none.
    except msgspec.DecodeError as error:
        raise DecodeError(f"not JSON: {error}") from None
    try:
        document = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise DecodeError(f"not JSON: {error}") from None
    try:
        return msgspec.convert(without_nulls(document), kind)
    except msgspec.ValidationError as error:
        raise DecodeError(f"not {getattr(kind, '__name__', str(kind))}: {error}") from None

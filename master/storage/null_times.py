"""Mends stored objects that clients in Go cannot decode: a time that is an empty text becomes null. Pure.

Such an object makes every list of its kind fail. Earlier versions stored one if a client sent a null.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

from api.meta.types import Object
from api.meta.values import MICRO_TIME, TIME, VALUE

_SIGN = b'ime":""'
"""The end of the name of such a field, and its value. Without it, the JSON need not be decoded."""


def with_null_times(data: bytes, of: type[Object]) -> bytes:
    """Return the JSON of a stored object of a type, with null for times that are empty texts."""
    if _SIGN not in data:
        return data
    try:
        document = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return data  # Reading the object reports it.
    return msgspec.json.encode(_with_null_times(inspect.type_info(of), document))


def _with_null_times(info: inspect.Type, value: Any) -> Any:
    if isinstance(info, inspect.Metadata):
        is_time = (info.extra or {}).get(VALUE) in (TIME, MICRO_TIME)
        return None if is_time and value == "" else _with_null_times(info.type, value)
    if isinstance(info, inspect.UnionType):
        options = [option for option in info.types if not isinstance(option, inspect.NoneType)]
        return _with_null_times(options[0], value) if len(options) == 1 else value
    if isinstance(info, inspect.StructType) and isinstance(value, dict):
        types = {field.encode_name: field.type for field in info.fields}
        return {key: _with_null_times(types[key], member) if key in types else member for key, member in value.items()}
    if isinstance(info, inspect.VarTupleType | inspect.ListType) and isinstance(value, list):
        return [_with_null_times(info.item_type, element) for element in value]
    if isinstance(info, inspect.DictType) and isinstance(value, dict):
        return {key: _with_null_times(info.value_type, member) for key, member in value.items()}
    return value

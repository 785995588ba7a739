"""Messages of Kubernetes and their fields, for bodies in protobuf. Pure, but for reading `protobuf_fields.txt`.

That file has the names of the fields in the order of their numbers. Their types follow from the Python type of the
same name; the file has only those that do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from api.meta.types import Value
from api.meta.values import INT64, VALUE
from master.resources.scheme import SERVED
from master.resources.virtual import REVIEW_KINDS

FIELDS = Path(__file__).with_name("protobuf_fields.txt")

SCALARS = frozenset(("string", "bytes", "bool", "int32", "int64", "double"))
_SCALARS: Mapping[type, str] = {str: "string", bytes: "bytes", bool: "bool", int: INT64.name, float: "double"}

_FIELD = re.compile(r"(\w+)(?:=(\d+))?(?::(?:(\w+)|\[\](\w+)|map\[(\w+)\]|inline\[(\w+)\]))?")


class Field(NamedTuple):
    """A field of a message; if `map` is set, a map from strings to `type`."""

    name: str
    number: int
    type: str
    repeated: bool
    map: bool
    inline: bool


class _FieldType(NamedTuple):
    """The type of a field."""

    type: str
    repeated: bool = False
    map: bool = False
    inline: bool = False


@cache
def _lines() -> Mapping[str, str]:
    """Return the line of each message in the file, by the name of the message."""
    lines = FIELDS.read_text().replace("\n ", " ").splitlines()
    parts = (line.partition(":") for line in lines if line and not line.startswith("#"))
    return {name: fields for name, _, fields in parts}


def message_names() -> Iterable[str]:
    """Return the names of all messages."""
    return _lines().keys()


def message_of(version: str, kind: str) -> str:
    """Return the name of the message for a kind, even if there is no such message.

    It is that of the Python type, because kinds of several groups have the same name.
    """
    of = _resource_types().get((version, kind))
    return of.__name__ if of is not None and (of.__name__ in _lines() or kind not in _lines()) else kind


@cache
def _resource_types() -> Mapping[tuple[str, str], type]:
    types = (*(resource.type for resource in SERVED), *REVIEW_KINDS.values())
    return {(of.API_VERSION, of.KIND): of for of in types}


@cache
def message_fields(name: str) -> tuple[Field, ...]:
    """Return the fields of a message. Raises KeyError if there is no such message."""
    python_types = _python_fields(name)
    fields: list[Field] = []
    number = 0
    for text in _lines()[name].split():
        match = _FIELD.fullmatch(text)
        assert match is not None, f"{FIELDS.name}: {name} {text}"
        number = int(match[2] or number + 1)
        fields.append(Field(match[1], number, *(_explicit_type(match) or python_types[match[1]])))
    return tuple(fields)


@cache
def json_fields(name: str) -> Mapping[str, Field]:
    """Return the fields of a message or Python type by their names in JSON, with those of inline messages.

    The fields of a Python type without a message have the number 0. Integers of 64 bits are not among them, because
    decoding checks these. Empty for an unknown name.
    """
    if name not in _lines():
        types = _python_fields(name) if name in _python_types() else {}
        return {key: Field(key, 0, *of) for key, of in types.items() if of.type != INT64.name}
    fields: dict[str, Field] = {}
    for field in message_fields(name):
        fields |= json_fields(field.type) if field.inline else {field.name: field}
    return fields


def _explicit_type(match: re.Match[str]) -> _FieldType | None:
    of, element_type, value, inline = match[3], match[4], match[5], match[6]
    if of is not None:
        return _FieldType(of)
    if element_type is not None:
        return _FieldType(element_type, repeated=True)
    if value is not None:
        return _FieldType(value, map=True)
    return _FieldType(inline, inline=True) if inline is not None else None


# --- types of fields, from Python types -------------------------------------------------------------------------------


def _python_fields(name: str) -> Mapping[str, _FieldType]:
    """Return the types of the fields of a Python type, by the names in JSON. Without such a type, each is a string."""
    of = _python_types().get(name)
    if of is None:
        return _AllStrings()
    hints = get_type_hints(of, include_extras=True)
    names = zip(of.__struct_encode_fields__, of.__struct_fields__, strict=True)
    types = ((encoded, _field_type(hints[attribute])) for encoded, attribute in names)
    return {encoded: field_type for encoded, field_type in types if field_type is not None}


class _AllStrings(dict[str, _FieldType]):
    """A map with a string for every name."""

    def __missing__(self, key: str) -> _FieldType:
        return _FieldType("string")


@cache
def _python_types() -> Mapping[str, type[msgspec.Struct]]:
    """Return the Python types of resources and of their parts, by name."""
    kinds = (*REVIEW_KINDS.values(), *(resource.type for resource in SERVED))
    parts = (part for part in _subclasses(Value) if part.__module__.startswith(("api.", "master.resources.")))
    return {of.__name__: of for of in (*parts, *kinds)}


def _subclasses(of: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for subclass in of.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _field_type(hint: Any) -> _FieldType | None:
    """Return the type of a field in protobuf, if its Python type says it."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        value_type = next((mark.extra[VALUE] for mark in marks if VALUE in (mark.extra or {})), None)
        return _field_type(inner) if value_type is None else _FieldType(value_type.name)
    if get_origin(hint) in (Union, UnionType):
        options = [option for option in get_args(hint) if option is not NoneType]
        return _field_type(options[0]) if len(options) == 1 else None
    if get_origin(hint) in (tuple, dict):
        element = _field_type(get_args(hint)[0] if get_origin(hint) is tuple else get_args(hint)[1])
        if element is None or element.repeated or element.map:
            return None
        return _FieldType(element.type, repeated=get_origin(hint) is tuple, map=get_origin(hint) is dict)
    if hint in _SCALARS:
        return _FieldType(_SCALARS[hint])
    is_struct = isinstance(hint, type) and issubclass(hint, msgspec.Struct)
    return _FieldType(hint.__name__) if is_struct else None

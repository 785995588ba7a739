"""Checks that a JSON document has the shape of a struct; each mismatch is a FieldError with its path. Pure."""

from __future__ import annotations

import base64
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

MISSING = "FieldValueRequired"
INVALID = "FieldValueInvalid"
DUPLICATE = "FieldValueDuplicate"
NOT_SUPPORTED = "FieldValueNotSupported"
FORBIDDEN = "FieldValueForbidden"
TOO_LONG = "FieldValueTooLong"
TOO_MANY = "FieldValueTooMany"
TYPE_INVALID = "FieldValueTypeInvalid"
UNKNOWN = "UnknownField"

MAX_UNKNOWN_FIELDS = 100
"""Unknown fields of a document that are reported, as in Kubernetes."""

MAX_COMPARED_LENGTH = 64
"""Characters of an unknown field that are compared with the known ones."""

MAX_KEY_LENGTH = 317
"""Characters of a map's key in a path: more than the longest name of a label (a prefix of 253, `/` and 63)."""


@cache
def struct_fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a struct type. msgspec itself takes 0.3 ms at each call."""
    return msgspec.structs.fields(kind)


class FieldError(NamedTuple):
    """An error in a document (Kubernetes: field.Error).

    `path` is written as in Kubernetes (`spec.containers[1].image`). `bad_value` is the value as text. `detail` says
    what is accepted. `reason` is a cause of a Kubernetes Status, or UnknownField.
    """

    path: str
    bad_value: str
    detail: str
    reason: str = INVALID

    def __str__(self) -> str:
        if self.reason == MISSING:
            return f"{self.path}: is missing; {self.detail}"
        if self.reason == UNKNOWN:
            return f"{self.path}: is not a field{self.detail}"
        return f"{self.path}: is {self.bad_value}; {self.detail}"


def shape_errors(kind: type[msgspec.Struct], document: object) -> Iterator[FieldError]:
    """Yield an error for each place where a document does not have the shape of `kind`, in document order.

    Only the first MAX_UNKNOWN_FIELDS unknown fields are reported. The time is linear in the size of the document.
    """
    yield from _walk(_info(kind), document, "", _UnknownFields())


@cache
def _info(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


class _UnknownFields:
    """The unknown fields of one document. An error with its hint takes 20 us, so their number is limited."""

    def __init__(self) -> None:
        self._remaining = MAX_UNKNOWN_FIELDS

    def errors(self, path: str, key: str, value: object, known: Iterable[str]) -> Iterable[FieldError]:
        """Return the error, which names the most similar known field; nothing after MAX_UNKNOWN_FIELDS."""
        if self._remaining == 0:
            return ()
        self._remaining -= 1
        near = difflib.get_close_matches(key[:MAX_COMPARED_LENGTH], known, n=1)
        return (FieldError(path, quoted(value), f'; did you mean "{near[0]}"?' if near else "", UNKNOWN),)


def _walk(info: inspect.Type, value: object, path: str, unknown: _UnknownFields) -> Iterable[FieldError]:
    walk: Callable[[Any, object, str, _UnknownFields], Iterable[FieldError]] | None = _WALKS.get(type(info))
    if walk is not None:
        return walk(info, value, path, unknown)
    return () if _is_scalar(info, value) else (_scalar_mismatch(path, value, info),)


class _StructFields(NamedTuple):
    by_name: Mapping[str, inspect.Field]
    required: tuple[inspect.Field, ...]


_fields_by_class: dict[type, _StructFields] = {}
"""A cache: a document visits the same types again and again."""


def _fields(info: inspect.StructType) -> _StructFields:
    fields = _fields_by_class.get(info.cls)
    if fields is None:
        by_name = {field.encode_name: field for field in info.fields}
        fields = _StructFields(by_name, tuple(field for field in info.fields if field.required))
        _fields_by_class[info.cls] = fields
    return fields


def _walk_struct(info: inspect.StructType, value: object, path: str, unknown: _UnknownFields) -> Iterator[FieldError]:
    if not isinstance(value, dict):
        yield _mismatch(path, value, "an object is accepted")
        return
    fields = _fields(info)
    for key, field_value in value.items():
        field = fields.by_name.get(key)
        field_path = f"{path}.{key}" if path else str(key) or '""'
        if field is None:
            yield from unknown.errors(field_path, str(key), field_value, fields.by_name)
        elif field_value is not None:
            yield from _walk(field.type, field_value, field_path, unknown)
    for field in fields.required:
        if value.get(field.encode_name) is None:
            field_path = f"{path}.{field.encode_name}" if path else field.encode_name
            yield FieldError(field_path, "null", f"{_name(field.type)} is required", MISSING)


def _walk_list(
    info: inspect.VarTupleType | inspect.ListType, value: object, path: str, unknown: _UnknownFields
) -> Iterator[FieldError]:
    if not isinstance(value, list | tuple):
        yield _mismatch(path, value, "a list is accepted")
        return
    for index, element in enumerate(value):
        yield from _walk(info.item_type, element, f"{path}[{index}]", unknown)


def _walk_map(info: inspect.DictType, value: object, path: str, unknown: _UnknownFields) -> Iterator[FieldError]:
    if not isinstance(value, dict):
        yield _mismatch(path, value, "a map is accepted")
        return
    for key, map_value in value.items():
        # The path is copied for each element of a list, so a long key is cut.
        yield from _walk(info.value_type, map_value, f"{path}[{str(key)[:MAX_KEY_LENGTH]}]", unknown)


def _walk_union(info: inspect.UnionType, value: object, path: str, unknown: _UnknownFields) -> Iterable[FieldError]:
    options = [option for option in info.types if not isinstance(option, inspect.NoneType)]
    if len(options) == 1:
        return _walk(options[0], value, path, unknown)
    if any(_is_scalar(option, value) for option in options):
        return ()
    return (_mismatch(path, value, f"{' or '.join(map(_name, options))} is accepted"),)


def _walk_metadata(info: inspect.Metadata, value: object, path: str, unknown: _UnknownFields) -> Iterable[FieldError]:
    return _walk(info.type, value, path, unknown)


def _walk_any(*_: object) -> Iterable[FieldError]:
    return ()


_WALKS: Mapping[type[inspect.Type], Callable[[Any, object, str, _UnknownFields], Iterable[FieldError]]] = {
    inspect.StructType: _walk_struct,
    inspect.VarTupleType: _walk_list,
    inspect.ListType: _walk_list,
    inspect.DictType: _walk_map,
    inspect.UnionType: _walk_union,
    inspect.Metadata: _walk_metadata,
    inspect.AnyType: _walk_any,
}
"""The check of a value by the type of its field. All other types are scalars."""


def _is_scalar(info: inspect.Type, value: object) -> bool:
    if isinstance(info, inspect.StrType):
        return isinstance(value, str)
    if isinstance(info, inspect.BoolType):
        return isinstance(value, bool)
    if isinstance(info, inspect.IntType):
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if isinstance(info, inspect.FloatType):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(info, inspect.BytesType) and isinstance(value, str) and _is_base64(value)


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _name(info: inspect.Type) -> str:
    names: dict[type[inspect.Type], str] = {
        inspect.BoolType: "true or false",
        inspect.IntType: "a whole number",
        inspect.FloatType: "a number",
        inspect.StrType: "a string",
        inspect.BytesType: "bytes in base64",
        inspect.VarTupleType: "a list",
    }
    if isinstance(info, inspect.Metadata):
        return _name(info.type)
    return names.get(type(info), "an object")


def _mismatch(path: str, value: object, detail: str) -> FieldError:
    return FieldError(path or "the document", quoted(value), detail)


def _scalar_mismatch(path: str, value: object, info: inspect.Type) -> FieldError:
    # Bytes are values of Secrets. What is written there by mistake is one as well.
    found = "a value that is not shown" if isinstance(info, inspect.BytesType) else quoted(value)
    return FieldError(path or "the document", found, f"{_name(info)} is accepted")


def quoted(value: Any) -> str:
    """Return a value as text for a message: JSON, cut to 60 characters."""
    if isinstance(value, str):
        value = value[:61]
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def without_nulls(value: object) -> object:
    """Return a document without fields that are null, because null means the same as absent."""
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(element) for element in value]
    return value


def unsupported_values(*rows: tuple[str, str, tuple[str, ...]]) -> Iterator[FieldError]:
    """Yield an error for each (path, value, accepted values) whose value is neither empty nor accepted."""
    for path, value, accepted in rows:
        if value and value not in accepted:
            yield FieldError(path, quoted(value), f"{', '.join(accepted)} are accepted", NOT_SUPPORTED)


def duplicate_values(path: str, values: list[str]) -> Iterator[FieldError]:
    """Yield an error for each value that occurs earlier in the list. `{}` in `path` stands for the index."""
    earlier: set[str] = set()
    for index, value in enumerate(values):
        if value and value in earlier:
            yield FieldError(path.format(index), quoted(value), "must be unique", DUPLICATE)
        earlier.add(value)

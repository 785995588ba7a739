"""OpenAPI schemas of our types: what `kubectl explain` shows, and what clients are generated from. Pure."""

from __future__ import annotations

import inspect as python
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from api.meta.types import KEYS, SET
from master.kinds.kind import AnyKind
from master.wire.messages import messages

Row = dict[str, Any]

REFERENCE = "#/components/schemas/"

_PLAIN: Mapping[type[inspect.Type], Row] = {
    inspect.BoolType: {"type": "boolean"},
    inspect.IntType: {"type": "integer", "format": "int64"},
    inspect.FloatType: {"type": "number", "format": "double"},
    inspect.StrType: {"type": "string"},
    inspect.BytesType: {"type": "string", "format": "byte"},
}


_QUOTED = re.compile(r"`(\w+)`")
_SENTENCE_END = re.compile(r"(?<=[.])\s+(?=[A-Z`])")

INT_OR_STRING, QUANTITY = "IntOrString", "Quantity"

_CHOICES: Mapping[frozenset[type[inspect.Type]], str] = {
    frozenset((inspect.IntType, inspect.StrType)): INT_OR_STRING,
    frozenset((inspect.StrType, inspect.IntType, inspect.FloatType)): QUANTITY,
}
_CHOSEN: Row = {
    INT_OR_STRING: {
        "description": "A number, or a text such as the name of a port or a part in percent.",
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
    QUANTITY: {
        "description": "An amount as a number or a text, with a suffix such as m, k, Mi or G: 100m, 64Mi, 2.",
        "oneOf": [{"type": "string"}, {"type": "number"}],
    },
}


def name_of(kind: AnyKind) -> str:
    """The name of a kind's schema: the group's domain backwards, the version, the kind."""
    domain = ".".join(reversed(kind.group.split("."))) if kind.group else "io.k8s.api.core"
    return f"{domain}.{kind.version}.{kind.name}"


def identity(kind: AnyKind) -> Row:
    """By which a client knows that a schema or an operation is about this kind."""
    return {"group": kind.group, "version": kind.version, "kind": kind.name}


def components(kinds: Sequence[AnyKind], others: Sequence[type[msgspec.Struct]]) -> Row:
    """The schemas of these kinds, of their lists, of other types, and of everything that they are made of."""
    schemas: Row = dict(_CHOSEN)
    for other in others:
        for info in (inspect.type_info(other), *parts(inspect.type_info(other))):
            schemas[info.cls.__name__] = _struct(info)  # type: ignore[attr-defined]
    for kind in kinds:
        name = name_of(kind)
        schemas[name] = _struct(inspect.type_info(kind.type)) | {"x-kubernetes-group-version-kind": [identity(kind)]}
        schemas[f"{name}List"] = _list_of(kind)
        for info in parts(inspect.type_info(kind.type)):
            schemas.setdefault(info.cls.__name__, _struct(info))
    return dict(sorted(schemas.items()))


def _list_of(kind: AnyKind) -> Row:
    identities = [identity(kind) | {"kind": f"{kind.name}List"}]
    return {
        "type": "object",
        "description": f"Some objects of the kind {kind.name}.",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "items": {"type": "array", "items": {"$ref": REFERENCE + name_of(kind)}},
        },
        "x-kubernetes-group-version-kind": identities,
    }


def parts(info: inspect.Type) -> Iterator[inspect.StructType]:
    """Every struct inside a type, without the type itself."""
    for inner in _inside(info):
        if isinstance(inner, inspect.StructType):
            yield inner
        yield from parts(inner)


def _inside(info: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(info, inspect.StructType):
        return tuple(field.type for field in info.fields)
    if isinstance(info, inspect.Metadata):
        return (info.type,)
    if isinstance(info, inspect.VarTupleType):
        return (info.item_type,)
    if isinstance(info, inspect.DictType):
        return (info.value_type,)
    return info.types if isinstance(info, inspect.UnionType) else ()


def _struct(info: inspect.Type) -> Row:
    assert isinstance(info, inspect.StructType)
    row: Row = {
        "type": "object",
        "description": _description(info, info.cls),
        "properties": {field.encode_name: _property(info, field) for field in info.fields},
    }
    required = [field.encode_name for field in info.fields if field.required]
    return row | ({"required": required} if required else {})


def _property(info: inspect.StructType, field: inspect.Field) -> Row:
    """With the sentences of its type's description that name it."""
    described = " ".join(_description(info, one) for one in info.cls.__mro__ if issubclass(one, msgspec.Struct))
    sentences = _SENTENCE_END.split(" ".join(described.split()))
    told = " ".join(one for one in sentences if f"`{field.encode_name}`" in one)
    row = _schema(field.type) | ({"description": told} if told else {})
    return row | {"format": "int32"} if field.encode_name in _narrow(info.cls.__name__) else row


@cache
def _narrow(name: str) -> frozenset[str]:
    """The fields of a type of Kubernetes that are numbers of 32 bits."""
    return frozenset(field.name for field in messages().get(name, ()) if field.type == "int32" and not field.map)


def _description(info: inspect.StructType, cls: type) -> str:
    """What a class says of itself, with its fields as documents name them."""
    names = {field.name: field.encode_name for field in info.fields}
    text = python.cleandoc(vars(cls).get("__doc__") or "")
    return _QUOTED.sub(lambda found: f"`{names.get(found[1], found[1])}`", text)


def _schema(info: inspect.Type) -> Row:
    """null means the same as absent, wherever a value may be left out."""
    if isinstance(info, inspect.Metadata):
        return _schema(info.type) | _marks(info)
    if isinstance(info, inspect.UnionType):
        return _union(info)
    if isinstance(info, inspect.StructType):
        return {"allOf": [{"$ref": REFERENCE + info.cls.__name__}]}
    if isinstance(info, inspect.DictType):
        return {"type": "object", "additionalProperties": _schema(info.value_type)}
    if isinstance(info, inspect.VarTupleType):
        return {"type": "array", "items": _schema(info.item_type)}
    return dict(_PLAIN.get(type(info), {}))


def _union(info: inspect.UnionType) -> Row:
    options = [option for option in info.types if not isinstance(option, inspect.NoneType)]
    chosen = _CHOICES.get(frozenset(map(type, options)))
    if chosen is not None:
        return {"allOf": [{"$ref": REFERENCE + chosen}]}
    return _schema(options[0]) if len(options) == 1 else {"oneOf": [_schema(option) for option in options]}


def _marks(info: inspect.Metadata) -> Row:
    mark = info.extra or {}
    row: Row = dict(info.extra_json_schema or {})
    keys = mark.get(KEYS)
    if keys:
        row |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
        row |= {"x-kubernetes-patch-merge-key": keys[0], "x-kubernetes-patch-strategy": "merge"}
    elif mark.get(SET):
        row |= {"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}
    elif keys is not None:
        row["x-kubernetes-map-type"] = "atomic"
    return row

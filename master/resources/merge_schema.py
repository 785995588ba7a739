"""Merge behaviour of types in patches and server-side apply: maps, list maps, sets, atomic values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

import msgspec
from msgspec import inspect

from api.meta.types import KEYS, SET


class MergeKind(Enum):
    """The kind of a value, as merges treat it."""

    OPEN = "open"
    """Of no type: an object is a map of its fields, a list is one thing."""
    STRUCT = "struct"
    """An object with known fields."""
    MAP = "map"
    """An object with keys of the user's, all values alike."""
    LIST_MAP = "list map"
    """A list of objects that are identified by their `keys`."""
    SET = "set"
    """A list of plain values that is merged as a set."""
    ATOMIC = "atomic"
    """One thing: a plain value, or an object or a list that is always written as a whole."""


@dataclass(frozen=True, slots=True)
class MergeSchema:
    """The merge behaviour of a type.

    `fields` are those of a struct, by their names in JSON; `items` is that of each value of a map or list.
    `is_written_whole` is whether Kubernetes never merges the struct (structType=atomic). An apply here does, because
    the record of field managers of stored objects has its fields; mutating policies may not name it.
    """

    kind: MergeKind
    keys: tuple[str, ...] = ()
    fields: Mapping[str, MergeSchema] = field(default_factory=dict)
    items: MergeSchema | None = None
    is_written_whole: bool = False

    def child(self, name: str) -> MergeSchema:
        """Return the schema of a field of an object, which is OPEN for an unknown field."""
        if self.kind is MergeKind.STRUCT:
            return self.fields.get(name, OPEN)
        return self.items or OPEN


OPEN = MergeSchema(MergeKind.OPEN)
PLAIN = MergeSchema(MergeKind.ATOMIC)


_WRITTEN_WHOLE = frozenset(
    (
        "EndpointAddress", "EndpointPort", "KeySelector", "LabelSelector", "LocalObjectReference", "NodeSelector",
        "NodeSelectorTerm", "ObjectFieldSelector", "ObjectReference", "OwnerReference", "ResourceFieldSelector",
        "RoleRef", "ScopeSelector", "ServiceBackendPort", "SlicePort", "Subject", "TopologySelectorTerm",
        "TypedLocalObjectReference",
    )
)  # fmt: skip
"""Structs that Kubernetes marks as atomic."""


@cache
def merge_schema_of(kind: type[msgspec.Struct]) -> MergeSchema:
    """Return the merge schema of a type."""
    return _schema(inspect.type_info(kind), None)


def _schema(info: inspect.Type, mark: Mapping[str, object] | None) -> MergeSchema:
    if isinstance(info, inspect.Metadata):
        return _schema(info.type, info.extra or mark)
    if isinstance(info, inspect.UnionType):
        options = [option for option in info.types if not isinstance(option, inspect.NoneType)]
        return _schema(options[0], mark) if len(options) == 1 else PLAIN
    if isinstance(info, inspect.StructType):
        return MergeSchema(
            MergeKind.STRUCT,
            fields={field.encode_name: _schema(field.type, None) for field in info.fields},
            is_written_whole=info.cls.__name__ in _WRITTEN_WHOLE,
        )
    if isinstance(info, inspect.DictType):
        form = MergeKind.ATOMIC if mark else MergeKind.MAP
        return MergeSchema(form, items=_schema(info.value_type, None))
    if isinstance(info, inspect.AnyType | inspect.VarTupleType):
        return _list_schema(info, mark)
    return PLAIN


def _list_schema(info: inspect.AnyType | inspect.VarTupleType, mark: Mapping[str, object] | None) -> MergeSchema:
    items = _schema(info.item_type, None) if isinstance(info, inspect.VarTupleType) else OPEN
    keys = (mark or {}).get(KEYS, ())
    if isinstance(keys, tuple) and keys:
        return MergeSchema(MergeKind.LIST_MAP, keys=keys, items=items)
    if (mark or {}).get(SET):
        return MergeSchema(MergeKind.SET, items=items)
    return OPEN if isinstance(info, inspect.AnyType) else MergeSchema(MergeKind.ATOMIC, items=items)

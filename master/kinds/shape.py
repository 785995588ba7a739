"""How the parts of an object are told apart by patches, by applies and in the schema: read from its type. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

import msgspec
from msgspec import inspect

from api.meta.types import KEYS, SET


class Form(Enum):
    """What a value is made of."""

    OPEN = "open"
    """Of no type: an object is a map of its fields, a list is one thing."""
    STRUCT = "struct"
    """An object with known fields."""
    MAP = "map"
    """An object with keys of the user's, all values alike."""
    LIST_MAP = "list map"
    """A list of objects that are told apart by their `keys`."""
    SET = "set"
    """A list of plain values of which each stands for itself."""
    ATOMIC = "atomic"
    """One thing: a plain value, or an object or a list that is always written as a whole."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`fields` are those of a struct, by their names on the wire; `item` is that of each value of a map or list."""

    form: Form
    keys: tuple[str, ...] = ()
    fields: Mapping[str, Shape] = field(default_factory=dict)
    item: Shape | None = None

    def at(self, name: str) -> Shape:
        """The shape of one field of an object; a field that is not known has none."""
        if self.form is Form.STRUCT:
            return self.fields.get(name, OPEN)
        return self.item or OPEN


OPEN = Shape(Form.OPEN)
PLAIN = Shape(Form.ATOMIC)


@cache
def shape_of(kind: type[msgspec.Struct]) -> Shape:
    """The shape of an object of that type."""
    return _shape(inspect.type_info(kind), None)


def _shape(info: inspect.Type, mark: Mapping[str, object] | None) -> Shape:
    if isinstance(info, inspect.Metadata):
        return _shape(info.type, info.extra or mark)
    if isinstance(info, inspect.UnionType):
        options = [option for option in info.types if not isinstance(option, inspect.NoneType)]
        return _shape(options[0], mark) if len(options) == 1 else PLAIN
    if isinstance(info, inspect.StructType):
        return Shape(Form.STRUCT, fields={row.encode_name: _shape(row.type, None) for row in info.fields})
    if isinstance(info, inspect.DictType):
        form = Form.ATOMIC if mark else Form.MAP
        return Shape(form, item=_shape(info.value_type, None))
    if isinstance(info, inspect.AnyType | inspect.VarTupleType):
        return _list(info, mark)
    return PLAIN


def _list(info: inspect.AnyType | inspect.VarTupleType, mark: Mapping[str, object] | None) -> Shape:
    item = _shape(info.item_type, None) if isinstance(info, inspect.VarTupleType) else OPEN
    keys = (mark or {}).get(KEYS, ())
    if isinstance(keys, tuple) and keys:
        return Shape(Form.LIST_MAP, keys=keys, item=item)
    if (mark or {}).get(SET):
        return Shape(Form.SET, item=item)
    return OPEN if isinstance(info, inspect.AnyType) else Shape(Form.ATOMIC, item=item)

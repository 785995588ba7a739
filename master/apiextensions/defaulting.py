"""Defaults of custom resources, and what becomes of nulls. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from api.codec.limits import MAX_VALUES, copied, value_count
from master.apiextensions.structural_schema import NO_DEFAULT, TYPE_META, StructuralSchema

Json = Any

MAX_BYTES = 3 << 20
"""Bytes of an object with its defaults."""


class DefaultsTooLarge(ValueError):
    """An object that its defaults make too large. `str(error)` says what is accepted."""


class _Budget:
    """What defaults may still add to an object. It ends the work before it has cost much."""

    def __init__(self) -> None:
        self.size, self.values = 0, 0

    def spend(self, size: int, values: int) -> None:
        self.size += size
        self.values += values
        if self.size > MAX_BYTES or self.values > MAX_VALUES:
            raise DefaultsTooLarge(
                f"the defaults of the schema make the object too large: they may add {MAX_VALUES} values, and the "
                f"object may have {MAX_BYTES} bytes with them"
            )


def default(document: dict[str, Json], schema: StructuralSchema) -> None:
    """Set every default in place, and remove the nulls that the schema does not accept. Idempotent.

    A missing field gets its default, as does a null that is not accepted. Then its own fields get theirs. Raises
    DefaultsTooLarge; the document is then partly changed.
    """
    budget = _Budget()
    _default_object(document, schema, budget)
    if budget.size and budget.size + len(msgspec.json.encode(document)) > MAX_BYTES:
        size = len(msgspec.json.encode(document))
        if size > MAX_BYTES:
            raise DefaultsTooLarge(f"the object has {size} bytes with its defaults; {MAX_BYTES} are accepted")


def _default(value: Json, schema: StructuralSchema, budget: _Budget) -> None:
    if isinstance(value, dict):
        _default_object(value, schema, budget)
    elif schema.items is not None:
        _default_list(value, schema.items, budget)


def _default_object(value: dict[str, Json], schema: StructuralSchema, budget: _Budget) -> None:
    properties, additional = schema.properties, schema.additional_properties
    for each in schema.defaulted:
        if each.name not in value or (value[each.name] is None and not properties[each.name].nullable):
            budget.spend(each.size, each.values)
            value[each.name] = copied(each.value)
    removed = list[str]()
    for key, member in value.items():
        inner = properties.get(key, additional)
        if inner is None:
            continue
        if isinstance(member, dict | list):
            _default(member, inner, budget)
        elif member is None and not inner.nullable and key not in TYPE_META:
            removed.append(key)
    for key in removed:
        inner = properties.get(key, additional)
        if inner is not None and inner.default is not NO_DEFAULT:
            _replace_null(value, key, inner, budget)
        else:
            del value[key]


def _default_list(values: list[Json], items: StructuralSchema, budget: _Budget) -> None:
    for index, value in enumerate(values):
        if value is None and not items.nullable and items.default is not NO_DEFAULT:
            _replace_null(values, index, items, budget)
        elif isinstance(value, dict | list):
            _default(value, items, budget)


def _replace_null(parent: Any, key: Any, schema: StructuralSchema, budget: _Budget) -> None:
    """Replace a value of a map or an item of a list, which is null, by the default of its schema."""
    # Its size is not kept with the schema, because nulls in maps and lists are rare.
    budget.spend(len(msgspec.json.encode(schema.default)), value_count(schema.default) + 1)
    parent[key] = copied(schema.default)
    if isinstance(parent[key], dict | list):
        _default(parent[key], schema, budget)

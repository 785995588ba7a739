"""The shape of documents: what is accepted, and every type of field is known."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import inspect

from api.core.endpoints import EndpointSlice
from api.meta.schema import shape_errors
from master.resources.scheme import STORED_TYPES

HINTS = {"forZones": [{"name": "zone-a"}]}


@pytest.mark.parametrize(
    ("hints", "paths"),
    [
        (HINTS, []),
        (None, []),
        ({"forZones": {"name": "zone-a"}}, ["endpoints[0].hints[forZones]"]),
        ({"forZones": [{"name": 1}]}, ["endpoints[0].hints[forZones][0][name]"]),
    ],
)
def test_list_in_a_map_has_the_shape_of_its_elements(hints: Any, paths: list[str]) -> None:
    document = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.128.0.2"], "hints": hints}], "ports": []}
    assert [error.path for error in shape_errors(EndpointSlice, document)] == paths


KNOWN = (
    inspect.StructType, inspect.VarTupleType, inspect.ListType, inspect.DictType, inspect.UnionType, inspect.Metadata,
    inspect.AnyType, inspect.StrType, inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.BytesType,
    inspect.NoneType,
)  # fmt: skip


def field_types(info: inspect.Type, seen: set[type]) -> set[type]:
    """Return the types of all fields in a type, by msgspec."""
    found: set[type] = {type(info)}
    inner: list[inspect.Type] = []
    if isinstance(info, inspect.StructType):
        if info.cls in seen:
            return found
        seen.add(info.cls)
        inner = [field.type for field in info.fields]
    elif isinstance(info, inspect.VarTupleType | inspect.ListType):
        inner = [info.item_type]
    elif isinstance(info, inspect.DictType):
        inner = [info.value_type]
    elif isinstance(info, inspect.UnionType):
        inner = list(info.types)
    elif isinstance(info, inspect.Metadata):
        inner = [info.type]
    return found.union(*(field_types(other, seen) for other in inner))


def test_shape_check_knows_every_type_of_field_of_stored_kinds() -> None:
    seen: set[type] = set()
    assert set().union(*(field_types(inspect.type_info(kind), seen) for kind in STORED_TYPES.values())) <= set(KNOWN)
    assert len(seen) > 200

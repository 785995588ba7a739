"""The shape of documents: what is accepted, and every type of field is known."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import inspect

from api.core.certificates import CertificateSigningRequest
from api.core.endpoints import EndpointSlice
from api.core.node import Node
from api.meta.schema import INVALID, MAX_KEY_LENGTH, MAX_UNKNOWN_FIELDS, UNKNOWN, shape_errors
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


def test_only_the_first_hundred_unknown_fields_are_reported_and_other_errors_after_them() -> None:
    document = {"spec": {f"x{number}": 1 for number in range(150)} | {"podCIDR": 7}}
    errors = list(shape_errors(Node, document))
    assert [error.reason for error in errors] == [UNKNOWN] * MAX_UNKNOWN_FIELDS + [INVALID]
    assert errors[-1].path == "spec.podCIDR"


def test_long_key_of_a_map_is_cut_in_paths() -> None:
    """Else the path is copied for each element of its list: a body of 1 MB takes seconds."""
    document = {"spec": {"extra": {"k" * 1000: ["a", 1]}}}
    (error,) = shape_errors(CertificateSigningRequest, document)
    assert error.path == f"spec.extra[{'k' * MAX_KEY_LENGTH}][1]"


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

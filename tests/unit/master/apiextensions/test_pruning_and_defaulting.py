from __future__ import annotations

import copy
from typing import Any

import pytest

from master.apiextensions.defaulting import MAX_BYTES, DefaultsTooLarge, default
from master.apiextensions.pruning import prune
from master.apiextensions.structural_schema import parse_schema

ANY = {"x-kubernetes-preserve-unknown-fields": True}
TEXT = {"type": "string"}


def obj(properties: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties or {}, **more}


META = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "other": 1}}


@pytest.mark.parametrize(
    ("schema", "document", "pruned", "unknown"),
    [
        (obj({"a": TEXT}), {"a": "x", "b": 1}, {"a": "x"}, ("b",)),
        (obj(), {"apiVersion": "v1", "kind": "Foo", "metadata": {"z": 1}}, None, ()),
        (obj({"a": obj()}), {"a": {"b": {"c": 1}}}, {"a": {}}, ("a.b",)),
        (obj({"a": obj({"kind": TEXT})}), {"a": {"kind": "x", "metadata": {}}}, {"a": {"kind": "x"}}, ("a.metadata",)),
        (
            obj({"l": {"type": "array", "items": obj({"a": TEXT})}}),
            {"l": [{"b": 1}, {"a": "x"}]},
            {"l": [{}, {"a": "x"}]},
            ("l[0].b",),
        ),
        (obj({"m": obj(additionalProperties=obj({"a": TEXT}))}), {"m": {"k": {"b": 1}}}, {"m": {"k": {}}}, ("m.k.b",)),
        (
            obj({"m": obj(additionalProperties=True)}),
            {"m": {"k": {"b": 1}, "n": 1}},
            {"m": {"k": {}, "n": 1}},
            ("m.k.b",),
        ),
        (obj({"a": obj(**ANY)}), {"a": {"b": {"c": [1]}}}, None, ()),
        (obj({"a": obj({"n": obj()}, **ANY)}), {"a": {"b": 1, "n": {"c": 1}}}, {"a": {"b": 1, "n": {}}}, ("a.n.c",)),
        (
            obj({"e": obj({"spec": obj()}, **{"x-kubernetes-embedded-resource": True})}),
            {"e": {**META, "spec": {"a": 1}, "more": 1}},
            {"e": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {}}},
            ("e.metadata.other", "e.more", "e.spec.a"),
        ),
        (obj({"a": TEXT}), {"a": {"b": 1}}, {"a": {}}, ("a.b",)),
    ],
)
def test_what_the_schema_does_not_name_is_removed(
    schema: Any, document: Any, pruned: Any, unknown: tuple[str, ...]
) -> None:
    expected = copy.deepcopy(document) if pruned is None else pruned
    parsed = parse_schema(schema)
    assert prune(document, parsed) == unknown
    assert document == expected
    assert prune(document, parsed) == ()


@pytest.mark.parametrize(
    ("properties", "document", "expected"),
    [
        ({"a": {"type": "integer", "default": 1}}, {}, {"a": 1}),
        ({"a": {"type": "integer", "default": 1}}, {"a": 2}, {"a": 2}),
        ({"a": {"type": "integer", "default": 1}}, {"a": None}, {"a": 1}),
        ({"a": {"type": "integer", "default": 1, "nullable": True}}, {"a": None}, {"a": None}),
        ({"a": {"type": "integer"}}, {"a": None}, {}),
        ({"a": {"type": "integer", "nullable": True}}, {"a": None}, {"a": None}),
        ({"a": obj({"b": {"type": "integer", "default": 1}})}, {}, {}),
        ({"a": obj({"b": {"type": "integer", "default": 1}})}, {"a": {}}, {"a": {"b": 1}}),
        ({"a": obj({"b": {"type": "integer", "default": 1}}, default={})}, {}, {"a": {"b": 1}}),
        (
            {"l": {"type": "array", "items": obj({"b": {"type": "integer", "default": 1}})}},
            {"l": [{}, {"b": 2}]},
            {"l": [{"b": 1}, {"b": 2}]},
        ),
        (
            {"m": obj(additionalProperties=obj({"b": {"type": "integer", "default": 1}}))},
            {"m": {"k": {}}},
            {"m": {"k": {"b": 1}}},
        ),
        ({"m": obj(additionalProperties={"type": "integer", "default": 1})}, {"m": {"k": None}}, {"m": {"k": 1}}),
        ({"m": obj(additionalProperties={"type": "integer"})}, {"m": {"k": None, "n": 1}}, {"m": {"n": 1}}),
        ({"l": {"type": "array", "items": {"type": "integer"}}}, {"l": [None]}, {"l": [None]}),
        ({"l": {"type": "array", "items": {"type": "integer", "default": 3}}}, {"l": [None]}, {"l": [3]}),
    ],
)
def test_defaults_and_nulls(properties: Any, document: Any, expected: Any) -> None:
    schema = parse_schema(obj(properties))
    default(document, schema)
    assert document == expected
    default(document, schema)
    assert document == expected


def test_objects_do_not_share_a_default() -> None:
    schema = parse_schema(obj({"a": {**obj(**ANY), "default": {"b": []}}}))
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    default(first, schema)
    default(second, schema)
    first["a"]["b"].append(1)
    assert second == {"a": {"b": []}}


def test_defaults_that_make_an_object_too_large_are_refused() -> None:
    item = obj({"a": {"type": "string", "default": "x" * (1 << 20)}})
    schema = parse_schema(obj({"l": {"type": "array", "items": item}}))
    few: dict[str, Any] = {"l": [{}, {}]}
    default(few, schema)
    assert len(few["l"][1]["a"]) == 1 << 20
    bomb: dict[str, Any] = {"l": [{} for _ in range(10_000)]}
    with pytest.raises(DefaultsTooLarge, match="too large"):
        default(bomb, schema)
    assert sum("a" in item for item in bomb["l"]) * (1 << 20) <= MAX_BYTES


def test_defaults_that_add_many_values_are_refused() -> None:
    item = obj({f"p{n}": {"type": "boolean", "default": True} for n in range(100)})
    schema = parse_schema(obj({"m": obj(additionalProperties=item)}))
    few: dict[str, Any] = {"m": {"a": {}}}
    default(few, schema)
    assert len(few["m"]["a"]) == 100
    with pytest.raises(DefaultsTooLarge, match="values"):
        default({"m": {str(n): {} for n in range(1000)}}, schema)

# ruff: noqa: E501
from __future__ import annotations

import random
import time
from typing import Any

import jsonschema_rs
import pytest

from master.apiextensions.defaulting import default
from master.apiextensions.patterns import pattern_error
from master.apiextensions.pruning import prune
from master.apiextensions.structural_schema import MAX_DEPTH, MAX_NODES, parse_schema, schema_errors
from master.apiextensions.validation import TOO_COSTLY, TOO_LONG_TO_MATCH, validate, validate_status
from master.errors import status_cause


def obj(properties: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties or {}, **more}


def causes(document: Any, schema: Any, old: Any = None) -> list[str]:
    found = validate(document, old, parse_schema(schema))
    return [f"{cause.field}: {cause.message}" for cause in map(status_cause, found)]


ONE_OF = [{"required": ["a"]}, {"required": ["b"]}]


@pytest.mark.parametrize(
    ("schema", "good", "bad", "words"),
    [
        (obj(required=["name"]), {"name": 1}, {}, "s.name: Required value"),
        ({"type": "integer"}, 1.0, "x", 's: Invalid value: "string": s in body must be of type integer: "string"'),
        ({"type": "integer"}, 2**63 - 1, 2**63, 's: Invalid value: "number": s in body must be of type integer: "number"'),
        ({"type": "boolean"}, True, 1, 's: Invalid value: "integer": s in body must be of type boolean: "integer"'),
        ({"type": "string", "nullable": True}, None, 1, 's: Invalid value: "integer": s in body must be of type string: "integer"'),
        ({"type": "string", "enum": ["a", "b"]}, "a", "c", 's: Unsupported value: "c": supported values: "a", "b"'),
        ({"type": "string", "pattern": "^[a-z]+$"}, "a", "A", "s: Invalid value: \"A\": s in body should match '^[a-z]+$'"),
        ({"type": "string", "pattern": "^[a-z]+$"}, "a", "a\n", "s: Invalid value: \"a\\n\": s in body should match '^[a-z]+$'"),
        ({"type": "string", "format": "date-time"}, "2026-01-01T00:00:00Z", "x", 's: Invalid value: "x": s in body must be of type date-time: "x"'),
        ({"type": "integer", "minimum": 1}, 1, 0, "s: Invalid value: 0: s in body should be greater than or equal to 1"),
        ({"type": "integer", "maximum": 5, "exclusiveMaximum": True}, 4, 5, "s: Invalid value: 5: s in body should be less than 5"),
        ({"type": "number", "multipleOf": 0.1}, 0.3, 0.35, "s: Invalid value: 0.35: s in body should be a multiple of 0.1"),
        ({"type": "string", "minLength": 3}, "äöü", "ab", 's: Invalid value: "ab": s in body should be at least 3 chars long'),
        ({"type": "string", "maxLength": 3}, "äöü", "abcd", "s: Too long: may not be more than 3 bytes"),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 1}, [1], [1, 2], "s: Too many: 2: must have at most 1 items"),
        (obj(oneOf=ONE_OF, **{"x-kubernetes-preserve-unknown-fields": True}), {"a": 1}, {"a": 1, "b": 1},
         's: Invalid value: "": "s" must validate one and only one schema (oneOf). Found 2 valid alternatives'),
        (obj(**{"not": {"required": ["a"]}}), {}, {"a": 1}, 's: Invalid value: "": "s" must not validate the schema (not)'),
        ({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}, ["a", "b"], ["a", "a"], 's[1]: Duplicate value: "a"'),
        ({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"], "items": obj({"n": {"type": "string"}, "v": {"type": "integer"}})},
         [{"n": "a"}, {"n": "b"}], [{"n": "a", "v": 1}, {"n": "a", "v": 2}], 's[1]: Duplicate value: {"n":"a"}'),
        ({"x-kubernetes-int-or-string": True}, "50%", True, 's: Invalid value: "boolean": s in body must be of type integer,string: "boolean"'),
    ],
)  # fmt: skip
def test_words(schema: Any, good: Any, bad: Any, words: str) -> None:
    whole = obj({"s": schema})
    assert causes({"s": good}, whole) == []
    assert causes({"s": bad}, whole) == [words]
    assert causes({"s": bad}, whole, {"s": bad}) == []
    assert causes({"s": bad}, whole, {"s": good}) == [words]


def test_the_errors_of_the_nearest_alternative_are_shown() -> None:
    found = causes({"s": {}}, obj({"s": obj(oneOf=ONE_OF)}))
    assert found == [
        "s.a: Required value",
        's: Invalid value: "": "s" must validate one and only one schema (oneOf). Found none valid',
    ]


KEYED = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"]}
ITEM = obj({"n": {"type": "string"}, "v": {"type": "integer", "maximum": 5}})


def test_items_with_keys_keep_what_an_earlier_schema_accepted() -> None:
    old = {"l": [{"n": "a", "v": 9}]}
    new = {"l": [{"n": "b", "v": 1}, {"n": "a", "v": 9}]}
    assert causes(new, obj({"l": {"type": "array", "items": ITEM, **KEYED}}), old) == []
    assert len(causes(new, obj({"l": {"type": "array", "items": ITEM}}), old)) == 1
    assert len(causes({"l": [{"n": "a", "v": 8}]}, obj({"l": {"type": "array", "items": ITEM, **KEYED}}), old)) == 1


def test_only_the_status_is_validated_in_an_update_of_the_status() -> None:
    schema = parse_schema(obj({"spec": {"type": "string"}, "status": obj({"n": {"type": "integer"}})}))
    assert validate_status({"spec": 1, "status": {"n": 1}}, None, schema) == ()
    assert [error.path for error in validate_status({"spec": 1, "status": {"n": "x"}}, None, schema)] == ["status.n"]


def test_embedded_resources_have_a_kind() -> None:
    schema = obj({"e": obj(**{"x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True})})
    assert causes({"e": {"apiVersion": "v1", "kind": "Pod"}}, schema) == []
    assert causes({"e": {"apiVersion": "v1"}}, schema) == ["e.kind: Required value: must not be empty"]


# --- hostile inputs ---------------------------------------------------------------------------------------------------


def nested(levels: int) -> dict[str, Any]:
    schema = obj()
    for _ in range(levels - 1):
        schema = obj({"a": schema})
    return schema


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        (nested(MAX_DEPTH), nested(10_000), "levels"),
        (obj({"a": obj()}), obj({str(n): {"type": "string"} for n in range(MAX_NODES + 1)}), "schemas"),
    ],
)
def test_the_size_of_a_schema_is_limited(good: Any, bad: Any, words: str) -> None:
    assert schema_errors(good, "s", False) == ()
    found = schema_errors(bad, "s", False)
    assert len(found) == 1
    assert words in found[0].detail
    with pytest.raises(ValueError, match=words):
        parse_schema(bad)


@pytest.mark.parametrize("pattern", ["a{1000}{1000}", "(?=a)", r"(a)\1", "(", "a{2000}"])
def test_patterns_are_those_of_re2(pattern: str) -> None:
    assert pattern_error("(a+)+$") == ""
    assert pattern_error(pattern) != ""
    found = schema_errors(obj({"a": {"type": "string", "pattern": pattern}}), "s", False)
    assert [error.path for error in found] == ["s.properties[a].pattern"]
    assert found[0].detail.startswith("must be a valid regular expression, but isn't: ")


def test_a_pattern_that_other_engines_backtrack_on() -> None:
    schema = obj({"s": {"type": "string", "pattern": "^(([a-z])+.)+[A-Z]$"}})
    assert len(causes({"s": "a" * 50_000}, schema)) == 1


def test_junctors_that_multiply_the_work_are_refused() -> None:
    inner: dict[str, Any] = obj(anyOf=[{"required": [f"p{n}"]} for n in range(1000)])
    schema = obj({"l": {"type": "array", "items": inner}})
    assert causes({"l": [{"p999": 1}]}, schema) == []
    assert TOO_COSTLY in causes({"l": [{"p999": 1}] * 1000}, schema)[0]


def test_large_enums_and_sets() -> None:
    schema = obj({"e": {"type": "integer", "enum": list(range(100_000))}})
    assert causes({"e": 99_999}, schema) == []
    assert len(causes({"e": -1}, schema)[0]) < 2000
    listed = obj({"s": {"type": "array", "items": {"type": "integer"}, "x-kubernetes-list-type": "set"}})
    assert causes({"s": list(range(25_000))}, listed) == []
    assert len(causes({"s": [1] * 25_000}, listed)) == 100


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), "\ud800", "\0"])
def test_odd_values_are_no_traceback(value: Any) -> None:
    schema = {"minimum": 1, "multipleOf": 3, "pattern": "a", "format": "int32", "type": "string" if isinstance(value, str) else "number"}  # fmt: skip
    assert causes({"s": value}, obj({"s": schema}))


# --- the same verdicts as another implementation ----------------------------------------------------------------------


def some_schema(draw: random.Random, depth: int) -> dict[str, Any]:
    kind = draw.choice(["string", "integer", "boolean", "number"] + (["object", "object", "array"] if depth else []))
    schema: dict[str, Any] = {"type": kind}
    if kind == "object":
        names = draw.sample("abcde", draw.randint(1, 4))
        schema["properties"] = {name: some_schema(draw, depth - 1) for name in names}
        schema["required"] = draw.sample(names, draw.randint(0, min(2, len(names))))
        if draw.random() < 0.3:
            key = draw.choice(["oneOf", "anyOf", "allOf"])
            schema[key] = [{"required": [draw.choice(names)]} for _ in range(draw.randint(1, 3))]
        if draw.random() < 0.1:
            schema["not"] = {"required": [draw.choice(names)]}
    elif kind == "array":
        schema.update(items=some_schema(draw, depth - 1), maxItems=draw.randint(1, 4), minItems=draw.randint(0, 1))
    elif kind == "string":
        schema.update(draw.choice([{"maxLength": 2}, {"pattern": "^[ab]+$"}, {"enum": ["a", "bb"]}, {}]))
    elif kind != "boolean":
        schema.update(draw.choice([{"minimum": 1}, {"maximum": 2, "exclusiveMaximum": True}, {"multipleOf": 2}, {}]))
    if draw.random() < 0.2:
        schema["default"] = defaulted(some_value(draw, schema), schema)
    return schema


def some_value(draw: random.Random, schema: Any) -> Any:
    kind = schema["type"] if draw.random() < 0.97 else draw.choice(["string", "integer", "boolean", "number"])
    if kind == "object":
        present = {name: some_value(draw, inner) for name, inner in schema["properties"].items() if draw.random() < 0.8}
        return present | ({"z": 1} if draw.random() < 0.1 else {})
    if kind == "array":
        return [some_value(draw, schema["items"]) for _ in range(draw.randint(0, 3))]
    values: dict[str, list[Any]] = {
        "string": ["a", "ab", "bb", "ccc"], "integer": [0, 1, 2, 4.0], "boolean": [True, False], "number": [0.5, 1, 2.0]
    }  # fmt: skip
    return draw.choice(values[kind])


def as_draft_6(schema: Any) -> Any:
    """Return a schema with limits as newer drafts write them."""
    if isinstance(schema, dict):
        changed = {key: as_draft_6(value) for key, value in schema.items()}
        if changed.pop("exclusiveMaximum", None) is True:
            changed["exclusiveMaximum"] = changed.pop("maximum")
        return changed
    return [as_draft_6(each) for each in schema] if isinstance(schema, list) else schema


def defaulted(value: Any, schema: Any) -> Any:
    """Return a pruned value with its defaults: the plainest way to write it."""
    if isinstance(value, dict) and "properties" in schema:
        given = {name: value.get(name, inner.get("default")) for name, inner in schema["properties"].items()}
        return {name: defaulted(given[name], schema["properties"][name]) for name in given if given[name] is not None}
    if isinstance(value, dict):
        return {}
    if isinstance(value, list):
        return [defaulted(item, schema.get("items", {})) for item in value]
    return value


def test_verdicts_and_defaults_are_those_of_another_implementation() -> None:
    draw, verdicts = random.Random(18), [0, 0]
    for _ in range(2_000):
        schema = obj({"a": some_schema(draw, 3), "b": some_schema(draw, 2)})
        value = some_value(draw, schema)
        if not isinstance(value, dict):
            continue
        parsed, expected = parse_schema(schema), defaulted(value, schema)
        prune(value, parsed)
        default(value, parsed)
        assert value == expected, schema
        found = validate(value, None, parsed)
        is_valid = jsonschema_rs.Draft6Validator(as_draft_6(schema)).is_valid(value)
        assert (not found) == is_valid, (schema, value, found)
        assert validate(value, value, parsed) == ()
        verdicts[is_valid] += 1
    assert min(verdicts) > 200


LARGE = "x" + "ab" * 1_000_000


@pytest.mark.parametrize(
    ("schema", "text", "error"),
    [
        ({"pattern": "(a|b){0,500}c$"}, LARGE, TOO_LONG_TO_MATCH),
        ({"anyOf": [{"pattern": "[ab].{9}z"} for _ in range(500)]}, LARGE, TOO_COSTLY),
        ({"anyOf": [{"pattern": f".{{1,253}}{number}$"} for number in range(500)]}, LARGE[:60_000], TOO_LONG_TO_MATCH),
    ],
    ids=("one match", "a large text", "many patterns"),
)
def test_patterns_have_bounds_of_time(schema: Any, text: str, error: str) -> None:
    begin = time.process_time()
    (found,) = causes({"l": text}, {"type": "object", "properties": {"l": {"type": "string", **schema}}})
    assert error in found
    assert time.process_time() - begin < 3.0


def test_a_large_value_is_compared_once_for_all_alternatives() -> None:
    """Each of those that fail would look whether the value is as it was before."""
    alternatives = [{"required": [f"other{number}"]} for number in range(2000)]
    part = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "anyOf": [*alternatives, {}]}
    new, old = ({"l": {"a": [{"b": "x" * 100}] * 14_000}} for _ in range(2))
    begin = time.process_time()
    schema = parse_schema({"type": "object", "properties": {"l": part}})
    assert validate(new, old, schema) == ()
    assert time.process_time() - begin < 3.0

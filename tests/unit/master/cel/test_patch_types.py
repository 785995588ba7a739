"""How expressions of mutations are rewritten, and what becomes of their results."""

from __future__ import annotations

import time
from typing import Any

import pytest

from master.cel.patch_types import PatchTypeError, configuration_of, operations_of, patch_expression, type_name

M = "mark"


@pytest.mark.parametrize(
    ("text", "checked", "evaluated"),
    [
        ("Object{}", "Object{}", '{"mark": "Object",}'),
        (
            "Object{spec: Object.spec{?a: object.?b, c: [Object.spec.c{d: {'e': f}}]}}",
            "Object{spec: Object_spec{?a: object.?b, c: [Object_spec_c{d: {'e': f}}]}}",
            '{"mark": "Object","spec": {"mark": "Object.spec",?"a": object.?b, '
            '"c": [{"mark": "Object.spec.c","d": {\'e\': f}}]}}',
        ),
        ('[JSONPatch{op: "a"}]', '[JSONPatch{op: "a"}]', '[{"mark": "JSONPatch","op": "a"}]'),
        ("Object . a{b: x ? y : z, }", "Object_a  {b: x ? y : z, }", '{"mark": "Object.a","b": x ? y : z, }'),
        ("Object{a: f(b, c), d: e}", "Object{a: f(b, c), d: e}", '{"mark": "Object","a": f(b, c), "d": e}'),
        ("'Object{a: 1}' + x.Object", "'Object{a: 1}' + x.Object", "'Object{a: 1}' + x.Object"),
        (
            r"Object{a: r'\', b: '\'c: d'}",
            r"Object{a: r'\', b: '\'c: d'}",
            r"""{"mark": "Object","a": r'\', "b": '\'c: d'}""",
        ),
        ("// Object{a: 1}\nx", "// Object{a: 1}\nx", "// Object{a: 1}\nx"),
        ("object.x.map(Object, Object)", "object.x.map(Object, Object)", "object.x.map(Object, Object)"),
        ("Object{a: [1", "Object{a: [1", '{"mark": "Object","a": [1'),
    ],
)  # fmt: skip
def test_messages_become_maps_with_the_names_of_their_types(text: str, checked: str, evaluated: str) -> None:
    expression = patch_expression(text)
    assert (expression.checked_text, expression.evaluated_text(M)) == (checked, evaluated)
    assert len(checked) == len(text)


def test_messages_of_the_compiler_name_types_as_they_are_written() -> None:
    expression = patch_expression("Object{a: Object.a{b: Object.a.b{}}}")
    assert expression.as_written("Object_a_b, Object_a, Object") == "Object.a.b, Object.a, Object"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("STRING", "string"),
        ("LIST<JSONPatch>", "list(JSONPatch)"),
        ("MAP<STRING, DYN>", "map(string, dyn)"),
        ("Object.spec", "Object.spec"),
        ("LIST<google.protobuf.Timestamp>", "list(timestamp)"),
        ("NULL", "null_type"),
    ],
)
def test_types_have_kubernetes_names(name: str, shown: str) -> None:
    assert type_name(name) == shown


def message(name: str, **fields: Any) -> dict[str, Any]:
    return {M: name, **fields}


def test_a_configuration_has_no_marks() -> None:
    result = message("Object", spec=message("Object.spec", list=[message("Object.spec.list", a=1)], map={"x": 1}))
    assert configuration_of(result, M) == {"spec": {"list": [{"a": 1}], "map": {"x": 1}}}


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ({"spec": 1}, "unsupported return type from ApplyConfiguration expression"),
        ("text", "unsupported return type from ApplyConfiguration expression"),
        (
            message("Object", spec=[message("Object.specx")]),
            'type mismatch: unexpected type name "Object.specx", expected "Object.spec", '
            "which matches field name path from root Object type",
        ),
        (
            message("Object", spec={"any": message("Object")}),
            'type mismatch: unexpected type name "Object", expected "Object.spec", '
            "which matches field name path from root Object type",
        ),
    ],
)
def test_a_result_that_is_no_configuration_says_why(result: Any, error: str) -> None:
    with pytest.raises(PatchTypeError) as raised:
        configuration_of(result, M)
    assert str(raised.value) == error


def test_operations_have_the_fields_that_are_set() -> None:
    result = [
        message("JSONPatch", op="add", path="/a", value=message("Object.a", b=1)),
        message("JSONPatch", **{"from": "/b"}),
    ]
    assert operations_of(result, M) == [
        {"op": "add", "path": "/a", "value": {"b": 1}},
        {"op": "", "path": "", "from": "/b"},
    ]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ({}, "should evaluate to array"),
        ([{"op": "add"}], "should evaluate to array of JSONPatch"),
        ([message("Object")], "should evaluate to array of JSONPatch"),
        ([message("JSONPatch", op=1)], "unexpected type int64 for JSONPatchType 'op' field"),
        ([message("JSONPatch", value=message("Object.a", b=message("Object.a.c")))], 'expected "Object.a.b"'),
    ],
)
def test_a_result_that_is_no_json_patch_says_why(result: Any, error: str) -> None:
    with pytest.raises(PatchTypeError, match=error):
        operations_of(result, M)


@pytest.mark.parametrize(
    "text",
    ['"' + '\\"' * 8000, "'" + "\\'" * 8000, '"""' + "'''" * 5000, "r'" * 8000, "`" * 16_000, "Object.a{" * 1700],
)
def test_a_text_of_quotes_and_messages_is_read_in_time(text: str) -> None:
    begin = time.process_time()
    expression = patch_expression(text)
    assert len(expression.checked_text) == len(text)
    expression.evaluated_text(M)
    assert time.process_time() - begin < 0.3

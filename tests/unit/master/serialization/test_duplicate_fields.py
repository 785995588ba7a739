"""Fields that a JSON text sets twice."""

from __future__ import annotations

import msgspec
import pytest

from api.codec.limits import MAX_DEPTH
from master.serialization.duplicate_fields import MAX_DUPLICATE_FIELDS, duplicate_fields
from master.serialization.negotiation import APPLY_PATCH, decode_body


def found(text: str) -> tuple[str, ...]:
    return duplicate_fields(text.encode(), msgspec.json.decode(text))


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ('{"spec":{"paused":true,"paused":true}}', ["spec.paused"]),
        ('{"a":1,"b":[{"c":1},{"c":1,"c":{}}],"a":2}', ["b[1].c", "a"]),
        ('{"a":1,"a":1,"a":1}', ["a"]),
        ('{"a":{"b":1},"a":{"b":{"c":1,"c":2}}}', ["a", "a.b.c"]),
    ],
)
def test_duplicate_fields_are_found_by_path(text: str, paths: list[str]) -> None:
    assert found(text) == tuple(f'duplicate field "{path}"' for path in paths)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":"b:c","d:e":["::",{"f\\"":"\\\\"}]}',
        '{"a" : {"a" : {"a" : null}}}',
        '{"\\\\":":"}',
        *("{}", "[]", '":"', "1"),
    ],
)
def test_colons_in_strings_are_no_fields(text: str) -> None:
    assert found(text) == ()


def test_number_of_reported_fields_is_bounded() -> None:
    assert len(found("{" + ",".join(['"a":1', '"b":1'] * 1_000) + "}")) == 2
    names = [f'"{number}":1' for number in range(1_000)]
    assert len(found("{" + ",".join(names + names) + "}")) == MAX_DUPLICATE_FIELDS
    deep = '{"a":' * (MAX_DEPTH - 1) + '{"b":1,"b":2}' + "}" * (MAX_DEPTH - 1)
    assert len(found(deep)) == 1


def test_yaml_reports_the_lines() -> None:
    body = decode_body(True, APPLY_PATCH, b"a: 1\nb: 1\na: 2\n")
    assert body.duplicate_fields == ('yaml: unmarshal errors:\n  line 3: key "a" already set in map',)
    assert body.document == {"a": 2, "b": 1}
    assert decode_body(True, APPLY_PATCH, b'{"a":1,"a":2}').duplicate_fields == ('duplicate field "a"',)

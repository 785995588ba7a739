"""Bodies of requests: documents that are too deep are rejected while they are decoded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from api.codec.limits import MAX_DEPTH, MAX_VALUES
from master.errors import StatusError
from master.serialization.negotiation import MAX_YAML_BYTES, MAX_YAML_NODES, decode_body

JSON_TYPES = ["application/json", "application/merge-patch+json", "application/json-patch+json"]
YAML_TYPES = ["application/yaml", "application/apply-patch+yaml"]


def decode(content_type: str, body: bytes) -> Any:
    return decode_body("patch" in content_type, content_type, body).document


def error(content_type: str, body: bytes) -> tuple[int, str]:
    with pytest.raises(StatusError) as caught:
        decode(content_type, body)
    return caught.value.status.code, caught.value.status.message


def lists(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize("content_type", [*JSON_TYPES, *YAML_TYPES])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 5_000, 20_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_json_with_too_many_levels_is_rejected(content_type: str, depth: int, opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    body = (opening * depth + "1" + closing * depth).encode()
    assert error(content_type, body) == (400, f"the body has more than {MAX_DEPTH} levels")


@pytest.mark.parametrize("content_type", [*JSON_TYPES, *YAML_TYPES])
def test_json_with_the_most_levels_is_decoded(content_type: str) -> None:
    assert msgspec.json.encode(decode(content_type, lists(MAX_DEPTH))) == lists(MAX_DEPTH)
    flat = [{"a": "[" * 1_000}] * 1_000
    assert decode(content_type, msgspec.json.encode(flat)) == flat


@pytest.mark.parametrize("content_type", YAML_TYPES)
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 50_000])
def test_yaml_with_too_many_levels_is_rejected(content_type: str, depth: int) -> None:
    code, message = error(content_type, b"[a: " * depth + b"]" * depth)
    assert (code, f"more than {MAX_DEPTH} levels" in message, "recursion" in message) == (400, True, False)
    indented = "\n".join(" " * level + "a:" for level in range(min(depth, 600))).encode()
    assert f"more than {MAX_DEPTH} levels" in error(content_type, indented)[1]


@pytest.mark.parametrize("value", [{}, [1], {"a": ""}])
def test_json_with_too_many_values_of_any_type_is_rejected(value: Any) -> None:
    body = msgspec.json.encode({"a": [value] * MAX_VALUES})
    assert error("application/json", body) == (413, f"the body has more than {MAX_VALUES} values")


@pytest.mark.parametrize("content_type", [*JSON_TYPES, *YAML_TYPES])
def test_json_with_too_many_values_is_rejected(content_type: str) -> None:
    body = msgspec.json.encode({"a": [1] * MAX_VALUES})
    assert error(content_type, body) == (413, f"the body has more than {MAX_VALUES} values")
    text = ["," * MAX_VALUES]
    assert decode(content_type, msgspec.json.encode(text)) == text


def test_yaml_with_too_many_values_is_rejected() -> None:
    for count in (100, MAX_VALUES):
        body = f"a: [{'1,' * count}]".encode()
        if count < MAX_VALUES:
            assert len(decode(YAML_TYPES[0], body)["a"]) == count
        else:
            code, message = error(YAML_TYPES[0], body)
            assert (code, f"more than {MAX_YAML_NODES} keys and values" in message) == (400, True)


@pytest.mark.parametrize("text", ["- " * 9 + "x\n", "- x\n", "? x\n", "- {a: b}\n"])
def test_yaml_is_composed_up_to_a_number_of_nodes(text: str) -> None:
    lines = MAX_YAML_BYTES // len(text)
    assert f"more than {MAX_YAML_NODES} keys and values" in error(YAML_TYPES[0], text.encode() * lines)[1]
    assert decode(YAML_TYPES[0], text.encode())


@pytest.mark.parametrize("content_type", [*JSON_TYPES, *YAML_TYPES])
@pytest.mark.parametrize("value", ["[" * 60 + "]" * 60, '{"a":1}', "[]", '""', r'"\\\""', "1"])
def test_json_with_far_too_many_values_is_not_decoded(
    content_type: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(msgspec.json, "decode", refuse)
    body = f"[{value}{f',{value}' * 70_000}]".encode()
    assert error(content_type, body) == (413, f"the body has more than {MAX_VALUES} values")


def test_commas_and_brackets_in_texts_are_no_values() -> None:
    text = {"a": ',[{"\\\\' * 100_000, 'b"': ",\\" * 100_000}
    assert decode("application/json", msgspec.json.encode(text)) == text
    block = "a: |\n" + "  1,2,3,[4],{5}\n" * 10_000
    assert decode(YAML_TYPES[0], block.encode()) == {"a": block.removeprefix("a: |\n").replace("  1", "1")}

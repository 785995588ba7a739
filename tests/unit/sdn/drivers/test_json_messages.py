"""The parser of the database's messages, against the standard library's."""

from __future__ import annotations

import json

import ovs.json
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdn.drivers.json_messages import MessageParser, use_fast_parser

TEXTS = st.text(alphabet='{}[]"\\:, aé\n')
MESSAGES = st.dictionaries(
    TEXTS,
    st.recursive(
        st.none() | st.integers() | TEXTS,
        lambda values: st.lists(values) | st.dictionaries(TEXTS, values),
        max_leaves=8,
    ),
)


def fed(text: str, part: int) -> tuple[object, str]:
    """Return the first object of a text that arrives in parts of this length, and what is behind it."""
    parser = MessageParser()
    for begin in range(0, len(text), part):
        taken = parser.feed(text[begin : begin + part])
        if parser.is_done():
            return parser.finish(), text[begin + taken :]
    raise AssertionError(f"{text!r} is not complete")


@given(MESSAGES, MESSAGES, st.integers(1, 40), st.booleans())
def test_messages_are_parsed_however_they_are_divided(
    first: object, second: object, part: int, ensure_ascii: bool
) -> None:
    text = json.dumps(first, ensure_ascii=ensure_ascii) + json.dumps(second, ensure_ascii=ensure_ascii)
    value, rest = fed(text, part)
    assert value == first
    assert fed(rest, part) == (second, "")


@given(MESSAGES)
def test_message_is_not_done_before_its_last_brace(message: object) -> None:
    parser = MessageParser()
    text = json.dumps(message)
    assert parser.feed(text[:-1]) == len(text) - 1
    assert not parser.is_done()


@pytest.mark.parametrize("text", ["{]}", '{"a" 1}', "}", '{"a": ' + "[" * 100_000 + "}"])
def test_message_that_is_not_json_is_a_sentence(text: str) -> None:
    value, _ = fed(text, 4096)
    assert isinstance(value, str)


def test_library_uses_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ovs.json, "PARSER", ovs.json.PARSER_PY)
    monkeypatch.setattr(ovs.json, "Parser", None)
    use_fast_parser()
    assert ovs.json.from_string('{"a": [1, "}"]}') == {"a": [1, "}"]}

"""Label and field selectors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.meta.schema import TOO_MANY
from api.meta.selectors import (
    MAX_REQUIREMENTS,
    MAX_VALUES,
    BadSelector,
    LabelSelector,
    LabelSelectorRequirement,
    check_selector,
    parse_field_selector,
    parse_label_selector,
)

LABELS = {"app": "web", "tier": "front", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web,tier=front", True),
        ("app!=web", False),
        ("nothing!=x", True),
        ("app in (web, db)", True),
        ("app notin (web)", False),
        ("nothing notin (x)", True),
        ("app", True),
        ("!app", False),
        ("!nothing", True),
        ("empty=", True),
        ("app=web,!nothing,tier in (front,back)", True),
        ("example.com/x=y", False),
    ],
)
def test_label_selector_matches_labels(selector: str, matches: bool) -> None:
    assert parse_label_selector(selector).matches(LABELS) == matches


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        ("a in", "unable to parse requirement: found '' expected: '('"),
        ("a in x", "unable to parse requirement: found 'x' expected: '('"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("=b", "found '=', expected: !, identifier, or 'end of string'"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("a,,b", "found ',', expected: identifier after ','"),
        ("(a)", "found '(', expected: !, identifier, or 'end of string'"),
        (
            "a>b",
            "unable to parse requirement: values[0][a]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value "
            "must be an integer",
        ),
        ("/a", 'unable to parse requirement: <nil>: Invalid value: "/a": prefix part must be non-empty'),
    ],
)
def test_invalid_label_selector_is_rejected(selector: str, message: str) -> None:
    with pytest.raises(BadSelector) as caught:
        parse_label_selector(selector)
    assert str(caught.value) == message


def test_label_selector_compares_numbers() -> None:
    assert parse_label_selector("size>8,size<10").matches({"size": "9"})
    assert not parse_label_selector("size>8").matches({"size": "8"})
    assert not parse_label_selector("size<8").matches({"size": "small"})


@given(st.text(alphabet="a1=!(),<> in", max_size=12))
def test_any_text_is_parsed_or_rejected_as_a_selector(text: str) -> None:
    try:
        parse_label_selector(text)
    except BadSelector:
        pass


def test_field_selector_matches_fields() -> None:
    known = frozenset({"metadata.name", "spec.nodeName"})
    selector = parse_field_selector("metadata.name=a,spec.nodeName!=b", known)
    assert selector.matches({"metadata.name": "a", "spec.nodeName": "c"})
    assert not selector.matches({"metadata.name": "a", "spec.nodeName": "b"})
    assert selector.required_value("metadata.name") == "a"
    assert selector.required_value("spec.nodeName") is None
    with pytest.raises(BadSelector, match="field label not supported: foo"):
        parse_field_selector("foo=1", known)
    with pytest.raises(BadSelector, match="can't understand"):
        parse_field_selector("foo", known)


@pytest.mark.parametrize(
    ("text", "limit"),
    [("k{0}", MAX_REQUIREMENTS), ("!k{0}", MAX_REQUIREMENTS), ("k{0}=v", MAX_REQUIREMENTS)],
)
def test_label_selector_has_a_limit_of_requirements(text: str, limit: int) -> None:
    accepted = ",".join(text.format(number) for number in range(limit))
    assert len(parse_label_selector(accepted).requirements) == limit
    with pytest.raises(BadSelector, match="requirements are accepted"):
        parse_label_selector(f"{accepted},more")


def test_requirement_has_a_limit_of_values() -> None:
    accepted = ",".join(f"v{number}" for number in range(MAX_VALUES))
    assert parse_label_selector(f"k in ({accepted})").requirements
    with pytest.raises(BadSelector, match="values are accepted"):
        parse_label_selector(f"k in ({accepted},more)")


def test_field_selector_has_a_limit_of_requirements() -> None:
    accepted = ",".join("metadata.name=x" for _ in range(MAX_REQUIREMENTS))
    supported = frozenset({"metadata.name"})
    assert parse_field_selector(accepted, supported).requirements
    with pytest.raises(BadSelector, match="requirements are accepted"):
        parse_field_selector(f"{accepted},metadata.name=y", supported)


def test_stored_selector_has_the_limits_of_a_request() -> None:
    expression = LabelSelectorRequirement("k", "In", ("v",) * MAX_VALUES)
    labels = {f"k{number}": "v" for number in range(MAX_REQUIREMENTS - 1)}
    assert list(check_selector("spec", LabelSelector(labels, (expression,)))) == []
    (problem,) = check_selector("spec", LabelSelector(labels, (expression,) * 2))
    assert (problem.path, problem.reason) == ("spec", TOO_MANY)
    (problem,) = check_selector("spec", LabelSelector({}, (replace(expression, values=("v",) * (MAX_VALUES + 1)),)))
    assert (problem.path, problem.reason) == ("spec.matchExpressions[0].values", TOO_MANY)

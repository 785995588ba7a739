"""Rules are found in a schema, checked without compiling them, and laid on an object and its old one."""

from __future__ import annotations

import time
from typing import Any

import pytest

from api.meta.schema import FORBIDDEN, INVALID
from master.cel.bounds import MAX_EXPRESSION_LENGTH, text_error
from master.cel.messages import BYTES, DOUBLE, DYN, INT, MAP, OBJECT, TIMESTAMP, EvaluatedRules, OutOfBudget, Rule
from master.cel.rules import (
    applies,
    encode_rules,
    escape,
    evaluations,
    failed_message,
    failure,
    failures_as_errors,
    find_rules,
    rule_errors,
    type_of,
)

RULE = {"rule": "true"}


def obj(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def rules(*each: dict[str, Any]) -> dict[str, Any]:
    return {"x-kubernetes-validations": list(each or (RULE,))}


STRING: dict[str, Any] = {"type": "string"}


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("spec", "spec"),
        ("namespace", "__namespace__"),
        ("x-y", "x__dash__y"),
        ("a.b/c", "a__dot__b__slash__c"),
        ("a__b", "a__underscores__b"),
        ("$ref", None),
        ("1", None),
    ],
)
def test_property_names_are_escaped(name: str, escaped: str | None) -> None:
    assert escape(name) == escaped


def test_types_follow_from_the_schema() -> None:
    schema = obj(
        {
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "data": {"type": "string", "format": "byte"},
            "time": {"type": "string", "format": "date-time"},
            "port": {"x-kubernetes-int-or-string": True},
            "map": {"type": "object", "additionalProperties": STRING},
            "$x": STRING,
            "untyped": {"x-kubernetes-preserve-unknown-fields": True},
        }
    )
    declared = type_of(schema)
    assert declared is not None
    kinds = {name: each.kind for name, each in declared.fields}
    assert declared.kind == OBJECT
    assert kinds == {"count": INT, "ratio": DOUBLE, "data": BYTES, "time": TIMESTAMP, "port": DYN, "map": MAP}


def test_a_schema_without_rules_has_none() -> None:
    assert find_rules(obj({"spec": obj({"a": STRING})})) is None
    found = find_rules(obj({"spec": obj({"a": {**STRING, **rules()}})}))
    assert found is not None
    assert found.properties[0][1].properties[0][1].path == ".properties[spec].properties[a]"


def paths(schema: dict[str, Any], value: Any, old: Any = None) -> dict[str, tuple[bool, bool]]:
    """Return the path of each evaluation, with whether there is an old value and whether it is unchanged."""
    node = find_rules(schema)
    assert node is not None
    return {each.path: (each.has_old, each.is_unchanged) for each in evaluations(node, value, old)}


ITEM = obj({"name": STRING, "v": STRING}, **rules())


def test_values_correlate_by_property_key_and_list_key() -> None:
    keyed = {
        "type": "array",
        "items": ITEM,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    schema = obj({"m": {"type": "object", "additionalProperties": {**STRING, **rules()}}, "l": keyed})
    new = {"m": {"a": "1", "b": "2"}, "l": [{"name": "x", "v": "2"}, {"name": "y"}]}
    old = {"m": {"a": "1"}, "l": [{"name": "y"}, {"name": "x", "v": "1"}]}
    assert paths(schema, new, old) == {
        "m[a]": (True, True),
        "m[b]": (False, False),
        "l[0]": (True, False),
        "l[1]": (True, True),
    }


def test_elements_of_an_atomic_list_have_no_old_value_and_are_unchanged_together() -> None:
    schema = obj({"l": {"type": "array", "items": ITEM}})
    new = {"l": [{"name": "x"}, {"name": "y"}]}
    assert paths(schema, new, {"l": [{"name": "x"}]}) == {"l[0]": (False, False), "l[1]": (False, False)}
    assert paths(schema, new, new) == {"l[0]": (False, True), "l[1]": (False, True)}


def test_null_and_missing_values_have_no_evaluation() -> None:
    schema = obj({"a": {**STRING, **rules()}, "b": {**STRING, **rules()}})
    assert paths(schema, {"a": None}) == {}
    assert list(paths(schema, {"a": "", "b": "x"})) == ["a", "b"]


def test_a_transition_rule_needs_an_old_value_unless_it_is_optional() -> None:
    node = find_rules(obj({}, **rules({"rule": "self == oldSelf"}, {"rule": "'oldSelf' == ''"})))
    assert node is not None
    transition, plain = node.rules
    assert (transition.uses_old, plain.uses_old) == (True, False)
    (create,), (update,) = list(evaluations(node, {})), list(evaluations(node, {}, {}))
    assert not applies(transition, create)
    assert applies(transition, update)
    assert applies(plain, create)
    assert applies(Rule("oldSelf", optional_old_self=True, uses_old=True), create)


def test_failures_become_errors_and_warnings() -> None:
    node = find_rules(obj({"a": {**STRING, **rules()}}))
    assert node is not None
    (changed,) = evaluations(node, {"a": "x"}, {"a": "y"})
    (unchanged,) = evaluations(node, {"a": "x"}, {"a": "x"})
    forbidden = failure(Rule("r", reason="FieldValueForbidden"), changed, "no")
    errors, warnings = failures_as_errors(EvaluatedRules((forbidden, failure(Rule("r"), unchanged, "kept"))))
    assert [(error.path, error.bad_value, error.detail, error.reason) for error in errors] == [
        ("a", '"x"', "no", FORBIDDEN)
    ]
    assert warnings == ('a: Invalid value: "x": kept',)
    errors, warnings = failures_as_errors(
        EvaluatedRules((failure(Rule("oldSelf", uses_old=True), unchanged, "transition"),))
    )
    assert [error.reason for error in errors] == [INVALID]
    assert not warnings


def test_a_spent_budget_is_an_error() -> None:
    errors, _ = failures_as_errors(OutOfBudget())
    assert "running out of cost budget" in errors[0].detail


def test_the_field_path_of_a_rule_is_that_of_the_error() -> None:
    node = find_rules(obj({"spec": obj({}, **rules())}))
    assert node is not None
    (evaluation,) = evaluations(node, {"spec": {}})
    assert failure(Rule("r", field_path=".a['b.c']"), evaluation, "").path == "spec.a[b.c]"


@pytest.mark.parametrize(
    ("rule", "value", "message"),
    [
        (Rule("a"), "", "failed rule: a"),
        (Rule("a", message=" said "), "", "said"),
        (Rule("a", message="said"), "computed", "computed"),
        (Rule("a", message="said"), "two\nlines", "said"),
        (Rule("a", message="said"), "x" * 6000, "said"),
    ],
)
def test_the_message_of_a_failure(rule: Rule, value: str, message: str) -> None:
    assert failed_message(rule, value) == message


def problems(schema: dict[str, Any]) -> list[tuple[str, str]]:
    return [(error.path.rpartition("]")[2], error.detail) for error in rule_errors(schema, "s")]


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"rule": " "}, ".rule"),
        ({"rule": "a &&\nb"}, ".message"),
        ({"rule": "a", "message": "a\nb"}, ".message"),
        ({"rule": "a", "message": " "}, ".message"),
        ({"rule": "a", "messageExpression": " "}, ".messageExpression"),
        ({"rule": "a", "reason": "Other"}, ".reason"),
        ({"rule": "a", "fieldPath": ".missing"}, ".fieldPath"),
        ({"rule": "a", "fieldPath": "spec"}, ".fieldPath"),
        ({"rule": "a", "optionalOldSelf": True}, ".optionalOldSelf"),
        ({"rule": "(" * 33 + "a" + ")" * 33}, ".rule"),
    ],
)
def test_wrong_rules_are_found(rule: dict[str, Any], field: str) -> None:
    assert [path for path, _ in problems(obj({"a": STRING}, **rules(rule)))] == [field]


def test_a_right_rule_is_accepted() -> None:
    right = {"rule": "self == oldSelf ||\ntrue", "message": "m", "reason": "FieldValueInvalid", "fieldPath": ".a"}
    assert problems(obj({"a": STRING}, **rules(right))) == []


def test_old_values_are_refused_below_lists_that_are_compared_as_a_whole() -> None:
    schema = obj({"l": {"type": "array", "maxItems": 3, "items": {**STRING, **rules({"rule": "self == oldSelf"})}}})
    ((_, detail),) = problems(schema)
    assert detail == ("oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[l]")


def test_loops_over_lists_without_bounds_exceed_the_estimate() -> None:
    def nested(**bound: int) -> dict[str, Any]:
        inner = {"type": "array", "items": STRING, **bound}
        rule = {"rule": "self.l.all(x, x.all(y, y != 'a'))"}
        return obj({"l": {"type": "array", "items": inner, **bound}}, **rules(rule))

    ((path, detail),) = problems(nested())
    assert path == ".rule"
    assert detail.startswith("estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule")
    assert problems(nested(maxItems=100)) == []
    siblings = {"rule": "self.l.all(x, true) && self.l.all(y, true)"}
    assert problems(obj({"l": {"type": "array", "items": STRING}}, **rules(siblings))) == []


def test_long_and_deep_expressions_are_refused_before_they_are_compiled() -> None:
    assert text_error("true") == ""
    assert text_error("(" * 32 + "a" + ")" * 32) == ""
    assert text_error("'" + "(" * 100 + "'") == ""
    assert "recursion limit" in text_error("(" * 33)
    assert str(MAX_EXPRESSION_LENGTH) in text_error("a" * (MAX_EXPRESSION_LENGTH + 1))


@pytest.mark.parametrize("text", ['"' + '\\"' * 8000, "'" + "\\'" * 8000, '"""' + "'''" * 5000, "\\" * 16_000])
def test_a_text_of_quotes_is_read_in_time(text: str) -> None:
    """Each quote that begins no string would be another one to search for its end."""
    schema = {"type": "object", "x-kubernetes-validations": [{"rule": text, "messageExpression": text}]}
    begin = time.process_time()
    list(rule_errors(schema, "spec"))
    encode_rules(schema)
    long = {"type": "object", "x-kubernetes-validations": [{"rule": text * 100}]}
    assert "characters" in next(rule_errors(long, "spec")).detail
    encode_rules(long)
    assert time.process_time() - begin < 1.0

"""The CEL worker for real: what it answers, and what hostile expressions do to it and to others."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from master.cel.evaluator import CELEvaluator
from master.cel.messages import (
    APPLY_CONFIGURATION,
    BOOL,
    JSON_PATCH,
    Answer,
    CheckAnswer,
    CompiledExpressions,
    CompiledRules,
    CompileExpressions,
    CompileRules,
    EvaluatedPolicy,
    EvaluatedRules,
    EvaluatePolicy,
    EvaluateRules,
    Expression,
    Mutation,
    NamedExpression,
    OutOfBudget,
    Validation,
)
from master.cel.rules import find_rules


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def evaluator() -> AsyncIterator[CELEvaluator]:
    client = CELEvaluator()
    yield client
    await client.close()


pytestmark = pytest.mark.asyncio(loop_scope="module")


def policy(*validations: str, obj: Any = None, **more: Any) -> EvaluatePolicy:
    document = msgspec.json.encode(obj or {})
    return EvaluatePolicy(validations=tuple(map(Validation, validations)), obj=document, **more)


def encoded(schema: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(find_rules(schema))


async def passed(evaluator: CELEvaluator, *validations: str, obj: Any = None) -> list[bool | str]:
    answer = await evaluator.ask(policy(*validations, obj=obj))
    assert isinstance(answer, EvaluatedPolicy)
    return [outcome.error or outcome.passed for outcome in answer.validations]


async def test_kubernetes_functions_are_there(evaluator: CELEvaluator) -> None:
    true = (
        "isIP('10.0.0.1') && !isIP('10.0.0.256') && !isIP('::ffff:1.2.3.4')",
        "ip('::1').isLoopback() && ip('10.0.0.1').family() == 4",
        "cidr('10.0.0.0/8').containsIP('10.2.3.4') && !cidr('10.0.0.0/8').containsIP(ip('11.0.0.1'))",
        "cidr('10.0.0.0/8').containsCIDR(cidr('10.1.0.0/16')) && cidr('10.1.2.3/8').masked().prefixLength() == 8",
        "isQuantity('1.5Gi') && !isQuantity('a')",
        "quantity('1').add(quantity('500m')).compareTo(quantity('1500m')) == 0",
        "quantity('2k').asInteger() == 2000 && quantity('1') == quantity('1000m')",
        "url('https://a.example.org:8080/x?y=1').getHostname() == 'a.example.org'",
        "url('https://a.example.org:8080/x?y=1').getQuery()['y'] == ['1'] && !isURL('not a url')",
        "!format.dns1123Label().validate('a-b').hasValue() && format.dns1123Label().validate('A').value().size() == 1",
        "sets.contains([1, 2], [2]) && sets.intersects(['a'], ['a', 'b']) && sets.equivalent([1, 1], [1])",
        "[1, 2].isSorted() && [1, 2].sum() == 3 && [3, 1].min() == 1 && [1, 2].indexOf(2) == 1",
        "'abc'.indexOf('c') == 2 && 'a,b'.split(',') == ['a', 'b'] && '%d'.format([1]) == '1'",
        "object.?a.orValue(3) == 3 && object[?'b'].hasValue()",
    )
    assert await passed(evaluator, *true, obj={"b": 1}) == [True] * len(true)


async def test_a_wrong_argument_is_an_error_of_its_own_expression(evaluator: CELEvaluator) -> None:
    wrong = await passed(evaluator, "ip('x').family() == 4", "object.a == 1", "quantity('1').family() == 4", "true")
    assert "parse error" in str(wrong[0])
    assert wrong[1:] == ["no such key: a", "no such overload", True]


SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {"replicas": {"type": "integer"}, "x-y": {"type": "number"}, "t": {"type": "string"}},
            "x-kubernetes-validations": [
                {"rule": "self.replicas >= 1", "messageExpression": "'got %d'.format([self.replicas])"},
                {"rule": "self.x__dash__y == 1.0"},
                {"rule": "self.replicas >= oldSelf.replicas", "message": "no shrinking"},
                {"rule": "oldSelf.hasValue() || self.replicas < 5 // new", "optionalOldSelf": True},
            ],
        }
    },
}


async def test_rules_of_a_schema_are_evaluated_by_their_types(evaluator: CELEvaluator) -> None:
    async def messages(replicas: int, old: int | None = None) -> list[str]:
        obj = msgspec.json.encode({"spec": {"replicas": replicas, "x-y": 1}})
        before = b"" if old is None else msgspec.json.encode({"spec": {"replicas": old}})
        answer = await evaluator.ask(EvaluateRules(encoded(SCHEMA), obj, before))
        assert isinstance(answer, EvaluatedRules)
        return [failure.message for failure in answer.failures]

    assert await evaluator.ask(CompileRules(encoded(SCHEMA))) == CompiledRules()
    assert await messages(3) == []
    assert await messages(0) == ["got 0"]
    assert await messages(7) == ["failed rule: oldSelf.hasValue() || self.replicas < 5 // new"]
    assert await messages(7, old=9) == ["no shrinking"]


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ("self.tpyo > 1", "undefined field 'tpyo'"),
        ("self.replicas == 'a'", "found no matching overload"),
        ("self.replicas +", "Syntax error"),
        ("self.replicas", "must evaluate to a bool"),
        ("oldSelf2.replicas == 1", "undeclared reference"),
    ],
)
async def test_a_wrong_rule_does_not_compile(evaluator: CELEvaluator, rule: str, error: str) -> None:
    schema = {"type": "object", "properties": {"replicas": {"type": "integer"}}}
    answer = await evaluator.ask(CompileRules(encoded({**schema, "x-kubernetes-validations": [{"rule": rule}]})))
    assert isinstance(answer, CompiledRules)
    assert [error in each.error for each in answer.errors] == [True]


async def test_rules_of_values_that_are_no_objects(evaluator: CELEvaluator) -> None:
    def ruled(rule: str, **schema: Any) -> dict[str, Any]:
        return {**schema, "x-kubernetes-validations": [{"rule": rule}]}

    texts = {"type": "array", "items": {"type": "string"}}
    parts = {
        "number": ruled("self > 1", type="integer"),
        "text": ruled("self.startsWith('a')", type="string"),
        "either": ruled("self != 'b'", **{"x-kubernetes-int-or-string": True}),
        "time": ruled("self > timestamp('2026-01-01T00:00:00Z')", type="string", format="date-time"),
        "texts": ruled("self.all(each, each != '')", **texts),
        "lists": ruled("self.all(each, size(each) > 0)", type="array", items=texts),
        "labels": ruled("self.all(key, self[key] != '')", type="object", additionalProperties={"type": "string"}),
    }
    rules = encoded({"type": "object", "properties": parts})
    assert await evaluator.ask(CompileRules(rules)) == CompiledRules()
    wrong = {
        "number": 1, "text": "b", "either": "b", "time": "2025-01-01T00:00:00Z",
        "texts": ["a", ""], "lists": [["a"], []], "labels": {"a": ""},
    }  # fmt: skip
    right = {
        "number": 2, "text": "a", "either": 1, "time": "2026-01-02T00:00:00Z",
        "texts": ["a"], "lists": [["a"]], "labels": {"a": "b"},
    }  # fmt: skip
    for obj, failed in ((right, set()), (wrong, set(parts))):
        answer = await evaluator.ask(EvaluateRules(rules, msgspec.json.encode(obj), b""))
        assert isinstance(answer, EvaluatedRules)
        assert {failure.path for failure in answer.failures} == failed


async def test_the_authorizer_is_asked_in_a_second_round(evaluator: CELEvaluator) -> None:
    question = policy("authorizer.group('apps').resource('x').namespace('n').check('get').allowed()")
    answer = await evaluator.ask(question)
    assert isinstance(answer, EvaluatedPolicy)
    (check,) = answer.checks
    assert (check.verb, check.group, check.resource, check.namespace) == ("get", "apps", "x", "n")
    for allowed in (True, False):
        again = await evaluator.ask(msgspec.structs.replace(question, answers=(CheckAnswer(check, allowed),)))
        assert isinstance(again, EvaluatedPolicy)
        assert [outcome.passed for outcome in again.validations] == [allowed]


async def test_variables_are_lazy_and_name_their_errors(evaluator: CELEvaluator) -> None:
    variables = (NamedExpression("good", "1"), NamedExpression("bad", "object.nope + variables.good"))
    question = policy("variables.good == 1", "variables.good == 1 || variables.bad == 1", "variables.bad == 1")
    answer = await evaluator.ask(msgspec.structs.replace(question, variables=variables))
    assert isinstance(answer, EvaluatedPolicy)
    assert [outcome.passed for outcome in answer.validations] == [True, True, False]
    assert answer.validations[2].error == 'composited variable "bad" fails to evaluate: no such key: nope'


async def test_a_match_condition_decides_whether_the_rest_is_evaluated(evaluator: CELEvaluator) -> None:
    skips, fails = NamedExpression("skips", "false"), NamedExpression("fails", "object.nope")
    skipped = await evaluator.ask(policy("false", conditions=(fails, skips)))
    assert isinstance(skipped, EvaluatedPolicy)
    assert (skipped.matches, skipped.validations) == (False, ())
    failed = await evaluator.ask(policy("false", conditions=(fails,)))
    assert isinstance(failed, EvaluatedPolicy)
    assert (failed.matches, failed.condition_errors) == (True, (("fails", "no such key: nope"),))


def mutation(text: str, result: str = APPLY_CONFIGURATION, obj: Any = None, **more: Any) -> EvaluatePolicy:
    return policy(obj=obj, mutation=Mutation(text, result), **more)


async def patched(evaluator: CELEvaluator, question: EvaluatePolicy) -> Any:
    """Return the patch, or the error as text."""
    answer = await evaluator.ask(question)
    assert isinstance(answer, EvaluatedPolicy), answer
    assert answer.patch is not None
    return answer.patch.error or msgspec.json.decode(answer.patch.document)


async def test_a_mutation_returns_a_part_of_an_object(evaluator: CELEvaluator) -> None:
    text = """Object{
        metadata: Object.metadata{labels: {"a/b": object.x, "c": variables.v}},
        spec: Object.spec{
            ?absent: object.?nothing, ?there: object.?x,
            list: [1, 2].map(n, Object.spec.list{
                name: string(n), when: duration("90s"), at: timestamp("2026-01-01T00:00:00Z")
            }),
            number: has(Object{a: 1}.a) && !has(Object{}.a) && Object{a: 1} == Object{a: 1} && Object{} != JSONPatch{}
                ? 1 : 2,
        },
    }"""
    question = mutation(text, obj={"x": "1"}, variables=(NamedExpression("v", "object.x + '2'"),))
    items = [{"name": n, "when": "90s", "at": "2026-01-01T00:00:00Z"} for n in "12"]
    assert await patched(evaluator, question) == {
        "metadata": {"labels": {"a/b": "1", "c": "12"}},
        "spec": {"there": "1", "list": items, "number": 1},
    }


async def test_a_mutation_returns_operations_of_a_json_patch(evaluator: CELEvaluator) -> None:
    text = """object.x.map(k, JSONPatch{
            op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey(k), value: {"k": 1, "l": "m"}
        })
        + [JSONPatch{op: "add", path: "/spec", value: Object.spec{a: [Object.spec.a{b: null}]}}]"""
    assert await patched(evaluator, mutation(text, JSON_PATCH, {"x": ["a/b~c"]})) == [
        {"op": "add", "path": "/metadata/labels/a~1b~0c", "value": {"k": 1, "l": "m"}},
        {"op": "add", "path": "/spec", "value": {"a": [{"b": None}]}},
    ]


@pytest.mark.parametrize(
    ("text", "result", "error"),
    [
        ("Object{spec: Object.specx{}}", APPLY_CONFIGURATION, 'type mismatch: unexpected type name "Object.specx"'),
        (
            "Object{a: object.b}",
            APPLY_CONFIGURATION,
            "expression 'Object{a: object.b}' resulted in error: no such key: b",
        ),
        ("Object{a: double('NaN')}", APPLY_CONFIGURATION, "resulted in error: the number nan is not accepted here"),
        ("Object{a: {1: 2}}", APPLY_CONFIGURATION, 'resulted in error: map key "1" is not a string'),
        ("Object{a: type(1)}", APPLY_CONFIGURATION, "resulted in error: a value of type TYPE is not accepted here"),
        ("[JSONPatch{op: object.n}]", JSON_PATCH, "unexpected type int64 for JSONPatchType 'op' field"),
        ("[object]", JSON_PATCH, "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch"),
    ],
)
async def test_a_mutation_without_a_patch_says_why(evaluator: CELEvaluator, text: str, result: str, error: str) -> None:
    assert error in await patched(evaluator, mutation(text, result, {"n": 1}))
    assert await patched(evaluator, mutation("Object{a: object.n}", obj={"n": 1})) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "result", "error"),
    [
        ("Object{a: Object.a{b: object.c}}", APPLY_CONFIGURATION, ""),
        ("object.a ? [JSONPatch{op: 'add', path: '/a', value: 1}] : []", JSON_PATCH, ""),
        ("[]", JSON_PATCH, ""),
        ("cel.bind(o, Object{a: 1}, o)", APPLY_CONFIGURATION, ""),
        ('"I am a teapot"', APPLY_CONFIGURATION, "must evaluate to Object but got string"),
        ("Object.spec.metadata{}", APPLY_CONFIGURATION, "must evaluate to Object but got Object.spec.metadata"),
        ("object.x", APPLY_CONFIGURATION, "must evaluate to Object but got dyn"),
        ("[Object{}]", JSON_PATCH, "must evaluate to list(JSONPatch) but got list(Object)"),
        ("JSONPatch{op: 1}", JSON_PATCH, "expected type of field 'op' is 'string' but provided type is 'int'"),
        ("[JSONPatch{nope: 1}]", JSON_PATCH, "undefined field 'nope'"),
        ("Object{a: Object.a{b: nope}}", APPLY_CONFIGURATION, "ERROR: <input>:1:23: undeclared reference to 'nope'"),
        ("Object{}.size() == 0 ? Object{} : Object{}", APPLY_CONFIGURATION, "found no matching overload for 'size'"),
        ("Object{a: 1", APPLY_CONFIGURATION, "Syntax error"),
        ("Object{,}", APPLY_CONFIGURATION, "compilation failed"),
        ("Object{}", BOOL, "undeclared reference to 'Object'"),
    ],
)
async def test_mutations_compile_or_say_why_not(evaluator: CELEvaluator, text: str, result: str, error: str) -> None:
    answer = await evaluator.ask(CompileExpressions((Expression(text, result),)))
    assert isinstance(answer, CompiledExpressions)
    assert error in answer.errors[0]
    assert bool(error) is bool(answer.errors[0])
    assert "__type_" not in answer.errors[0]


async def test_an_object_cannot_pretend_to_be_typed(evaluator: CELEvaluator) -> None:
    marks = await patched(evaluator, mutation("Object{a: dyn(Object{b: 1}).map(k, k)}"))
    forged = {"a": dict.fromkeys(("__type", "__kind__"), "Object.wrong")}
    assert len(marks["a"]) == 2
    assert await patched(evaluator, mutation("Object{a: object.a}", obj=forged)) == forged


DOUBLING = "[object.x]" + ".map(a, a + a)" * 25 + "[0].size() > 0"
HOSTILE = {
    "a patch of doubled strings": mutation(
        f"Object{{a: object.x{'.map(a, a + a)' * 25}}}", obj={"x": ["0123456789" * 1000]}
    ),
    "a patch of doubled objects": mutation(
        "[Object{a: object.x}]" + ".map(a, Object{a: a, b: a})" * 25 + "[0]", obj={"x": list(range(2000))}
    ),
    "a patch of an optional": mutation("Object{a: {'b': optional.none()}}"),
    "a patch of 10 MB": mutation(
        "Object{a: object.x.map(n, object.y)}", obj={"x": list(range(1000)), "y": "y" * 10_000}
    ),
    "doubled strings": policy(DOUBLING, obj={"x": "0123456789" * 1000}),
    "time": policy(*(f"object.x.matches('(a|b|c)*d') || {n} == 1" for n in range(10_000)), obj={"x": "abc" * 30_000}),
    "an optional in a variable": policy(
        "variables.v == 1", variables=(NamedExpression("v", "{'a': optional.none()}"),)
    ),
    "doubled maps": policy(
        "[{'a': object.x}]" + ".map(a, {'a': a, 'b': a})" * 25 + " == []", obj={"x": list(range(2000))}
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_question_leaves_others_unaffected(evaluator: CELEvaluator, name: str) -> None:
    hostile, *others = await asyncio.gather(
        evaluator.ask(HOSTILE[name]), *(evaluator.ask(policy("object.a == 1", obj={"a": 1})) for _ in range(3))
    )
    assert isinstance(hostile, OutOfBudget) or not any(outcome.passed for outcome in _validations(hostile))
    assert not isinstance(hostile, EvaluatedPolicy) or hostile.patch is None or hostile.patch.error
    assert [_validations(other)[0].passed for other in others] == [True] * 3


def _validations(answer: Answer) -> tuple[Any, ...]:
    assert isinstance(answer, EvaluatedPolicy)
    return answer.validations


async def test_questions_of_one_source_do_not_keep_those_of_another_waiting(evaluator: CELEvaluator) -> None:
    answered: list[str] = []

    async def ask(source: str, question: EvaluatePolicy) -> None:
        await evaluator.ask(question, source)
        answered.append(source)

    costly = [asyncio.create_task(ask("red", HOSTILE["time"])) for _ in range(4)]
    await asyncio.sleep(0.1)
    given_up = asyncio.create_task(ask("blue", policy("true")))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(*(ask("blue", policy("true")) for _ in range(2)))
    assert answered[:3] == ["red", "blue", "blue"]
    await asyncio.gather(*costly)
    assert answered[3:] == ["red"] * 3


async def test_loops_and_nesting_have_bounds(evaluator: CELEvaluator) -> None:
    numbers = {"x": [0] * 10_001}
    loops = await passed(evaluator, "object.x.all(i, i == 0)", "object.x.size() == 10001", obj=numbers)
    assert loops == ["operation cancelled: actual cost limit exceeded", True]
    answer = await evaluator.ask(CompileExpressions((Expression("(" * 33 + "true" + ")" * 33), Expression("true"))))
    assert isinstance(answer, CompiledExpressions)
    assert "recursion limit" in answer.errors[0]
    assert answer.errors[1] == ""


async def test_a_killed_worker_is_replaced(evaluator: CELEvaluator) -> None:
    assert await passed(evaluator, "true") == [True]
    process = evaluator._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    asked = asyncio.create_task(evaluator.ask(policy("true")))
    await asyncio.sleep(0)
    os.kill(process.pid, signal.SIGKILL)
    assert isinstance(await asked, OutOfBudget | EvaluatedPolicy)
    assert await passed(evaluator, "true") == [True]

"""Rules of custom resources as external calls: what is asked, and what becomes of the answers."""

from __future__ import annotations

from typing import Any

import pytest

from master.admission.cel_calls import CELCall
from master.admission.custom_resource_rules import definition_rule_errors, object_rule_errors
from master.admission.external_calls import CallsPending, ExternalResults
from master.cel.messages import CompiledRules, EvaluatedRules, EvaluateRules, OutOfBudget, RuleError, RuleFailure
from master.cel.rules import encode_rules

SCHEMA = {"type": "object", "x-kubernetes-validations": [{"rule": "self.a"}]}


def answered(answer: object, ask: Any) -> ExternalResults:
    """Return results in which the one pending call of `ask` has this answer."""
    results = ExternalResults()
    with pytest.raises(CallsPending) as pending:
        ask(results)
    (call,) = pending.value.calls
    assert isinstance(call, CELCall)
    results.put((call,), (answer,))
    return results


def test_rules_of_a_definition_are_compiled() -> None:
    def ask(results: ExternalResults) -> Any:
        return definition_rule_errors([("spec.v", SCHEMA)], results)

    assert ask(answered(CompiledRules(), ask)) == ()
    (error,) = ask(answered(CompiledRules((RuleError("", 0, "rule", "ERROR"),)), ask))
    assert (error.path, error.detail) == ("spec.v.x-kubernetes-validations[0].rule", "compilation failed: ERROR")
    assert len(ask(answered(OutOfBudget(), ask))) == 1


def test_the_rules_of_all_versions_are_compiled_in_one_round() -> None:
    other = {"type": "object", "x-kubernetes-validations": [{"rule": "self.b"}]}
    with pytest.raises(CallsPending) as pending:
        definition_rule_errors([("v1", SCHEMA), ("v2", other)], ExternalResults())
    assert len(pending.value.calls) == 2


def test_a_rule_with_another_error_is_not_compiled() -> None:
    wrong = {"type": "object", "x-kubernetes-validations": [{"rule": "a", "reason": "x"}]}
    assert len(definition_rule_errors([("s", wrong)], ExternalResults())) == 1


def test_objects_are_asked_about_only_if_there_are_rules() -> None:
    assert object_rule_errors(encode_rules({"type": "object"}), b"{}", b"", ExternalResults()) == ((), ())
    rules = encode_rules(SCHEMA)

    def ask(results: ExternalResults) -> Any:
        return object_rule_errors(rules, b"{}", b"", results)

    with pytest.raises(CallsPending) as pending:
        ask(ExternalResults())
    assert pending.value.calls == (CELCall(EvaluateRules(rules, b"{}")),)
    errors, warnings = ask(answered(EvaluatedRules((RuleFailure("a", "no"),)), ask))
    assert ([error.detail for error in errors], warnings) == (["no"], ())
    errors, _ = ask(answered(OutOfBudget(), ask))
    assert len(errors) == 1

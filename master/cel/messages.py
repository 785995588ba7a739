"""What the master asks the CEL worker, and what it answers. All are frozen values. Pure.

Each question is about one object, or about one set of expressions, and has its own budget of CPU time. A worker that
exceeds the budget or its memory is ended; the answer is then `OutOfBudget`.
"""

from __future__ import annotations

import msgspec

DYN, BOOL, INT, DOUBLE, STRING, BYTES = "dyn", "bool", "int", "double", "string", "bytes"
TIMESTAMP, DURATION, DATE, LIST, MAP, OBJECT = "timestamp", "duration", "date", "list", "map", "object"

APPLY_CONFIGURATION, JSON_PATCH = "Object", "list(JSONPatch)"
"""Types of the results of mutations. Only their expressions may use the types Object and JSONPatch."""

OUT_OF_BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"
"""Kubernetes' words for an object whose rules cost too much."""


class CELType(msgspec.Struct, frozen=True):
    """The type of a value in CEL, as a schema declares it.

    `kind` is one of the constants above. `items` is the type of the elements of a list, and of the values of a map.
    `fields` are the properties of an object: name in JSON and type.
    """

    kind: str
    items: CELType | None = None
    fields: tuple[tuple[str, CELType], ...] = ()


ANYTHING = CELType(DYN)


# --- rules of custom resources ----------------------------------------------------------------------------------------


class Rule(msgspec.Struct, frozen=True):
    """One of `x-kubernetes-validations`. `uses_old` is whether it is a transition rule."""

    rule: str
    message: str = ""
    message_expression: str = ""
    reason: str = ""
    field_path: str = ""
    optional_old_self: bool = False
    uses_old: bool = False


class RuleNode(msgspec.Struct, frozen=True):
    """The rules of a part of a schema, and of the parts in it. Parts without rules are left out.

    `path` is that of the part in the schema, such as `.properties[spec]`. `type` is that of `self`. `properties` are
    (name, part). `items` is the part of list elements, `values` that of the values of a map. `map_keys` are the keys of
    a list of type map; a list that has none is compared as a whole. `nullable` values that are null have no rules.
    """

    path: str
    type: CELType = ANYTHING
    rules: tuple[Rule, ...] = ()
    properties: tuple[tuple[str, RuleNode], ...] = ()
    items: RuleNode | None = None
    values: RuleNode | None = None
    map_keys: tuple[str, ...] = ()


class CompileRules(msgspec.Struct, frozen=True, tag=True):
    """The question whether the rules of a schema compile. `rules` is a RuleNode as MessagePack."""

    rules: bytes


class RuleError(msgspec.Struct, frozen=True):
    """An expression of a rule that does not compile. `path` is that of the part, `field` that of the expression."""

    path: str
    index: int
    field: str
    error: str


class CompiledRules(msgspec.Struct, frozen=True, tag=True):
    """The answer to CompileRules."""

    errors: tuple[RuleError, ...] = ()


class EvaluateRules(msgspec.Struct, frozen=True, tag=True):
    """The question which rules of a schema an object violates.

    `rules` is a RuleNode as MessagePack. `obj` and `old` are JSON; `old` is empty for a create.
    """

    rules: bytes
    obj: bytes
    old: bytes = b""


class RuleFailure(msgspec.Struct, frozen=True):
    """A rule that an object violates.

    `path` is that of the value, or of the field that the rule names. `value` is a scalar as JSON, empty for others.
    `ratcheted` is whether the value is unchanged, so that the failure is a warning.
    """

    path: str
    message: str
    reason: str = ""
    value: str = ""
    ratcheted: bool = False


class EvaluatedRules(msgspec.Struct, frozen=True, tag=True):
    """The answer to EvaluateRules."""

    failures: tuple[RuleFailure, ...] = ()


# --- policies and match conditions ------------------------------------------------------------------------------------


class Expression(msgspec.Struct, frozen=True):
    """An expression of a policy to compile. `result` is the type that it must have.

    `variables` are the names of the variables of the policy that it may use.
    """

    text: str
    result: str = BOOL
    variables: tuple[str, ...] = ()
    has_params: bool = False
    has_authorizer: bool = True


class CompileExpressions(msgspec.Struct, frozen=True, tag=True):
    """The question whether expressions of policies and webhooks compile."""

    expressions: tuple[Expression, ...]


class CompiledExpressions(msgspec.Struct, frozen=True, tag=True):
    """The answer to CompileExpressions: the error of each, empty if it compiles."""

    errors: tuple[str, ...] = ()


class AuthorizationCheck(msgspec.Struct, frozen=True):
    """What an expression asks the authorizer. `path` is set for a check that is about no resource.

    `service_account` is (namespace, name) of another user than that of the request.
    """

    verb: str
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    service_account: tuple[str, str] | None = None


class CheckAnswer(msgspec.Struct, frozen=True):
    """The decision of the authorizer about a check."""

    check: AuthorizationCheck
    allowed: bool
    reason: str = ""


class NamedExpression(msgspec.Struct, frozen=True):
    """A match condition, a variable, or the value of an audit annotation."""

    name: str
    text: str


class Validation(msgspec.Struct, frozen=True):
    """An expression that must be true, and the expression of the message if it is not."""

    text: str
    message_text: str = ""


class Mutation(msgspec.Struct, frozen=True):
    """An expression that returns a change of the object. `result` is APPLY_CONFIGURATION or JSON_PATCH."""

    text: str
    result: str


class EvaluatePolicy(msgspec.Struct, frozen=True, tag=True):
    """The question what a policy, or the match conditions of a webhook, say about a request.

    The documents are JSON: `request` is an AdmissionRequest without objects; the others may be null. `answers` are the
    decisions of the authorizer that the expressions asked for before. `has_params` is whether `params` exists at all.
    """

    conditions: tuple[NamedExpression, ...] = ()
    variables: tuple[NamedExpression, ...] = ()
    validations: tuple[Validation, ...] = ()
    annotations: tuple[NamedExpression, ...] = ()
    mutation: Mutation | None = None
    obj: bytes = b"null"
    old: bytes = b"null"
    request: bytes = b"null"
    namespace: bytes = b"null"
    params: bytes = b"null"
    has_params: bool = False
    answers: tuple[CheckAnswer, ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """The result of a validation or of an annotation.

    `error` says why there is none. `passed` is the value of a validation. `text` is the value of the message expression
    or of the annotation; None if it is null or was not evaluated.
    """

    passed: bool = False
    error: str = ""
    text: str | None = None


class Patch(msgspec.Struct, frozen=True):
    """The result of a mutation: `error` says why there is none. `document` is JSON, of an object or of operations."""

    error: str = ""
    document: bytes = b""


class EvaluatedPolicy(msgspec.Struct, frozen=True, tag=True):
    """The answer to EvaluatePolicy.

    `condition_errors` are (condition, error); with `matches` False the rest was not evaluated. `checks` are decisions
    of the authorizer without which the answer is not complete.
    """

    matches: bool = True
    condition_errors: tuple[tuple[str, str], ...] = ()
    validations: tuple[Outcome, ...] = ()
    annotations: tuple[Outcome, ...] = ()
    patch: Patch | None = None
    checks: tuple[AuthorizationCheck, ...] = ()


# --- failures ---------------------------------------------------------------------------------------------------------


class OutOfBudget(msgspec.Struct, frozen=True, tag=True):
    """The answer to a question that exceeded its time or memory, or whose worker ended for another reason."""

    reason: str = OUT_OF_BUDGET


Question = CompileRules | EvaluateRules | CompileExpressions | EvaluatePolicy
Answer = CompiledRules | EvaluatedRules | CompiledExpressions | EvaluatedPolicy | OutOfBudget


class Reply(msgspec.Struct, frozen=True):
    """An answer of the worker. `retires` is whether it needs much memory, so that another one should replace it."""

    answer: Answer
    retires: bool = False


CPU_SECONDS = 1.0
"""CPU time of a question: 10,000,000 units of Kubernetes' cost."""

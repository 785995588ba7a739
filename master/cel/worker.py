"""The program that compiles and evaluates expressions. It reads questions from its input and writes the answers.

The kernel ends it when a question takes more than its CPU time, or when its memory is exhausted. It has no state that
an answer depends on, so another process can take its place at any time. No other module imports this one.
"""

from __future__ import annotations

import resource
import secrets
import signal
import struct
import sys
from typing import Any

import msgspec
from cel_expr_python import cel

from master.cel import messages
from master.cel.environment import (
    CompilationError,
    DeclaredTypes,
    Environment,
    EvaluationError,
    compile_in,
    from_cel,
    to_cel,
    to_document,
)
from master.cel.library import MARK
from master.cel.messages import (
    Answer,
    CompiledExpressions,
    CompiledRules,
    CompileExpressions,
    CompileRules,
    EvaluatedPolicy,
    EvaluatedRules,
    EvaluatePolicy,
    EvaluateRules,
    Outcome,
    Patch,
    Question,
    Reply,
    Rule,
    RuleError,
    RuleFailure,
    RuleNode,
)
from master.cel.patch_types import PatchTypeError, configuration_of, operations_of, patch_expression, type_name
from master.cel.rules import Evaluation, applies, evaluations, failed_message, failure

MAX_MEMORY_BYTES = 384 << 20
"""Memory that questions may take, besides what the program has after its start."""

MAX_KEPT_BYTES = 160 << 20
"""Resident memory after a question above which another process should take over."""

MAX_FAILURES = 101
"""Failures of one object that are reported: one more than a response lists."""

OLD = "__old"
"""The variable from which an expression gets the optional `oldSelf`. Python cannot pass an optional itself."""

POLICY_VARIABLES = (
    "object",
    "oldObject",
    "request",
    "params",
    "namespaceObject",
    "variables",
    "authorizer",
)


def _with_optional_old(text: str) -> str:
    """Return an expression in which `oldSelf` is an optional. The line break ends a comment of the rule."""
    return f"[{OLD}.?value].map(oldSelf, ({text}\n))[0]"


class Worker:
    """Answers questions."""

    def __init__(self) -> None:
        self._rules = Environment(("self", "oldSelf", OLD))
        self._policies = Environment(POLICY_VARIABLES)
        self._nodes: dict[bytes, RuleNode] = {}
        self._mark = f"__type_{secrets.token_hex(8)}"
        """The key of the names of types. What an expression gets from objects cannot have it."""

    def answer(self, question: Question) -> Answer:
        """Return the answer to a question."""
        match question:
            case CompileRules():
                return CompiledRules(tuple(self._rule_errors(self._node(question.rules))))
            case EvaluateRules():
                return EvaluatedRules(tuple(self._failures(question)))
            case CompileExpressions():
                return CompiledExpressions(tuple(self._expression_error(each) for each in question.expressions))
            case EvaluatePolicy():
                return self._evaluate_policy(question)

    def _node(self, encoded: bytes) -> RuleNode:
        node = self._nodes.get(encoded)
        if node is None:
            if len(self._nodes) >= 64:
                self._nodes.clear()
            node = self._nodes[encoded] = msgspec.msgpack.decode(encoded, type=RuleNode)
        return node

    # --- rules of custom resources ------------------------------------------------------------------------------------

    def _rule_errors(self, root: RuleNode) -> list[RuleError]:
        errors: list[RuleError] = []
        remaining = [root]
        while remaining:
            node = remaining.pop()
            remaining += [part for _, part in node.properties]
            remaining += [part for part in (node.items, node.values) if part is not None]
            if not node.rules:
                continue
            types = DeclaredTypes()
            own = types.declare(node.type)
            env = self._rules.typed(types, {"self": own, "oldSelf": own, OLD: lambda: cel.Type.DYN})
            without_old = self._rules.typed(types, {"self": own})
            for index, rule in enumerate(node.rules):
                for name, text, expected in (
                    ("rule", rule.rule, cel.Type.BOOL),
                    ("messageExpression", rule.message_expression, cel.Type.STRING),
                ):
                    if not text:
                        continue
                    checked = env if rule.uses_old else without_old
                    if problem := self._rule_problem(checked, rule, text, expected):
                        errors.append(RuleError(node.path, index, name, problem))
        return errors

    def _rule_problem(self, env: Any, rule: Rule, text: str, expected: Any) -> str:
        try:
            if rule.optional_old_self:
                # The text alone must be an expression: it is put into another one for the optional.
                self._rules.compile(text)
                compile_in(env, _with_optional_old(text))
                return ""
            result = compile_in(env, text).return_type()
            self._rules.compile(text)
        except CompilationError as error:
            return str(error)
        if result not in (expected, cel.Type.DYN):
            kind = "bool" if expected == cel.Type.BOOL else "string"
            return f"cel expression must evaluate to a {kind}"
        return ""

    def _failures(self, question: EvaluateRules) -> list[RuleFailure]:
        obj = msgspec.json.decode(question.obj)
        old = msgspec.json.decode(question.old) if question.old else None
        failures: list[RuleFailure] = []
        for evaluation in evaluations(self._node(question.rules), obj, old):
            failures += self._failures_of(evaluation)
            if len(failures) >= MAX_FAILURES:
                break
        return failures

    def _failures_of(self, evaluation: Evaluation) -> list[RuleFailure]:
        declared = evaluation.node.type
        values: dict[str, Any] = {"self": to_cel(evaluation.value, declared), OLD: {}}
        if evaluation.has_old:
            old = to_cel(evaluation.old, declared)
            values |= {"oldSelf": old, OLD: {"value": old}}
        activation, failures = self._rules.activation(values), []
        for rule in evaluation.node.rules:
            if not applies(rule, evaluation):
                continue
            text = _with_optional_old(rule.rule) if rule.optional_old_self else rule.rule
            try:
                if self._rules.evaluate(text, activation).value() is True:
                    continue
                message = failed_message(rule, self._message(rule, activation))
            except EvaluationError as error:
                shown = failed_message(rule)
                message = (
                    f"call cost exceeds limit for rule: {shown}"
                    if error.is_too_expensive
                    else f"{error} evaluating rule: {shown}"
                )
            failures.append(failure(rule, evaluation, message))
        return failures

    def _message(self, rule: Rule, activation: Any) -> str:
        if not rule.message_expression:
            return ""
        text = rule.message_expression
        try:
            value = self._rules.evaluate(_with_optional_old(text) if rule.optional_old_self else text, activation)
        except EvaluationError:
            return ""
        return str(value.value()) if value.type() == cel.Type.STRING else ""

    # --- policies -----------------------------------------------------------------------------------------------------

    def _expression_error(self, expression: messages.Expression) -> str:
        variables = {"object", "oldObject", "request", "namespaceObject", "variables"}
        types: dict[str, Any] = {}
        names = DeclaredTypes()
        fields = tuple((name, messages.ANYTHING) for name in expression.variables)
        types["variables"] = names.declare(messages.CELType(messages.OBJECT, fields=fields))
        if not expression.variables:
            variables.discard("variables")
        if expression.has_params:
            variables.add("params")
        if expression.has_authorizer:
            variables.add("authorizer")
        patch = None
        if expression.result in (messages.APPLY_CONFIGURATION, messages.JSON_PATCH):
            patch = patch_expression(expression.text)
            names.declare_patch_types(patch.types, patch.fields)
        env = self._policies.typed(names, {name: types.get(name, lambda: cel.Type.DYN) for name in variables})
        try:
            result = compile_in(env, expression.text if patch is None else patch.checked_text).return_type()
            self._policies.compile(expression.text if patch is None else patch.evaluated_text(self._mark))
        except CompilationError as error:
            message = str(error) if patch is None else patch.as_written(str(error)).replace(self._mark, "")
            return f"compilation failed: {message}"
        if patch is not None:
            # An empty list has elements of any type. Each is looked at when the patch is made.
            given = type_name(patch.as_written(result.name()))
            is_empty = expression.result == messages.JSON_PATCH and given == "list(dyn)"
            return (
                ""
                if given == expression.result or is_empty
                else f"must evaluate to {expression.result} but got {given}"
            )
        accepted = {messages.BOOL: (cel.Type.BOOL,), messages.STRING: (cel.Type.STRING,)}.get(expression.result)
        if accepted is not None and result not in (*accepted, cel.Type.DYN):
            return f"must evaluate to {expression.result}"
        return ""

    def _evaluate_policy(self, question: EvaluatePolicy) -> EvaluatedPolicy:
        checks = self._policies.checks
        checks.answers, checks.missing = {answer.check: answer for answer in question.answers}, {}
        context = _PolicyContext(self._policies, question)
        errors: list[tuple[str, str]] = []
        matches = True
        for condition in question.conditions:
            try:
                matches = context.evaluate(condition.text).value() is True and matches
            except EvaluationError as error:
                errors.append((condition.name, str(error)))
        validations: list[Outcome] = []
        annotations: list[Outcome] = []
        patch = None
        if matches and not errors:
            validations = [self._validation(context, each) for each in question.validations]
            annotations = [self._annotation(context, each.text) for each in question.annotations]
            patch = None if question.mutation is None else self._patch(context, question.mutation)
        return EvaluatedPolicy(
            matches, tuple(errors), tuple(validations), tuple(annotations), patch, tuple(checks.missing)
        )

    def _validation(self, context: _PolicyContext, validation: messages.Validation) -> Outcome:
        try:
            if context.evaluate(validation.text).value() is True:
                return Outcome(passed=True)
        except EvaluationError as error:
            return Outcome(error=str(error))
        text = None
        if validation.message_text:
            try:
                value = context.evaluate(validation.message_text)
                text = str(value.value()) if value.type() == cel.Type.STRING else None
            except EvaluationError:
                text = None
        return Outcome(text=text)

    def _patch(self, context: _PolicyContext, mutation: messages.Mutation) -> Patch:
        try:
            result = to_document(context.evaluate(patch_expression(mutation.text).evaluated_text(self._mark)))
        except EvaluationError as error:
            return Patch(error=f"expression '{mutation.text.strip()}' resulted in error: {error}")
        of = configuration_of if mutation.result == messages.APPLY_CONFIGURATION else operations_of
        try:
            return Patch(document=msgspec.json.encode(of(result, self._mark)))
        except PatchTypeError as error:
            return Patch(error=str(error))

    def _annotation(self, context: _PolicyContext, text: str) -> Outcome:
        try:
            value = context.evaluate(text)
        except EvaluationError as error:
            return Outcome(error=str(error))
        if value.type() == cel.Type.NULL:
            return Outcome()
        if value.type() != cel.Type.STRING:
            return Outcome(error="valueExpression must evaluate to a string or null")
        return Outcome(text=str(value.value()))


class _PolicyContext:
    """The variables of one request. Those of the policy are evaluated when the first expression names them."""

    def __init__(self, environment: Environment, question: EvaluatePolicy) -> None:
        self._environment = environment
        decode = msgspec.json.decode
        request = decode(question.request)
        authorizer = {MARK: "authorizer"}
        requested = request.get("resource") or {} if isinstance(request, dict) else {}
        self._values: dict[str, Any] = {
            "object": decode(question.obj),
            "oldObject": decode(question.old),
            "request": request,
            "namespaceObject": decode(question.namespace),
            "authorizer": authorizer
            | {
                "requestResource": authorizer
                | {
                    "group": requested.get("group", ""),
                    "resource": requested.get("resource", ""),
                    "subresource": request.get("subResource", "") if isinstance(request, dict) else "",
                    "namespace": request.get("namespace", "") if isinstance(request, dict) else "",
                    "name": request.get("name", "") if isinstance(request, dict) else "",
                }
            },
        }
        if question.has_params:
            self._values["params"] = decode(question.params)
        self._expressions = {each.name: each.text for each in question.variables}
        self._variables: dict[str, Any] = {}
        self._failed: dict[str, str] = {}
        self._evaluated: set[str] = set()
        self._activation: Any = None

    def evaluate(self, text: str) -> Any:
        """Return the value of an expression. Raises EvaluationError."""
        self._evaluate_variables(text)
        if self._activation is None:
            self._activation = self._environment.activation({**self._values, "variables": self._variables})
        try:
            return self._environment.evaluate(text, self._activation)
        except EvaluationError as error:
            for name, reason in self._failed.items():
                if str(error) == f"no such key: {name}":
                    raise EvaluationError(f'composited variable "{name}" fails to evaluate: {reason}') from None
            raise

    def _evaluate_variables(self, text: str) -> None:
        # The order is that of the policy: a variable may name only those before it.
        for name, expression in self._expressions.items():
            if name in self._evaluated or f"variables.{name}" not in text:
                continue
            self._evaluated.add(name)
            try:
                self._variables[name] = from_cel(self.evaluate(expression))
            except EvaluationError as error:
                self._failed[name] = str(error)
            self._activation = None


# --- the process ------------------------------------------------------------------------------------------------------

_LENGTH = struct.Struct(">I")


def _limit_process() -> None:
    """Limit memory and CPU time, and forbid files. The kernel enforces all of it."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_MEMORY_BYTES, used + MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    # The master ends the worker. An interrupt at the terminal is for the master.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def main() -> None:
    """Entry point of the program: answer questions until the input ends."""
    source, sink, worker = sys.stdin.buffer, sys.stdout.buffer, Worker()
    decoder = msgspec.msgpack.Decoder(Question)
    _limit_process()
    while header := source.read(_LENGTH.size):
        signal.setitimer(signal.ITIMER_PROF, messages.CPU_SECONDS)
        answer = worker.answer(decoder.decode(source.read(_LENGTH.unpack(header)[0])))
        signal.setitimer(signal.ITIMER_PROF, 0)
        encoded = msgspec.msgpack.encode(Reply(answer, _resident_bytes() > MAX_KEPT_BYTES))
        sink.write(_LENGTH.pack(len(encoded)) + encoded)
        sink.flush()


if __name__ == "__main__":
    main()

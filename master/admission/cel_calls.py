"""Questions to the CEL worker as external calls, and match conditions. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from api.core.node import Namespace
from master.admission.external_calls import ExternalCall, ExternalResults
from master.admission.plugin import AdmissionRequest, Operation
from master.auth.attributes import (
    AUTHENTICATED,
    SERVICE_ACCOUNT_USER_PREFIX,
    Attributes,
    Decision,
    PathAttributes,
    User,
    service_account_groups,
)
from master.cel.messages import (
    AuthorizationCheck,
    CheckAnswer,
    CompiledExpressions,
    CompileExpressions,
    EvaluatedPolicy,
    EvaluatePolicy,
    Expression,
    NamedExpression,
    OutOfBudget,
    Question,
)
from master.resources.match_resources import MatchCondition
from master.resources.resource import AnyResource, converted

MAX_AUTHORIZER_ROUNDS = 8
"""Times that an expression may ask the authorizer for more than before."""


CONTROLLER = User("system:kube-controller-manager", frozenset((AUTHENTICATED,)))
"""The user of writes of the master's own controllers, as expressions see it."""


Decide = Callable[[User, Attributes | PathAttributes], Decision]
"""The decision of the authorizer about a request of a user."""


@dataclass(frozen=True, slots=True)
class CELCall(ExternalCall):
    """A question to the CEL worker. The questions of a `source` wait for one another."""

    question: Question
    source: str = field(default="", compare=False)


def source_of(request: AdmissionRequest, obj: Any) -> str:
    """Return whose questions those about a write are: those of its project, or of the user without one."""
    named = obj if obj is not None else request.old
    if request.resource.namespaced:
        return f"project {named.metadata.namespace}"
    return f"user {CONTROLLER.name if request.requester is None else request.requester.user.name}"


def call_with(ask: Callable[[Question, str], Awaitable[Any]]) -> Callable[[tuple[Any, ...]], Awaitable[Sequence[Any]]]:
    """Return the driver of external calls that asks the CEL worker."""

    async def call(calls: tuple[CELCall, ...]) -> Sequence[Any]:
        return [await ask(each.question, each.source) for each in calls]

    return call


def evaluate_policies(
    questions: Sequence[EvaluatePolicy], request: AdmissionRequest, obj: Any, decide: Decide | None
) -> tuple[EvaluatedPolicy | OutOfBudget, ...]:
    """Return the answers to questions about a write, after the authorizer has answered what the expressions ask it.

    Raises CallsPending until all answers are there. The request must have external results.
    """
    assert request.external is not None
    asked, source = list(questions), source_of(request, obj)
    for _ in range(MAX_AUTHORIZER_ROUNDS):
        answers: tuple[EvaluatedPolicy | OutOfBudget, ...] = _ask(asked, request.external, source)
        if not any(isinstance(answer, EvaluatedPolicy) and answer.checks for answer in answers):
            return answers
        for index, answer in enumerate(answers):
            if isinstance(answer, EvaluatedPolicy) and answer.checks:
                given = tuple(_decide(check, request, decide) for check in answer.checks)
                asked[index] = msgspec.structs.replace(asked[index], answers=asked[index].answers + given)
    return tuple(
        OutOfBudget("the expression asks the authorizer for too much")
        if isinstance(answer, EvaluatedPolicy) and answer.checks
        else answer
        for answer in answers
    )


def _ask(questions: Sequence[Question], external: ExternalResults, source: str) -> tuple[Any, ...]:
    return external.results_of([CELCall(question, source) for question in questions])


def compile_errors(expressions: Sequence[Expression], request: AdmissionRequest, obj: Any) -> tuple[str, ...]:
    """Return the error of each expression of an object, empty if it compiles. Raises CallsPending."""
    assert request.external is not None
    (answer,) = _ask((CompileExpressions(tuple(expressions)),), request.external, source_of(request, obj))
    if isinstance(answer, CompiledExpressions):
        return answer.errors
    return tuple(f"compilation failed: {answer.reason}" for _ in expressions)


def _decide(check: AuthorizationCheck, request: AdmissionRequest, decide: Decide | None) -> CheckAnswer:
    """Return the decision of the authorizer. The master's own controllers may do everything."""
    if check.service_account is not None:
        namespace, name = check.service_account
        groups = frozenset((AUTHENTICATED, *service_account_groups(namespace)))
        user = User(f"{SERVICE_ACCOUNT_USER_PREFIX}{namespace}:{name}", groups)
    elif request.requester is None:
        return CheckAnswer(check, allowed=True)
    else:
        user = request.requester.user
    if decide is None:
        return CheckAnswer(check, allowed=False)
    asked: Attributes | PathAttributes = PathAttributes(check.verb, check.path)
    if not check.path:
        asked = Attributes(check.verb, check.group, check.resource, check.subresource, check.namespace, check.name)
    decision = decide(user, asked)
    return CheckAnswer(check, decision.allowed, decision.reason)


# --- match conditions -------------------------------------------------------------------------------------------------


def named(conditions: Sequence[MatchCondition]) -> tuple[NamedExpression, ...]:
    """Return match conditions as the worker takes them."""
    return tuple(NamedExpression(condition.name, condition.expression) for condition in conditions)


def condition_expressions(conditions: Sequence[MatchCondition]) -> tuple[Expression, ...]:
    """Return the expressions of the match conditions of a webhook, to be compiled."""
    return tuple(Expression(condition.expression) for condition in conditions)


# --- the variables of a request ---------------------------------------------------------------------------------------


def as_json(obj: Any) -> bytes:
    """Return an object as JSON, `null` for None."""
    return msgspec.json.encode(obj)


def request_variables(
    request: AdmissionRequest, obj: Any, *, resource: AnyResource, namespace: Namespace | None
) -> dict[str, bytes]:
    """Return the documents of a question about a request. `resource` is the one that a rule names."""

    def shown(value: Any) -> bytes:
        if value is None:
            return b"null"
        return as_json(converted(value, request.resource, resource))

    is_delete = request.operation is Operation.DELETE
    if body_kind_of(request) is None:
        new, old = shown(None if is_delete else obj), shown(obj if is_delete else request.old)
    else:  # The object of a subresource such as scale is the body of the request.
        new, old = msgspec.json.encode(request.body), b"null"
    return {
        "obj": new,
        "old": old,
        "request": as_json(request_document(request, obj, resource)),
        "namespace": b"null" if namespace is None else msgspec.json.encode(_without_managed_fields(namespace)),
    }


def body_kind_of(request: AdmissionRequest) -> tuple[str, str, str] | None:
    """Return (group, version, kind) of the body of a subresource that is no part of the object; None for others."""
    part = request.resource.subresource(request.subresource) if request.subresource else None
    return None if part is None else part.body_kind


def _without_managed_fields(namespace: Namespace) -> Any:
    document = msgspec.to_builtins(namespace)
    document.get("metadata", {}).pop("managedFields", None)
    return document


def request_document(request: AdmissionRequest, obj: Any, resource: AnyResource) -> Mapping[str, Any]:
    """Return the variable `request`: an AdmissionRequest without objects."""
    user = CONTROLLER if request.requester is None else request.requester.user
    metadata = obj.metadata
    is_namespace = request.resource.is_stored_as(Namespace)
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    request_kind = {
        "group": request.resource.group,
        "version": request.resource.version,
        "kind": request.resource.kind,
    }
    if (body_kind := body_kind_of(request)) is not None:
        kind = request_kind = dict(zip(("group", "version", "kind"), body_kind, strict=True))
    # As in a review, empty ones are missing, so that `has` finds out.
    optional = {
        "subResource": request.subresource,
        "requestSubResource": request.subresource,
        "name": metadata.name,
        "namespace": metadata.name if is_namespace else metadata.namespace,
    }
    return {
        "kind": kind,
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
        **{name: text for name, text in optional.items() if text},
        "requestKind": request_kind,
        "requestResource": {
            "group": request.resource.group,
            "version": request.resource.version,
            "resource": request.resource.plural,
        },
        "operation": str(request.operation),
        "userInfo": {
            "username": user.name,
            "uid": user.uid,
            "groups": sorted(user.groups),
            "extra": {key: list(values) for key, values in user.extra},
        },
        "dryRun": request.is_dry_run,
        "options": request.options or {},
    }

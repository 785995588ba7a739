"""ValidatingAdmissionPolicy: rejects writes, or warns of them, by the expressions of bound policies. Pure.

The CEL worker evaluates the expressions; each binding with each of its parameters is one question with a budget of its
own. Policies are never applied to the kinds by which one repairs them. What nodes and controllers do on their own is
exempt from rules with `*`, so that no policy keeps nodes from registering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from api.meta.schema import FieldError
from api.meta.selectors import compile_selector
from api.meta.types import Object, StatusCause
from master import errors
from master.admission.cel_calls import (
    Decide,
    as_json,
    compile_errors,
    evaluate_policies,
    named,
    request_variables,
)
from master.admission.matching import (
    MatchAttributes,
    applicable_rules,
    is_exempt,
    match_attributes,
    match_resources,
    matched_resource,
    namespace_of,
)
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.cel.messages import (
    DYN,
    STRING,
    EvaluatedPolicy,
    EvaluatePolicy,
    Expression,
    NamedExpression,
    Outcome,
    OutOfBudget,
    Validation,
)
from master.resources.admission_policies import (
    ALLOW,
    AUDIT,
    DENY,
    REASON_CODES,
    WARN,
    ParamKind,
    ParamRef,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicySpec,
    expressions_of,
)
from master.resources.match_resources import IGNORE, MatchResources
from master.resources.resource import AnyResource
from master.resources.scheme import group_resource
from master.storage.interface import Key, Transaction

MAX_PARAMS = 64
"""Parameters of one binding. Each is one evaluation of the policy. Kubernetes has no limit."""

FAILURE_ANNOTATION = "validation.policy.admission.k8s.io/validation_failure"


class NotConfigured(Exception):
    """A binding that cannot be evaluated, such as one without parameters."""


P = TypeVar("P")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class BoundPolicy(Generic[P, B]):
    """A binding with its policy, as a request matches it. `resource` is the one that a rule of the policy names."""

    policy: P
    binding: B
    resource: AnyResource


Bound = BoundPolicy[ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding]


@dataclass(frozen=True, slots=True)
class PolicyFailure:
    """A validation that is not true. `index` is that of the validation; None if there is no single one."""

    bound: Bound
    message: str
    reason: str = ""
    index: int | None = None


class ValidatingAdmissionPolicyPlugin(AdmissionPlugin):
    """Evaluates the policies that are bound to a write. `decide` answers what expressions ask the authorizer."""

    sees_actions = True

    def __init__(self, decide: Decide | None) -> None:
        self._decide = decide

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        if request.external is None:
            return
        if isinstance(obj, ValidatingAdmissionPolicy):
            check_expressions(request, obj, policy_expressions)
        if is_exempt(request.resource):
            return
        bindings: list[ValidatingAdmissionPolicyBinding] = objects.list(
            group_resource(ValidatingAdmissionPolicyBinding)
        )
        if not bindings:
            return
        attributes = match_attributes(request, obj, objects)
        bound = tuple(bound_policies(ValidatingAdmissionPolicy, bindings, request, attributes, objects))
        if bound:
            self._evaluate(bound, request, obj, objects)

    def _evaluate(self, bound: Sequence[Bound], request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        asked: list[Bound] = []
        questions: list[EvaluatePolicy] = []
        failures: list[PolicyFailure] = []
        for each in bound:
            try:
                made = list(_questions(each, request, obj, objects))
            except NotConfigured as error:
                if each.policy.spec.failure_policy != IGNORE:
                    failures.append(PolicyFailure(each, f"failed to configure binding: {error}"))
                continue
            questions += made
            asked += [each] * len(made)
        answers = evaluate_policies(questions, request, obj, self._decide)
        for each, answer in zip(asked, answers, strict=True):
            failures += _failures(each, answer)
            _annotate(each.policy, answer, request)
        _act(failures, request, obj)


# --- which policies ---------------------------------------------------------------------------------------------------


def bound_policies(
    of: type[Object],
    bindings: Iterable[Any],
    request: AdmissionRequest,
    attributes: MatchAttributes,
    objects: Transaction,
) -> Iterator[BoundPolicy[Any, Any]]:
    """Yield the bindings that match a request, in the order of their names. One without a policy has no effect.

    `of` is the type of the policies: validating or mutating ones.
    """
    policies = group_resource(of)
    for binding in sorted(bindings, key=lambda each: each.metadata.name):
        policy = objects.get(Key(policies, "", binding.spec.policy_name))
        if policy is None or policy.spec.match_constraints is None:
            continue
        constraints = policy.spec.match_constraints
        rules = applicable_rules(constraints.resource_rules, request)
        if not rules:
            continue
        constraints = msgspec.structs.replace(constraints, resource_rules=rules)
        matched = match_resources(constraints, attributes)
        if matched is None or match_resources(binding.spec.match_resources or MatchResources(), attributes) is None:
            continue
        yield BoundPolicy(policy, binding, matched_resource(request, matched))


# --- questions --------------------------------------------------------------------------------------------------------


def _questions(bound: Bound, request: AdmissionRequest, obj: Any, objects: Transaction) -> Iterator[EvaluatePolicy]:
    """Yield a question for each parameter of a binding. Raises NotConfigured."""
    spec = bound.policy.spec
    question = EvaluatePolicy(
        conditions=named(spec.match_conditions),
        variables=tuple(NamedExpression(variable.name, variable.expression) for variable in spec.variables),
        validations=tuple(Validation(each.expression, each.message_expression) for each in spec.validations),
        annotations=tuple(NamedExpression(each.key, each.value_expression) for each in spec.audit_annotations),
        has_params=spec.param_kind is not None,
        **request_variables(request, obj, resource=bound.resource, namespace=namespace_of(request, obj, objects)),  # type: ignore[arg-type]
    )
    for params in params_of(spec.param_kind, bound.binding.spec.param_ref, request, obj, objects):
        yield question if params is None else msgspec.structs.replace(question, params=as_json(params))


def params_of(
    kind: ParamKind | None, ref: ParamRef | None, request: AdmissionRequest, obj: Any, objects: Transaction
) -> Sequence[Any]:
    """Return the parameters of a binding; one that is None, if it has none. Raises NotConfigured."""
    if kind is None or ref is None:
        return (None,)
    resource = next(
        (each for each in request.scheme.served if (each.type.API_VERSION, each.kind) == (kind.api_version, kind.kind)),
        None,
    )
    if resource is None:
        raise NotConfigured(f"failed to find resource referenced by paramKind: '{kind.api_version}, Kind={kind.kind}'")
    namespace = ""
    if resource.namespaced:
        namespace = ref.namespace or (obj.metadata.namespace if request.resource.namespaced else "")
        if not namespace:
            raise NotConfigured(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
            )
    elif ref.namespace:
        raise NotConfigured("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
    found: list[Any]
    if ref.name:
        stored = objects.get(Key(resource.stored_group_resource, namespace, ref.name))
        found = [] if stored is None else [stored]
    else:
        assert ref.selector is not None
        selector = compile_selector(ref.selector)
        candidates = objects.list(resource.stored_group_resource, namespace)
        found = [each for each in candidates if selector.matches(each.metadata.labels)]
    if len(found) > MAX_PARAMS:
        raise NotConfigured(f"the selector of the parameters selects {len(found)} objects; {MAX_PARAMS} are accepted")
    if not found and ref.parameter_not_found_action != ALLOW:
        raise NotConfigured("no params found for policy binding with `Deny` parameterNotFoundAction")
    return [resource.from_stored(each) for each in found]


# --- answers ----------------------------------------------------------------------------------------------------------


def _failures(bound: Bound, answer: EvaluatedPolicy | OutOfBudget) -> Iterator[PolicyFailure]:
    """Yield the failures of a policy. An expression without a value is one, unless the failure policy is Ignore."""
    spec = bound.policy.spec
    fails_closed = spec.failure_policy != IGNORE
    if isinstance(answer, OutOfBudget):
        if fails_closed:
            yield PolicyFailure(bound, answer.reason)
        return
    if not answer.matches:
        return
    if answer.condition_errors:
        if fails_closed:
            problems = "; ".join(f"matchCondition {name!r}: {error}" for name, error in answer.condition_errors)
            yield PolicyFailure(bound, f"failed to evaluate match conditions: {problems}")
        return
    for index, (validation, outcome) in enumerate(zip(spec.validations, answer.validations, strict=True)):
        if outcome.passed:
            continue
        if not outcome.error:
            yield PolicyFailure(bound, _message(validation, outcome), validation.reason or "", index)
        elif fails_closed:
            text = validation.expression.strip()
            yield PolicyFailure(bound, f"expression '{text}' resulted in error: {outcome.error}", "", index)


def _message(validation: Any, outcome: Outcome) -> str:
    text = (outcome.text or "").strip()
    if text and "\n" not in text and len(text.encode()) <= 5120:
        return text
    return validation.message.strip() or f"failed expression: {validation.expression.strip()}"


def _act(failures: Sequence[PolicyFailure], request: AdmissionRequest, obj: Any) -> None:
    """Warn, annotate, and deny as the bindings say. The first denial is the error."""
    denied: PolicyFailure | None = None
    annotated: list[dict[str, Any]] = []
    for each in failures:
        policy, binding = each.bound.policy.metadata.name, each.bound.binding.metadata.name
        actions = each.bound.binding.spec.validation_actions
        if DENY in actions and denied is None:
            denied = each
        if WARN in actions:
            request.warn(
                f"Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding}': {each.message}"
            )
        if AUDIT in actions:
            annotated.append(
                {
                    "message": each.message,
                    "policy": policy,
                    "binding": binding,
                    "expressionIndex": each.index or 0,
                    "validationActions": list(actions),
                }
            )
    if annotated:
        request.annotate(FAILURE_ANNOTATION, msgspec.json.encode(annotated).decode())
    if denied is not None:
        raise _denial(denied, request, obj)


def _denial(failure: PolicyFailure, request: AdmissionRequest, obj: Any) -> errors.StatusError:
    policy, binding = failure.bound.policy.metadata.name, failure.bound.binding.metadata.name
    text = f"ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {failure.message}"
    reason = failure.reason or "Invalid"
    status = errors.forbidden(
        request.resource, obj.metadata.name, text, causes=(StatusCause(message=failure.message),)
    ).status
    return errors.StatusError(msgspec.structs.replace(status, reason=reason, code=REASON_CODES[reason]))


def _annotate(
    policy: ValidatingAdmissionPolicy, answer: EvaluatedPolicy | OutOfBudget, request: AdmissionRequest
) -> None:
    if isinstance(answer, OutOfBudget):
        return
    for annotation, outcome in zip(policy.spec.audit_annotations, answer.annotations, strict=False):
        if outcome.text:
            request.annotate(f"{policy.metadata.name}/{annotation.key}", outcome.text[:10_240])


# --- the expressions of a policy --------------------------------------------------------------------------------------


def check_expressions(
    request: AdmissionRequest, policy: Any, expressions_of: Callable[[Any], Iterable[tuple[str, Expression]]]
) -> None:
    """Require that the expressions of a new or changed policy compile. Raises 422 and CallsPending.

    `expressions_of` yields those of the spec of a policy, with their paths.
    """
    assert request.external is not None
    if request.operation not in (Operation.CREATE, Operation.UPDATE) or request.subresource:
        return
    if request.old is not None and request.old.spec == policy.spec:
        return
    paths, expressions = [], []
    for path, expression in expressions_of(policy.spec):
        paths.append(path)
        expressions.append(expression)
    problems = [
        FieldError(path, msgspec.json.encode(expression.text).decode(), problem)
        for path, expression, problem in zip(
            paths, expressions, compile_errors(expressions, request, policy), strict=True
        )
        if problem
    ]
    if problems:
        raise errors.invalid(request.resource, policy.metadata.name, problems)


def policy_expressions(spec: ValidatingAdmissionPolicySpec) -> Iterator[tuple[str, Expression]]:
    """Yield every expression of a policy with its path and with what it may use and must return.

    A match condition uses no variables, and a variable those before it.
    """
    has_params = spec.param_kind is not None
    variables = tuple(variable.name for variable in spec.variables)
    before = {f"spec.variables[{index}].expression": variables[:index] for index in range(len(variables))}
    for path, text in expressions_of(spec):
        if not text:
            continue
        result, names = "bool", variables
        if path in before:
            result, names = DYN, before[path]
        elif path.endswith(".messageExpression"):
            result = STRING
        elif path.startswith("spec.auditAnnotations"):
            result = DYN
        elif path.startswith("spec.matchConditions"):
            names = ()
        yield path, Expression(text, result, names, has_params)

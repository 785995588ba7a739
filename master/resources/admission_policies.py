"""ValidatingAdmissionPolicy and ValidatingAdmissionPolicyBinding. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sized
from typing import Annotated, Any

from msgspec.structs import replace

from api.meta.names import dns_subdomain_error, label_key_error
from api.meta.schema import (
    DUPLICATE,
    MISSING,
    TOO_LONG,
    TOO_MANY,
    FieldError,
    quoted,
    unsupported_values,
)
from api.meta.selectors import LabelSelector, check_selector
from api.meta.types import Json, Object, StatusCondition, Value, merge_keys
from api.validation.registry import KindRules
from master.cel.bounds import text_error
from master.resources.match_resources import (
    ADMISSION_GROUP,
    FAIL,
    IGNORE,
    MatchConditions,
    MatchResources,
    check_match_condition_names,
    check_match_resources,
    default_match_resources,
)
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource

DENY, WARN, AUDIT, ALLOW = "Deny", "Warn", "Audit", "Allow"

REASON_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}
"""Reasons of a validation, with the status of the response."""

MAX_VALIDATIONS, MAX_VARIABLES, MAX_AUDIT_ANNOTATIONS = 256, 256, 20
MAX_MESSAGE_BYTES = 5120
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ParamKind(Value, frozen=True):
    """The kind of the objects that a policy takes parameters from."""

    api_version: str = ""
    kind: str = ""


class Validation(Value, frozen=True):
    """A condition in CEL that a request must fulfil.

    `message` is that of a denial, or `message_expression` returns it. `reason` is its reason: Unauthorized, Forbidden,
    Invalid or RequestEntityTooLarge.
    """

    expression: str = ""
    message: str = ""
    message_expression: str = ""
    reason: str | None = None


class Variable(Value, frozen=True):
    """An expression that the expressions after it use as `variables.NAME`. It is evaluated when it is first used."""

    name: str = ""
    expression: str = ""


class AuditAnnotation(Value, frozen=True):
    """An annotation of the audit events of a request. `value_expression` returns a text, or null for none."""

    key: str = ""
    value_expression: str = ""


class ValidatingAdmissionPolicySpec(Value, frozen=True):
    """What a policy validates, and how.

    `param_kind` is the kind of its parameters. `match_constraints` and `match_conditions` choose the requests.
    `validations` must all be true. `failure_policy` says whether a request is denied (Fail) or admitted (Ignore) if an
    expression fails.
    """

    param_kind: ParamKind | None = None
    match_constraints: MatchResources | None = None
    validations: tuple[Validation, ...] = ()
    failure_policy: str = ""
    audit_annotations: tuple[AuditAnnotation, ...] = ()
    match_conditions: MatchConditions = ()
    variables: Annotated[tuple[Variable, ...], merge_keys("name")] = ()


class ValidatingAdmissionPolicyStatus(Value, frozen=True):
    """The generation that the master has seen, and warnings about the types in expressions."""

    observed_generation: int = 0
    type_checking: Json = None
    conditions: Annotated[tuple[StatusCondition, ...], merge_keys("type")] = ()


class ValidatingAdmissionPolicy(Object, frozen=True):
    """Expressions that accept or reject requests. A policy has an effect only together with a binding."""

    API_VERSION = f"{ADMISSION_GROUP}/v1"
    KIND = "ValidatingAdmissionPolicy"
    PLURAL = "validatingadmissionpolicies"
    NAMESPACED = False

    spec: ValidatingAdmissionPolicySpec = ValidatingAdmissionPolicySpec()
    status: ValidatingAdmissionPolicyStatus = ValidatingAdmissionPolicyStatus()


class ParamRef(Value, frozen=True):
    """The parameters of a binding: an object by `name`, or all that a `selector` selects.

    `namespace` is empty for that of the request. `parameter_not_found_action` is what happens without any: Allow or
    Deny.
    """

    name: str = ""
    namespace: str = ""
    selector: LabelSelector | None = None
    parameter_not_found_action: str | None = None


class ValidatingAdmissionPolicyBindingSpec(Value, frozen=True):
    """The policy, its parameters, the requests, and what happens if a validation is false: Deny, Warn, Audit."""

    policy_name: str = ""
    param_ref: ParamRef | None = None
    match_resources: MatchResources | None = None
    validation_actions: tuple[str, ...] = ()


class ValidatingAdmissionPolicyBinding(Object, frozen=True):
    """The scope of a validating admission policy."""

    API_VERSION = f"{ADMISSION_GROUP}/v1"
    KIND = "ValidatingAdmissionPolicyBinding"
    PLURAL = "validatingadmissionpolicybindings"
    NAMESPACED = False

    spec: ValidatingAdmissionPolicyBindingSpec = ValidatingAdmissionPolicyBindingSpec()


# --- policies ---------------------------------------------------------------------------------------------------------


# Functions without the underscore serve MutatingAdmissionPolicies and their bindings, too, which have the same fields.


def default_policy(policy: Any) -> Any:
    """Return a policy with its defaults."""
    spec = policy.spec
    match = None if spec.match_constraints is None else default_match_resources(spec.match_constraints)
    return replace(policy, spec=replace(spec, failure_policy=spec.failure_policy or FAIL, match_constraints=match))


def _check_numbers(policy: ValidatingAdmissionPolicy) -> Iterator[FieldError]:
    yield from check_lengths(
        ("validations", policy.spec.validations, MAX_VALIDATIONS),
        ("variables", policy.spec.variables, MAX_VARIABLES),
        ("auditAnnotations", policy.spec.audit_annotations, MAX_AUDIT_ANNOTATIONS),
    )


def check_lengths(*rows: tuple[str, Sized, int]) -> Iterator[FieldError]:
    """Yield an error for each (field of the spec, list, limit) with more items than the limit."""
    for name, items, limit in rows:
        if len(items) > limit:
            yield FieldError(f"spec.{name}", str(len(items)), f"must have at most {limit} items", TOO_MANY)


def _validate_policy(policy: ValidatingAdmissionPolicy) -> Iterator[FieldError]:
    spec = policy.spec
    yield from unsupported_values(("spec.failurePolicy", spec.failure_policy, (FAIL, IGNORE)))
    yield from check_scope(spec)
    yield from check_match_condition_names("spec.matchConditions", spec.match_conditions)
    if not spec.validations and not spec.audit_annotations:
        for name in ("validations", "auditAnnotations"):
            detail = "validations or auditAnnotations must contain at least one item"
            yield FieldError(f"spec.{name}", "", detail, MISSING)
    for index, validation in enumerate(spec.validations):
        yield from _check_validation(f"spec.validations[{index}]", validation)
    yield from check_variables(spec.variables)
    yield from _check_audit_annotations(spec.audit_annotations)
    yield from check_texts(expressions_of(spec))


def check_scope(spec: Any) -> Iterator[FieldError]:
    """Yield the errors of the kind of parameters, and of the constraints that choose requests."""
    if spec.param_kind is not None:
        yield from _check_param_kind(spec.param_kind)
    if spec.match_constraints is None:
        yield FieldError("spec.matchConstraints", "", "", MISSING)
    else:
        yield from check_match_resources("spec.matchConstraints", spec.match_constraints)
        if not spec.match_constraints.resource_rules:
            yield FieldError("spec.matchConstraints.resourceRules", "", "", MISSING)


def check_texts(expressions: Iterable[tuple[str, str]]) -> Iterator[FieldError]:
    """Yield the errors of expressions, each with its path, that no expression in CEL can have."""
    for path, text in expressions:
        if problem := text_error(text):
            yield FieldError(path, quoted(text), problem)


def expressions_of(spec: ValidatingAdmissionPolicySpec) -> Iterator[tuple[str, str]]:
    """Yield every expression of a policy with its path."""
    for index, condition in enumerate(spec.match_conditions):
        yield f"spec.matchConditions[{index}].expression", condition.expression
    for index, variable in enumerate(spec.variables):
        yield f"spec.variables[{index}].expression", variable.expression
    for index, validation in enumerate(spec.validations):
        yield f"spec.validations[{index}].expression", validation.expression
        yield f"spec.validations[{index}].messageExpression", validation.message_expression
    for index, annotation in enumerate(spec.audit_annotations):
        yield f"spec.auditAnnotations[{index}].valueExpression", annotation.value_expression


def _check_param_kind(kind: ParamKind) -> Iterator[FieldError]:
    for name, value in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        if not value:
            yield FieldError(f"spec.paramKind.{name}", "", "", MISSING)
    if kind.api_version.count("/") > 1:
        detail = "must be of the form <group>/<version> or <version>"
        yield FieldError("spec.paramKind.apiVersion", quoted(kind.api_version), detail)


def _check_validation(path: str, validation: Validation) -> Iterator[FieldError]:
    if not validation.expression.strip():
        yield FieldError(f"{path}.expression", "", "expression is not specified", MISSING)
    message = validation.message.strip()
    if validation.message and not message:
        detail = "message must be non-empty if specified"
        yield FieldError(f"{path}.message", quoted(validation.message), detail)
    if "\n" in message:
        yield FieldError(f"{path}.message", quoted(validation.message), "message must not contain line breaks")
    if len(message) > MAX_MESSAGE_BYTES:
        yield FieldError(f"{path}.message", "", f"may not be more than {MAX_MESSAGE_BYTES} bytes", TOO_LONG)
    if "\n" in validation.expression.strip() and not message:
        detail = "message must be specified if expression contains line breaks"
        yield FieldError(f"{path}.message", "", detail, MISSING)
    if validation.message_expression and not validation.message_expression.strip():
        detail = "must be non-empty if specified"
        yield FieldError(f"{path}.messageExpression", quoted(validation.message_expression), detail)
    yield from unsupported_values((f"{path}.reason", validation.reason or "", tuple(REASON_CODES)))


def check_variables(variables: Iterable[Variable]) -> Iterator[FieldError]:
    """Yield the errors of variables, except that they do not compile."""
    seen: set[str] = set()
    for index, variable in enumerate(variables):
        path = f"spec.variables[{index}]"
        if not variable.name:
            yield FieldError(f"{path}.name", "", "name is not specified", MISSING)
        elif _IDENTIFIER.fullmatch(variable.name) is None:
            yield FieldError(f"{path}.name", quoted(variable.name), "name is not a valid CEL identifier")
        if variable.name in seen:
            yield FieldError(f"{path}.name", quoted(variable.name), "", DUPLICATE)
        seen.add(variable.name)
        if not variable.expression.strip():
            yield FieldError(f"{path}.expression", "", "expression is not specified", MISSING)


def _check_audit_annotations(annotations: Iterable[AuditAnnotation]) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, annotation in enumerate(annotations):
        path = f"spec.auditAnnotations[{index}]"
        if not annotation.key:
            yield FieldError(f"{path}.key", "", "", MISSING)
        elif problem := label_key_error(annotation.key):
            yield FieldError(f"{path}.key", quoted(annotation.key), problem)
        if annotation.key in seen:
            yield FieldError(f"{path}.key", quoted(annotation.key), "", DUPLICATE)
        seen.add(annotation.key)
        if not annotation.value_expression.strip():
            yield FieldError(f"{path}.valueExpression", "", "valueExpression is not specified", MISSING)


def spec_of(obj: Any) -> Any:
    """Return the spec of a policy or binding."""
    return obj.spec


PARAM_KIND = Column(
    "ParamKind",
    "The kind of its parameters.",
    lambda policy, _: (
        "<unset>"
        if policy.spec.param_kind is None
        else f"{policy.spec.param_kind.api_version}/{policy.spec.param_kind.kind}"
    ),
)
POLICY_NAME = Column("PolicyName", "The policy.", lambda binding, _: binding.spec.policy_name)
PARAM_REF = Column(
    "ParamRef",
    "The parameters.",
    lambda binding, _: (
        "<unset>"
        if binding.spec.param_ref is None
        else "/".join(filter(None, (binding.spec.param_ref.namespace, binding.spec.param_ref.name or "*")))
    ),
)


VALIDATING_ADMISSION_POLICIES = Resource(
    type=ValidatingAdmissionPolicy,
    categories=("api-extensions",),
    columns=(
        NAME,
        Column("Validations", "Number of validations.", lambda policy, _: len(policy.spec.validations), type="integer"),
        PARAM_KIND,
        AGE,
    ),
    spec=spec_of,
    rules=KindRules(default_policy, _validate_policy, check_numbers=_check_numbers),
    acted_on_by="the master, which evaluates bound policies for each write that they choose",
)

# --- bindings ---------------------------------------------------------------------------------------------------------


def default_binding(binding: Any) -> Any:
    """Return a binding with its defaults."""
    match = binding.spec.match_resources
    if match is None:
        return binding
    return replace(binding, spec=replace(binding.spec, match_resources=default_match_resources(match)))


def _validate_binding(binding: ValidatingAdmissionPolicyBinding) -> Iterator[FieldError]:
    yield from check_binding(binding.spec)
    yield from _check_actions(binding.spec.validation_actions)


def check_binding(spec: Any) -> Iterator[FieldError]:
    """Yield the errors of the policy's name, the parameters and the requests of a binding."""
    if not spec.policy_name:
        yield FieldError("spec.policyName", "", "", MISSING)
    elif problem := dns_subdomain_error(spec.policy_name):
        yield FieldError("spec.policyName", quoted(spec.policy_name), problem)
    if spec.param_ref is not None:
        yield from _check_param_ref(spec.param_ref)
    if spec.match_resources is not None:
        yield from check_match_resources("spec.matchResources", spec.match_resources)


def _check_param_ref(ref: ParamRef) -> Iterator[FieldError]:
    path = "spec.paramRef"
    if ref.name and ref.selector is not None:
        yield FieldError(f"{path}.name", "", "name and selector are mutually exclusive", "FieldValueForbidden")
    elif not ref.name and ref.selector is None:
        yield FieldError(path, "", "one of name or selector must be specified", MISSING)
    if ref.name and (problem := dns_subdomain_error(ref.name)):
        yield FieldError(f"{path}.name", quoted(ref.name), problem)
    if ref.selector is not None:
        yield from check_selector(f"{path}.selector", ref.selector)
    if ref.parameter_not_found_action is None:
        yield FieldError(f"{path}.parameterNotFoundAction", "", "", MISSING)
    else:
        yield from unsupported_values(
            (f"{path}.parameterNotFoundAction", ref.parameter_not_found_action, (ALLOW, DENY))
        )


def _check_actions(actions: tuple[str, ...]) -> Iterator[FieldError]:
    path = "spec.validationActions"
    if not actions:
        yield FieldError(path, "", "", MISSING)
    for index, action in enumerate(actions[:8]):
        yield from unsupported_values((f"{path}[{index}]", action, (AUDIT, DENY, WARN)))
        if action in actions[:index]:
            yield FieldError(f"{path}[{index}]", quoted(action), "", DUPLICATE)
    if DENY in actions and WARN in actions:
        detail = "must not contain both Deny and Warn: the client would get the same message twice"
        yield FieldError(path, quoted(actions), detail)


VALIDATING_ADMISSION_POLICY_BINDINGS = Resource(
    type=ValidatingAdmissionPolicyBinding,
    categories=("api-extensions",),
    columns=(
        NAME,
        POLICY_NAME,
        PARAM_REF,
        AGE,
    ),
    spec=spec_of,
    rules=KindRules(default_binding, _validate_binding),
    acted_on_by="the master, which evaluates the policy for each write that the binding chooses",
)

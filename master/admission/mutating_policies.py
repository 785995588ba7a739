"""MutatingAdmissionPolicy: changes the objects of writes by the expressions of bound policies. Pure.

Policies are applied in the order of their names, then of their bindings, each mutation to what the last one made, and
before mutating webhooks. A mutation is one question to the CEL worker with a budget of its own; its answer is a patch,
which is applied here. Policies are never applied to the kinds by which one repairs them. What nodes and controllers do
on their own is exempt from rules with `*`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from api.codec.limits import value_count
from api.meta.schema import MISSING, UNKNOWN, shape_errors, without_nulls
from api.meta.types import StatusCause
from master import errors
from master.admission.cel_calls import (
    Decide,
    as_json,
    body_kind_of,
    evaluate_policies,
    named,
    request_variables,
)
from master.admission.matching import is_exempt, match_attributes, namespace_of
from master.admission.mutated_objects import Undecodable, decoded_object, document_of, require_size, with_identity
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.admission.validating_policies import (
    BoundPolicy,
    NotConfigured,
    bound_policies,
    check_expressions,
    params_of,
)
from master.cel import messages
from master.cel.messages import DYN, EvaluatedPolicy, EvaluatePolicy, Expression, NamedExpression, OutOfBudget
from master.resources.match_resources import IGNORE
from master.resources.merge import atomic_parts, key_errors, merge
from master.resources.mutating_policies import (
    JSON_PATCH,
    MutatingAdmissionPolicy,
    MutatingAdmissionPolicyBinding,
    MutatingAdmissionPolicySpec,
    Mutation,
    expressions_of,
)
from master.resources.resource import AnyResource, converted
from master.resources.scheme import group_resource
from master.resources.webhook_configurations import IF_NEEDED
from master.serialization.json_patch import FailedTest, InvalidPatch, json_patch
from master.storage.interface import Transaction

MAX_CONFIGURATION_VALUES = 10_000
"""Values of an apply configuration, as of the body of a server-side apply."""

MAX_LISTED = 10
"""Problems of an apply configuration that a message names."""

Bound = BoundPolicy[MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding]


class PatchFailed(Exception):
    """A patch that cannot be applied. The failure policy decides what happens."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A policy with a binding and one of its parameters, None if it has none. `key` identifies it in both rounds."""

    bound: Bound
    params: Any
    key: tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class PolicyFailure:
    """A policy that could not be applied. `reason` is empty if it could not be configured."""

    bound: Bound
    message: str
    reason: str = "Invalid"

    @property
    def text(self) -> str:
        """Return the message with the names of policy and binding."""
        policy, binding = self.bound.policy.metadata.name, self.bound.binding.metadata.name
        return f"policy '{policy}' with binding '{binding}' denied request: {self.message}"


class MutatingAdmissionPolicyPlugin(AdmissionPlugin):
    """Checks new policies. The plugin of mutating webhooks applies them, because both run again after a change.

    `decide` answers what expressions ask the authorizer.
    """

    def __init__(self, decide: Decide | None) -> None:
        self._decide = decide

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        """Require that the expressions of a policy compile."""
        if isinstance(obj, MutatingAdmissionPolicy) and request.external is not None:
            check_expressions(request, obj, policy_expressions)

    def begin(self, request: AdmissionRequest, objects: Transaction) -> PolicyMutations | None:
        """Return the policies for one write; None if there are none, or nothing that they may change."""
        if request.external is None or is_exempt(request.resource):
            return None
        if request.operation not in (Operation.CREATE, Operation.UPDATE) or body_kind_of(request) is not None:
            return None
        bindings = objects.list(group_resource(MutatingAdmissionPolicyBinding))
        return PolicyMutations(bindings, request, objects, self._decide) if bindings else None


class PolicyMutations:
    """The mutating policies for one write, and which of them are to be evaluated again."""

    def __init__(
        self,
        bindings: Iterable[MutatingAdmissionPolicyBinding],
        request: AdmissionRequest,
        objects: Transaction,
        decide: Decide | None,
    ) -> None:
        self.has_changed = False
        """Whether a policy has changed the object."""
        self._bindings = tuple(bindings)
        self._request, self._objects, self._decide = request, objects, decide
        self._previous: set[tuple[str, str, str, str]] = set()
        """Those with IfNeeded that were evaluated since the last change."""
        self._required: set[tuple[str, str, str, str]] = set()
        self._output: Any = None
        self._state = b""
        """A digest of the object as it is, by which it is known after the write is decided again."""

    def apply(self, obj: Any) -> Any:
        """Return the object after all policies."""
        return self._round(obj, is_again=False)

    def apply_again(self, obj: Any) -> Any:
        """Return the object after the policies with IfNeeded, if the object has changed since they were evaluated."""
        if obj != self._output:
            self._require_previous()
        return self._round(obj, is_again=True)

    def _round(self, obj: Any, *, is_again: bool) -> Any:
        failures: list[PolicyFailure] = []
        before = obj
        self._state = hashlib.blake2b(as_json(obj)).digest()
        for each in list(self._invocations(obj, failures)):
            if is_again and each.key not in self._required:
                continue
            unchanged = obj
            obj = self._invoke(each, obj, failures)
            if obj != unchanged:
                self._require_previous()
            if each.bound.policy.spec.reinvocation_policy == IF_NEEDED:
                self._previous.add(each.key)
        if obj != before:
            # As in Kubernetes, a policy is evaluated again after its own change, too.
            self.has_changed = True
            self._require_previous()
        self._output = obj
        denying = [failure for failure in failures if failure.bound.policy.spec.failure_policy != IGNORE]
        if denying:
            raise _denial(denying, self._request, obj)
        return obj

    def _require_previous(self) -> None:
        self._required |= self._previous
        self._previous.clear()

    def _invocations(self, obj: Any, failures: list[PolicyFailure]) -> Iterator[Invocation]:
        """Yield the policies that the object chooses as it is before the first of them."""
        attributes = match_attributes(self._request, obj, self._objects)
        chosen = bound_policies(MutatingAdmissionPolicy, self._bindings, self._request, attributes, self._objects)
        for bound in sorted(chosen, key=lambda each: (each.policy.metadata.name, each.binding.metadata.name)):
            kind, ref = bound.policy.spec.param_kind, bound.binding.spec.param_ref
            try:
                found = params_of(kind, ref, self._request, obj, self._objects)
            except NotConfigured as error:
                failures.append(PolicyFailure(bound, f"failed to configure binding: {error}", "Forbidden"))
                continue
            for params in found:
                place = ("", "") if params is None else (params.metadata.namespace, params.metadata.name)
                yield Invocation(bound, params, (bound.policy.metadata.name, bound.binding.metadata.name, *place))

    def _invoke(self, each: Invocation, obj: Any, failures: list[PolicyFailure]) -> Any:
        """Return the object after the mutations of a policy. One that fails is left out."""
        bound, has_matched = each.bound, False
        for mutation in bound.policy.spec.mutations:
            question = self._question(each, mutation, obj, has_matched=has_matched)
            (answer,) = evaluate_policies((question,), self._request, obj, self._decide)
            if isinstance(answer, OutOfBudget):
                failures.append(PolicyFailure(bound, answer.reason))
                if not has_matched:
                    return obj
                continue
            if not answer.matches:
                return obj
            if answer.condition_errors:
                failures.append(PolicyFailure(bound, _condition_problems(answer)))
                return obj
            has_matched = True
            assert answer.patch is not None
            try:
                if answer.patch.error:
                    raise PatchFailed(answer.patch.error)
                obj = self._patched(bound, mutation, answer.patch.document, obj)
            except PatchFailed as error:
                failures.append(PolicyFailure(bound, str(error)))
        return obj

    def _question(self, each: Invocation, mutation: Mutation, obj: Any, *, has_matched: bool) -> EvaluatePolicy:
        """Return the question about a mutation. The first one asks for the match conditions, too."""
        spec = each.bound.policy.spec
        result = messages.JSON_PATCH if mutation.patch_type == JSON_PATCH else messages.APPLY_CONFIGURATION
        namespace = namespace_of(self._request, obj, self._objects)
        return EvaluatePolicy(
            conditions=() if has_matched else named(spec.match_conditions),
            variables=tuple(NamedExpression(variable.name, variable.expression) for variable in spec.variables),
            mutation=messages.Mutation(mutation.expression, result),
            has_params=spec.param_kind is not None,
            params=as_json(each.params),
            **request_variables(self._request, obj, resource=each.bound.resource, namespace=namespace),  # type: ignore[arg-type]
        )

    def _patched(self, bound: Bound, mutation: Mutation, patch: bytes, obj: Any) -> Any:
        """Return the object after a patch. Raises PatchFailed and StatusError."""
        assert self._request.external is not None
        state = hashlib.blake2b(self._state + bound.resource.type.API_VERSION.encode() + patch).digest()
        new = self._request.external.derived(state, lambda: self._after(bound.resource, mutation, patch, obj))
        new = with_identity(f'policy "{bound.policy.metadata.name}"', self._request, new, obj)
        self._state = state
        return new

    def _after(self, asked: AnyResource, mutation: Mutation, patch: bytes, obj: Any) -> Any:
        apply = _after_json_patch if mutation.patch_type == JSON_PATCH else _after_configuration
        resource, document = self._request.resource, msgspec.json.decode(patch)
        return converted(apply(asked, converted(obj, resource, asked), document), asked, resource)


def _condition_problems(answer: EvaluatedPolicy) -> str:
    problems = "; ".join(f"matchCondition {name!r}: {error}" for name, error in answer.condition_errors)
    return f"failed to evaluate match conditions: {problems}"


def _denial(failures: list[PolicyFailure], request: AdmissionRequest, obj: Any) -> errors.StatusError:
    """Return 403 with the first failure, and all of them as causes."""
    causes = tuple(StatusCause(message=failure.text) for failure in failures)
    status = errors.forbidden(request.resource, obj.metadata.name, failures[0].message, causes=causes).status
    return errors.StatusError(msgspec.structs.replace(status, message=failures[0].text, reason=failures[0].reason))


# --- patches ----------------------------------------------------------------------------------------------------------


def _after_json_patch(resource: AnyResource, obj: Any, operations: Any) -> Any:
    """Return an object after a JSON patch; the same object if a test of the patch fails.

    A patch that does not fit is a failure of the policy. A result that is no object is one of the server (500).
    """
    try:
        document = json_patch(document_of(obj), operations, replaces_absent=True)
    except FailedTest:
        return obj
    except InvalidPatch as error:
        raise PatchFailed(f"JSONPath: {error}") from error
    try:
        require_size(document)
        return decoded_object(resource, document, is_strict=True)
    except Undecodable as error:
        if error.unknown:
            unknown = ", ".join(f'unknown field "{path}"' for path in error.unknown[:MAX_LISTED])
            raise errors.internal_error(f"strict decoding error: {unknown}") from error
        raise errors.internal_error(f"the object after the patch {error}") from error


def _after_configuration(resource: AnyResource, obj: Any, configuration: dict[str, Any]) -> Any:
    """Return an object after a merge of an apply configuration. Raises PatchFailed."""
    applied = {**configuration, "apiVersion": resource.type.API_VERSION, "kind": resource.kind}
    if resource.documents is None:
        applied = without_nulls(applied)  # type: ignore[assignment]
    if value_count(applied, MAX_CONFIGURATION_VALUES) > MAX_CONFIGURATION_VALUES:
        raise PatchFailed(f"error applying patch: it has more than {MAX_CONFIGURATION_VALUES} values")
    if problems := list(_schema_problems(resource, applied)):
        text = "\n".join(problems[:MAX_LISTED])
        raise PatchFailed(f"error applying patch: failed to convert patch object to typed object: {text}")
    if atomic := list(atomic_parts(applied, resource.merge_schema)):
        text = f"may not mutate atomic arrays, maps or structs: {', '.join(atomic[:MAX_LISTED])}"
        raise PatchFailed(f"error applying patch: invalid ApplyConfiguration: {text}")
    document = merge(document_of(obj), applied, resource.merge_schema)
    try:
        require_size(document)
        return decoded_object(resource, document)
    except Undecodable as error:
        raise PatchFailed(f"error applying patch: failed to convert typed object to object: it {error}") from error


def _schema_problems(resource: AnyResource, applied: dict[str, Any]) -> Iterator[str]:
    """Yield what does not fit the schema of a kind. A part of an object need not have its required fields."""
    if resource.documents is not None:
        if (field := resource.documents.undeclared_field(applied)) is not None:
            yield f".{field}: field not declared in schema"
    else:
        for problem in shape_errors(resource.type, applied):
            if problem.reason == UNKNOWN:
                yield f".{problem.path}: field not declared in schema"
            elif problem.reason != MISSING:
                yield f".{problem}"
    yield from key_errors(applied, resource.merge_schema)


# --- the expressions of a policy --------------------------------------------------------------------------------------


def policy_expressions(spec: MutatingAdmissionPolicySpec) -> Iterator[tuple[str, Expression]]:
    """Yield every expression of a policy with its path and with what it may use and must return.

    A match condition uses no variables, and a variable those before it. Only mutations make objects and patches.
    """
    has_params = spec.param_kind is not None
    variables = tuple(variable.name for variable in spec.variables)
    conditions = len(spec.match_conditions)
    for number, (path, text) in enumerate(expressions_of(spec)):
        if number < conditions:
            yield path, Expression(text, has_params=has_params)
        elif number < conditions + len(variables):
            yield path, Expression(text, DYN, variables[: number - conditions], has_params)
        else:
            mutation = spec.mutations[number - conditions - len(variables)]
            result = messages.JSON_PATCH if mutation.patch_type == JSON_PATCH else messages.APPLY_CONFIGURATION
            yield path, Expression(text, result, variables, has_params)

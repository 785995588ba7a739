"""MutatingAdmissionPolicy and MutatingAdmissionPolicyBinding. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from api.meta.schema import MISSING, NOT_SUPPORTED, FieldError, quoted
from api.meta.types import Object, Value, merge_keys
from api.validation.registry import KindRules
from master.resources.admission_policies import (
    MAX_VARIABLES,
    PARAM_KIND,
    PARAM_REF,
    POLICY_NAME,
    ParamKind,
    ParamRef,
    Variable,
    check_binding,
    check_lengths,
    check_scope,
    check_texts,
    check_variables,
    default_binding,
    default_policy,
    spec_of,
)
from master.resources.match_resources import (
    ADMISSION_GROUP,
    ANY,
    FAIL,
    IGNORE,
    MatchConditions,
    MatchResources,
    check_match_condition_names,
)
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource
from master.resources.webhook_configurations import IF_NEEDED, NEVER

APPLY_CONFIGURATION, JSON_PATCH = "ApplyConfiguration", "JSONPatch"
MUTABLE_OPERATIONS = (ANY, "CONNECT", "CREATE", "UPDATE")
"""Operations that rules may name. Policies are not applied to connections, which have no object here."""

MAX_MUTATIONS = 32
"""Mutations of a policy. Each is one question to the CEL worker. Kubernetes has no limit."""


class ApplyConfiguration(Value, frozen=True):
    """An expression that returns a part of the object, `Object{...}`, which is merged as a server-side apply does."""

    expression: str = ""


class JSONPatch(Value, frozen=True):
    """An expression that returns the operations of a JSON patch, `[JSONPatch{op: ..., path: ..., value: ...}]`."""

    expression: str = ""


class Mutation(Value, frozen=True):
    """A change of the object. `patch_type` says which of the other two there is: ApplyConfiguration or JSONPatch."""

    patch_type: str = ""
    apply_configuration: ApplyConfiguration | None = None
    json_patch: JSONPatch | None = None

    @property
    def expression(self) -> str:
        """Return the expression of the patch type."""
        chosen = self.json_patch if self.patch_type == JSON_PATCH else self.apply_configuration
        return "" if chosen is None else chosen.expression


class MutatingAdmissionPolicySpec(Value, frozen=True):
    """What a policy changes, and when.

    `param_kind` is the kind of its parameters. `match_constraints` and `match_conditions` choose the requests.
    `mutations` are made in their order. `failure_policy` says whether a request is denied (Fail) or admitted (Ignore)
    if an expression or a patch fails. With the `reinvocation_policy` IfNeeded the policy is evaluated once more if the
    object was changed; with Never it is not.
    """

    param_kind: ParamKind | None = None
    match_constraints: MatchResources | None = None
    variables: Annotated[tuple[Variable, ...], merge_keys("name")] = ()
    mutations: tuple[Mutation, ...] = ()
    failure_policy: str = ""
    match_conditions: MatchConditions = ()
    reinvocation_policy: str = ""


class MutatingAdmissionPolicy(Object, frozen=True):
    """Expressions that change requests. A policy has an effect only together with a binding."""

    API_VERSION = f"{ADMISSION_GROUP}/v1"
    KIND = "MutatingAdmissionPolicy"
    PLURAL = "mutatingadmissionpolicies"
    NAMESPACED = False

    spec: MutatingAdmissionPolicySpec = MutatingAdmissionPolicySpec()


class MutatingAdmissionPolicyBindingSpec(Value, frozen=True):
    """The policy, its parameters, and the requests, of which `match_resources` may choose fewer than the policy."""

    policy_name: str = ""
    param_ref: ParamRef | None = None
    match_resources: MatchResources | None = None


class MutatingAdmissionPolicyBinding(Object, frozen=True):
    """The scope of a mutating admission policy."""

    API_VERSION = f"{ADMISSION_GROUP}/v1"
    KIND = "MutatingAdmissionPolicyBinding"
    PLURAL = "mutatingadmissionpolicybindings"
    NAMESPACED = False

    spec: MutatingAdmissionPolicyBindingSpec = MutatingAdmissionPolicyBindingSpec()


# --- policies ---------------------------------------------------------------------------------------------------------


def _check_numbers(policy: MutatingAdmissionPolicy) -> Iterator[FieldError]:
    yield from check_lengths(
        ("variables", policy.spec.variables, MAX_VARIABLES), ("mutations", policy.spec.mutations, MAX_MUTATIONS)
    )


def _validate_policy(policy: MutatingAdmissionPolicy) -> Iterator[FieldError]:
    spec = policy.spec
    yield from _unsupported("spec.failurePolicy", spec.failure_policy, (FAIL, IGNORE))
    yield from check_scope(spec)
    yield from _check_operations("spec.matchConstraints", spec.match_constraints)
    yield from check_match_condition_names("spec.matchConditions", spec.match_conditions)
    yield from check_variables(spec.variables)
    if not spec.mutations:
        yield FieldError("spec.mutations", "", "mutations must contain at least one item", MISSING)
    for index, mutation in enumerate(spec.mutations):
        yield from _check_mutation(f"spec.mutations[{index}]", mutation)
    if not spec.reinvocation_policy:
        yield FieldError("spec.reinvocationPolicy", "", "", MISSING)
    else:
        yield from _unsupported("spec.reinvocationPolicy", spec.reinvocation_policy, (IF_NEEDED, NEVER))
    yield from check_texts(expressions_of(spec))


def _unsupported(path: str, value: str, supported: tuple[str, ...]) -> Iterator[FieldError]:
    if value not in supported:
        yield FieldError(path, quoted(value), f"supported values: {', '.join(map(quoted, supported))}", NOT_SUPPORTED)


def _check_operations(path: str, match: MatchResources | None) -> Iterator[FieldError]:
    """Yield the operations of rules that have no object to change."""
    for rule in () if match is None else match.resource_rules:
        for operation in rule.operations:
            yield from _unsupported(f"{path}.resourceRules.operations", operation, MUTABLE_OPERATIONS)


def _check_mutation(path: str, mutation: Mutation) -> Iterator[FieldError]:
    given = {"applyConfiguration": mutation.apply_configuration, "jsonPatch": mutation.json_patch}
    wanted = {APPLY_CONFIGURATION: "applyConfiguration", JSON_PATCH: "jsonPatch"}.get(mutation.patch_type)
    if not mutation.patch_type:
        yield FieldError(f"{path}.patchType", "", "", MISSING)
    if wanted is None:
        if mutation.patch_type:
            yield from _unsupported(f"{path}.patchType", mutation.patch_type, (APPLY_CONFIGURATION, JSON_PATCH))
        return
    for name, value in given.items():
        if name == wanted and value is None:
            detail = f"must be specified when patchType is {mutation.patch_type}"
            yield FieldError(f"{path}.{name}", "", detail, MISSING)
        elif name == wanted and not mutation.expression.strip():
            yield FieldError(f"{path}.{name}.expression", "", "", MISSING)
        elif name != wanted and value is not None:
            detail = f"must not be specified when patchType is {mutation.patch_type}"
            yield FieldError(f"{path}.{name}", quoted(f"{{{name}}}"), detail)


def expressions_of(spec: MutatingAdmissionPolicySpec) -> Iterator[tuple[str, str]]:
    """Yield every expression of a policy with its path."""
    for index, condition in enumerate(spec.match_conditions):
        yield f"spec.matchConditions[{index}].expression", condition.expression
    for index, variable in enumerate(spec.variables):
        yield f"spec.variables[{index}].expression", variable.expression
    for index, mutation in enumerate(spec.mutations):
        name = "jsonPatch" if mutation.patch_type == JSON_PATCH else "applyConfiguration"
        yield f"spec.mutations[{index}].{name}.expression", mutation.expression


MUTATING_ADMISSION_POLICIES = Resource(
    type=MutatingAdmissionPolicy,
    categories=("api-extensions",),
    columns=(
        NAME,
        Column("Mutations", "Number of mutations.", lambda policy, _: len(policy.spec.mutations), type="integer"),
        PARAM_KIND,
        AGE,
    ),
    spec=spec_of,
    rules=KindRules(default_policy, _validate_policy, check_numbers=_check_numbers),
    acted_on_by="the master, which changes the object of each write that bound policies choose",
)

# --- bindings ---------------------------------------------------------------------------------------------------------


def _validate_binding(binding: MutatingAdmissionPolicyBinding) -> Iterator[FieldError]:
    yield from check_binding(binding.spec)
    yield from _check_operations("spec.matchResources", binding.spec.match_resources)


MUTATING_ADMISSION_POLICY_BINDINGS = Resource(
    type=MutatingAdmissionPolicyBinding,
    categories=("api-extensions",),
    columns=(NAME, POLICY_NAME, PARAM_REF, AGE),
    spec=spec_of,
    rules=KindRules(default_binding, _validate_binding),
    acted_on_by="the master, which evaluates the policy for each write that the binding chooses",
)

"""FlowSchema and PriorityLevelConfiguration of API priority and fairness. Stored; nothing acts on them. Pure.

All requests have the same priority. The limits of `docs/operations/limits.md` hold instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec.structs import replace

from api.meta.schema import FORBIDDEN, MISSING, FieldError, quoted, unsupported_values
from api.meta.types import MERGED_SET, Object, Value, merge_keys
from api.meta.values import Int32, Time
from api.validation.registry import KindRules
from master.resources.printing import AGE, NAME, none_if_empty
from master.resources.resource import Column, Resource

FLOW_CONTROL_GROUP = "flowcontrol.apiserver.k8s.io"
DEFAULT_PRECEDENCE, MAX_PRECEDENCE = 1000, 10_000
EXEMPT, LIMITED = "Exempt", "Limited"
QUEUE, REJECT = "Queue", "Reject"
MAX_RULES, MAX_QUEUES, DEFAULT_QUEUES = 100, 10_000_000, 64

WARNING = "stored, but this master gives all requests the same priority"


class PriorityLevelConfigurationReference(Value, frozen=True):
    """The name of a PriorityLevelConfiguration."""

    name: str = ""


class FlowDistinguisherMethod(Value, frozen=True):
    """How requests are divided into flows. `type` is ByUser or ByNamespace."""

    type: str = ""


class UserSubject(Value, frozen=True):
    """The name of a user, or `*` for all."""

    name: str = ""


class GroupSubject(Value, frozen=True):
    """The name of a group, or `*` for all."""

    name: str = ""


class ServiceAccountSubject(Value, frozen=True):
    """The namespace and name of a service account; the name `*` stands for all of the namespace."""

    namespace: str = ""
    name: str = ""


class FlowSchemaSubject(Value, frozen=True):
    """Who sends a request. `kind` is User, Group or ServiceAccount, and names the field that is set."""

    kind: str = ""
    user: UserSubject | None = None
    group: GroupSubject | None = None
    service_account: ServiceAccountSubject | None = None


class ResourcePolicyRule(Value, frozen=True):
    """Requests for resources. `clusterScope` includes requests without a namespace."""

    verbs: Annotated[tuple[str, ...], MERGED_SET] = ()
    api_groups: Annotated[tuple[str, ...], MERGED_SET] = ()
    resources: Annotated[tuple[str, ...], MERGED_SET] = ()
    cluster_scope: bool = False
    namespaces: Annotated[tuple[str, ...], MERGED_SET] = ()


class NonResourcePolicyRule(Value, frozen=True):
    """Requests for other paths."""

    verbs: Annotated[tuple[str, ...], MERGED_SET] = ()
    non_resource_urls: Annotated[tuple[str, ...], MERGED_SET] = msgspec.field(default=(), name="nonResourceURLs")


class PolicyRulesWithSubjects(Value, frozen=True):
    """Requests of one of the subjects that match one of the rules."""

    subjects: tuple[FlowSchemaSubject, ...] = ()
    resource_rules: tuple[ResourcePolicyRule, ...] = ()
    non_resource_rules: tuple[NonResourcePolicyRule, ...] = ()


class FlowSchemaSpec(Value, frozen=True):
    """The priority level of the requests that match one of the rules; the schema of the least precedence decides."""

    priority_level_configuration: PriorityLevelConfigurationReference = PriorityLevelConfigurationReference()
    matching_precedence: Int32 = 0
    distinguisher_method: FlowDistinguisherMethod | None = None
    rules: tuple[PolicyRulesWithSubjects, ...] = ()


class FlowControlCondition(Value, frozen=True):
    """A condition of a FlowSchema or a PriorityLevelConfiguration."""

    type: str = ""
    status: str = ""
    last_transition_time: Time | None = None
    reason: str = ""
    message: str = ""


class FlowSchemaStatus(Value, frozen=True):
    """The state that a controller reports."""

    conditions: Annotated[tuple[FlowControlCondition, ...], merge_keys("type")] = ()


class FlowSchema(Object, frozen=True):
    """The priority level of requests. Stored; all requests have the same priority."""

    API_VERSION = f"{FLOW_CONTROL_GROUP}/v1"
    KIND = "FlowSchema"
    PLURAL = "flowschemas"
    NAMESPACED = False

    spec: FlowSchemaSpec = FlowSchemaSpec()
    status: FlowSchemaStatus = FlowSchemaStatus()


class QueuingConfiguration(Value, frozen=True):
    """The queues of a priority level."""

    queues: Int32 = 0
    hand_size: Int32 = 0
    queue_length_limit: Int32 = 0


class LimitResponse(Value, frozen=True):
    """What becomes of requests beyond the limit. `type` is Queue or Reject."""

    type: str = ""
    queuing: QueuingConfiguration | None = None


class LimitedPriorityLevelConfiguration(Value, frozen=True):
    """The share of a priority level in the requests that are served at the same time."""

    nominal_concurrency_shares: Int32 | None = None
    limit_response: LimitResponse = LimitResponse()
    lendable_percent: Int32 | None = None
    borrowing_limit_percent: Int32 | None = None


class ExemptPriorityLevelConfiguration(Value, frozen=True):
    """The share of a priority level whose requests never wait."""

    nominal_concurrency_shares: Int32 | None = None
    lendable_percent: Int32 | None = None


class PriorityLevelConfigurationSpec(Value, frozen=True):
    """The limits of a priority level. `type` is Exempt or Limited, and names the field that may be set."""

    type: str = ""
    limited: LimitedPriorityLevelConfiguration | None = None
    exempt: ExemptPriorityLevelConfiguration | None = None


class PriorityLevelConfigurationStatus(Value, frozen=True):
    """The state that a controller reports."""

    conditions: Annotated[tuple[FlowControlCondition, ...], merge_keys("type")] = ()


class PriorityLevelConfiguration(Object, frozen=True):
    """The concurrency limit of a priority level. Stored; all requests have the same priority."""

    API_VERSION = f"{FLOW_CONTROL_GROUP}/v1"
    KIND = "PriorityLevelConfiguration"
    PLURAL = "prioritylevelconfigurations"
    NAMESPACED = False

    spec: PriorityLevelConfigurationSpec = PriorityLevelConfigurationSpec()
    status: PriorityLevelConfigurationStatus = PriorityLevelConfigurationStatus()


# --- defaults and checks ----------------------------------------------------------------------------------------------


def _default_flow_schema(schema: FlowSchema) -> FlowSchema:
    precedence = schema.spec.matching_precedence or DEFAULT_PRECEDENCE
    return replace(schema, spec=replace(schema.spec, matching_precedence=precedence))


def _validate_flow_schema(schema: FlowSchema) -> Iterator[FieldError]:
    spec = schema.spec
    if not 0 <= spec.matching_precedence <= MAX_PRECEDENCE:  # 0 stands for the default.
        accepted = f"must be between 1 and {MAX_PRECEDENCE}"
        yield FieldError("spec.matchingPrecedence", quoted(spec.matching_precedence), accepted)
    if not spec.priority_level_configuration.name:
        yield FieldError("spec.priorityLevelConfiguration.name", '""', "must reference a priority level", MISSING)
    if spec.distinguisher_method is not None:
        kind = spec.distinguisher_method.type
        if kind not in ("ByNamespace", "ByUser"):
            yield from unsupported_values(("spec.distinguisherMethod.type", kind or "-", ("ByNamespace", "ByUser")))
    for index, rule in enumerate(spec.rules):
        yield from _validate_rule(f"spec.rules[{index}]", rule)


def _validate_rule(path: str, rule: PolicyRulesWithSubjects) -> Iterator[FieldError]:
    if not rule.subjects:
        yield FieldError(f"{path}.subjects", "[]", "subjects must contain at least one value", MISSING)
    if not rule.resource_rules and not rule.non_resource_rules:
        yield FieldError(path, "{}", "at least one of resourceRules and nonResourceRules has to be non-empty", MISSING)
    for index, subject in enumerate(rule.subjects):
        fields = {"User": subject.user, "Group": subject.group, "ServiceAccount": subject.service_account}
        if subject.kind not in fields:
            yield from unsupported_values((f"{path}.subjects[{index}].kind", subject.kind or "-", tuple(fields)))
        elif fields[subject.kind] is None:
            field = subject.kind[0].lower() + subject.kind[1:]
            yield FieldError(f"{path}.subjects[{index}].{field}", "null", f"is required for {subject.kind}", MISSING)
    yield from _validate_requests(path, rule)


def _validate_requests(path: str, rule: PolicyRulesWithSubjects) -> Iterator[FieldError]:
    lists: list[tuple[str, tuple[str, ...]]] = []
    for index, of_resources in enumerate(rule.resource_rules):
        where = f"{path}.resourceRules[{index}]"
        lists += (
            (f"{where}.verbs", of_resources.verbs),
            (f"{where}.apiGroups", of_resources.api_groups),
            (f"{where}.resources", of_resources.resources),
        )
        if not of_resources.cluster_scope:
            lists.append((f"{where}.namespaces", of_resources.namespaces))
    for index, of_paths in enumerate(rule.non_resource_rules):
        where = f"{path}.nonResourceRules[{index}]"
        lists += ((f"{where}.verbs", of_paths.verbs), (f"{where}.nonResourceURLs", of_paths.non_resource_urls))
    for field, values in lists:
        if not values:
            yield FieldError(field, "[]", "at least one is required", MISSING)


def _check_rule_numbers(schema: FlowSchema) -> Iterator[FieldError]:
    if len(schema.spec.rules) > MAX_RULES:
        yield FieldError("spec.rules", str(len(schema.spec.rules)), f"at most {MAX_RULES} are accepted")


def _default_priority_level(level: PriorityLevelConfiguration) -> PriorityLevelConfiguration:
    spec = level.spec
    if spec.type == EXEMPT:
        exempt = spec.exempt or ExemptPriorityLevelConfiguration()
        exempt = replace(
            exempt,
            nominal_concurrency_shares=exempt.nominal_concurrency_shares or 0,
            lendable_percent=exempt.lendable_percent or 0,
        )
        return replace(level, spec=replace(spec, exempt=exempt))
    if spec.limited is None:
        return level
    shares, response = spec.limited.nominal_concurrency_shares, spec.limited.limit_response
    if response.queuing is not None:
        queuing = response.queuing
        queuing = QueuingConfiguration(
            queues=queuing.queues or DEFAULT_QUEUES,
            hand_size=queuing.hand_size or 8,
            queue_length_limit=queuing.queue_length_limit or 50,
        )
        response = replace(response, queuing=queuing)
    limited = replace(
        spec.limited,
        nominal_concurrency_shares=30 if shares is None else shares,
        lendable_percent=spec.limited.lendable_percent or 0,
        limit_response=response,
    )
    return replace(level, spec=replace(spec, limited=limited))


def _validate_priority_level(level: PriorityLevelConfiguration) -> Iterator[FieldError]:
    spec = level.spec
    if spec.type not in (EXEMPT, LIMITED):
        yield from unsupported_values(("spec.type", spec.type or "-", (EXEMPT, LIMITED)))
        return
    if spec.type == EXEMPT and spec.limited is not None:
        yield FieldError("spec.limited", "given", "must be nil if the type is not Limited", FORBIDDEN)
    if spec.type == LIMITED and spec.exempt is not None:
        yield FieldError("spec.exempt", "given", "must be nil if the type is Limited", FORBIDDEN)
    if spec.type == LIMITED and spec.limited is None:
        yield FieldError("spec.limited", "null", "must not be empty when type is Limited", MISSING)
    for path, shares, lendable in (
        *((("spec.limited", spec.limited.nominal_concurrency_shares, spec.limited.lendable_percent),)
          if spec.limited is not None else ()),
        *((("spec.exempt", spec.exempt.nominal_concurrency_shares, spec.exempt.lendable_percent),)
          if spec.exempt is not None else ()),
    ):  # fmt: skip
        if (shares or 0) < 0:
            yield FieldError(f"{path}.nominalConcurrencyShares", quoted(shares), "must be a non-negative integer")
        if not 0 <= (lendable or 0) <= 100:
            yield FieldError(f"{path}.lendablePercent", quoted(lendable), "must be between 0 and 100, inclusive")
    if spec.limited is not None:
        yield from _validate_limit(spec.limited)


def _validate_limit(limited: LimitedPriorityLevelConfiguration) -> Iterator[FieldError]:
    path, response = "spec.limited.limitResponse", limited.limit_response
    if (limited.borrowing_limit_percent or 0) < 0:
        bad = quoted(limited.borrowing_limit_percent)
        yield FieldError("spec.limited.borrowingLimitPercent", bad, "if specified, must be a non-negative integer")
    if response.type not in (QUEUE, REJECT):
        yield from unsupported_values((f"{path}.type", response.type or "-", (QUEUE, REJECT)))
    elif response.type == QUEUE and response.queuing is None:
        yield FieldError(f"{path}.queuing", "null", "must not be empty if limited.limitResponse.type is Queue", MISSING)
    elif response.type == REJECT and response.queuing is not None:
        yield FieldError(
            f"{path}.queuing", "given", "must be nil if limited.limitResponse.type is not Queue", FORBIDDEN
        )
    if response.queuing is not None:
        queuing = response.queuing
        for field, number, maximum in (
            ("queueLengthLimit", queuing.queue_length_limit, (1 << 31) - 1),
            ("queues", queuing.queues, MAX_QUEUES),
            ("handSize", queuing.hand_size, queuing.queues or DEFAULT_QUEUES),
        ):
            if not 0 <= number <= maximum:
                yield FieldError(f"{path}.queuing.{field}", quoted(number), f"must be between 1 and {maximum}")


def _warning(_: object) -> Iterator[str]:
    yield WARNING


# --- resources --------------------------------------------------------------------------------------------------------


def _queuing_cell(level: PriorityLevelConfiguration, field: str) -> object:
    queuing = level.spec.limited.limit_response.queuing if level.spec.limited is not None else None
    return "<none>" if queuing is None else getattr(queuing, field)


def _shares(level: PriorityLevelConfiguration) -> object:
    part = level.spec.limited or level.spec.exempt
    return "<none>" if part is None else part.nominal_concurrency_shares


def _missing_level(schema: FlowSchema) -> str:
    return next((each.status for each in schema.status.conditions if each.type == "Dangling"), "?")


FLOW_SCHEMAS = Resource(
    type=FlowSchema,
    columns=(
        NAME,
        Column("PriorityLevel", "The priority level.", lambda schema, _: schema.spec.priority_level_configuration.name),
        Column("MatchingPrecedence", "The least one decides.", lambda schema, _: schema.spec.matching_precedence),
        Column(
            "DistinguisherMethod",
            "How requests are divided into flows.",
            lambda schema, _: none_if_empty((schema.spec.distinguisher_method or FlowDistinguisherMethod()).type),
        ),
        AGE,
        Column("MissingPL", "Whether the priority level is missing.", lambda schema, _: _missing_level(schema)),
    ),
    rules=KindRules(_default_flow_schema, _validate_flow_schema, warnings=_warning, check_numbers=_check_rule_numbers),
    spec=lambda schema: schema.spec,
)

PRIORITY_LEVEL_CONFIGURATIONS = Resource(
    type=PriorityLevelConfiguration,
    columns=(
        NAME,
        Column("Type", "Exempt or Limited.", lambda level, _: level.spec.type),
        Column("NominalConcurrencyShares", "The share in concurrent requests.", lambda level, _: _shares(level)),
        Column("Queues", "The number of queues.", lambda level, _: _queuing_cell(level, "queues")),
        Column("HandSize", "Queues of one flow.", lambda level, _: _queuing_cell(level, "hand_size")),
        Column(
            "QueueLengthLimit",
            "Requests that may wait in a queue.",
            lambda level, _: _queuing_cell(level, "queue_length_limit"),
        ),
        AGE,
    ),
    rules=KindRules(_default_priority_level, _validate_priority_level, warnings=_warning),
    spec=lambda level: level.spec,
)

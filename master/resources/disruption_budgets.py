"""PodDisruptionBudget (v1 and v1beta1), the pods that it covers, and conditions of disruption. Pure.

Components of Kubernetes before 1.21 use policy/v1beta1. An empty selector selects no pods in that version, and all pods
in v1.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated

from msgspec.structs import replace

from api.core.pod import Pod
from api.meta.schema import FieldError, quoted, unsupported_values
from api.meta.selectors import LabelSelector, LabelSelectorRequirement, check_selector, compile_selector
from api.meta.types import Condition, Object, StatusCondition, Value, merge_keys
from api.meta.values import Int32, IntOrString, Time
from api.validation.registry import KindRules
from master.resources.metadata import format_time
from master.resources.pod_template import int_or_percent, validate_int_or_percent
from master.resources.printing import AGE, NAME
from master.resources.resource import Column, Resource, Version

IF_HEALTHY, ALWAYS = "IfHealthyBudget", "AlwaysAllow"


class PodDisruptionBudgetSpec(Value, frozen=True):
    """The desired state.

    Either `minAvailable` or `maxUnavailable` is set: a number of pods, or a percentage. An empty selector selects every
    pod of the project, a missing one selects none. `unhealthyPodEvictionPolicy` is IfHealthyBudget (the default) or
    AlwaysAllow.
    """

    min_available: IntOrString | None = None
    selector: LabelSelector | None = None
    max_unavailable: IntOrString | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PodDisruptionBudgetStatus(Value, frozen=True, omit_defaults=False):
    """The actual state.

    `disruptedPods` are the pods whose eviction was allowed and that still exist, with the time of that decision (RFC
    3339).
    """

    observed_generation: int = 0
    disrupted_pods: dict[str, Time] = {}
    disruptions_allowed: Int32 = 0
    current_healthy: Int32 = 0
    desired_healthy: Int32 = 0
    expected_pods: Int32 = 0
    conditions: Annotated[tuple[StatusCondition, ...], merge_keys("type")] = ()


class PodDisruptionBudget(Object, frozen=True):
    """Denies evictions of the selected pods while too few of them are healthy."""

    API_VERSION = "policy/v1"
    KIND = "PodDisruptionBudget"
    PLURAL = "poddisruptionbudgets"
    NAMESPACED = True

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


def _validate_disruption_budget(budget: PodDisruptionBudget) -> Iterator[FieldError]:
    spec = budget.spec
    if spec.min_available is not None and spec.max_unavailable is not None:
        text = quoted({"minAvailable": spec.min_available, "maxUnavailable": spec.max_unavailable})
        yield FieldError("spec", text, "minAvailable and maxUnavailable cannot be both set")
    for name, value in (("minAvailable", spec.min_available), ("maxUnavailable", spec.max_unavailable)):
        if wrong := _int_or_percent_problem(value):
            yield FieldError(f"spec.{name}", quoted(value), wrong)
    yield from check_selector("spec.selector", spec.selector or LabelSelector())
    policy = spec.unhealthy_pod_eviction_policy
    yield from unsupported_values(("spec.unhealthyPodEvictionPolicy", policy or "", (IF_HEALTHY, ALWAYS)))


def _int_or_percent_problem(value: int | str | None) -> str:
    """Return why a number of pods is not valid; empty if it is."""
    if isinstance(value, int):
        return "" if value >= 0 else "must be greater than or equal to 0"
    if any(validate_int_or_percent("", value)):
        return "must be an integer or percentage (e.g '5%')"
    return "" if int_or_percent(value, 100, up=False) <= 100 else "must not be greater than 100%"


POD_DISRUPTION_BUDGETS = Resource(
    type=PodDisruptionBudget,
    short_names=("pdb",),
    columns=(
        NAME,
        Column(
            "Min Available",
            "Number or percentage of pods that must be healthy.",
            lambda budget, _: "N/A" if budget.spec.min_available is None else str(budget.spec.min_available),
        ),
        Column(
            "Max Unavailable",
            "Number or percentage of pods that may be missing.",
            lambda budget, _: "N/A" if budget.spec.max_unavailable is None else str(budget.spec.max_unavailable),
        ),
        Column(
            "Allowed Disruptions",
            "Number of pods that may be evicted now.",
            lambda budget, _: budget.status.disruptions_allowed,
            type="integer",
        ),
        AGE,
    ),
    spec=lambda budget: budget.spec,
    rules=KindRules(validate=_validate_disruption_budget),
    acted_on_by="the master, when a pod is evicted",
)

EVERY_POD = LabelSelector(
    match_expressions=(
        LabelSelectorRequirement(
            key="pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match", operator="DoesNotExist"
        ),
    )
)
"""Takes every pod, as Kubernetes says it in this form."""


class PodDisruptionBudgetV1beta1(Object, frozen=True):
    """Denies evictions of the selected pods while too few of them are healthy."""

    API_VERSION = "policy/v1beta1"
    KIND = "PodDisruptionBudget"
    PLURAL = "poddisruptionbudgets"
    NAMESPACED = True

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


def _disruption_budget_v1beta1_from_stored(budget: PodDisruptionBudget) -> PodDisruptionBudgetV1beta1:
    spec = replace(budget.spec, selector=EVERY_POD) if budget.spec.selector == LabelSelector() else budget.spec
    return PodDisruptionBudgetV1beta1(metadata=budget.metadata, spec=spec, status=budget.status)


def _disruption_budget_v1beta1_to_stored(budget: PodDisruptionBudgetV1beta1) -> PodDisruptionBudget:
    selector, spec = budget.spec.selector, budget.spec
    if selector == EVERY_POD:
        spec = replace(spec, selector=LabelSelector())
    elif selector == LabelSelector():
        spec = replace(spec, selector=None)
    return PodDisruptionBudget(metadata=budget.metadata, spec=spec, status=budget.status)


def _validate_disruption_budget_v1beta1(budget: PodDisruptionBudgetV1beta1) -> Iterator[FieldError]:
    yield from POD_DISRUPTION_BUDGETS.rules.validate(_disruption_budget_v1beta1_to_stored(budget))


POD_DISRUPTION_BUDGETS_V1BETA1 = Resource(
    type=PodDisruptionBudgetV1beta1,
    short_names=POD_DISRUPTION_BUDGETS.short_names,
    columns=POD_DISRUPTION_BUDGETS.columns,
    spec=lambda budget: budget.spec,
    rules=KindRules(validate=_validate_disruption_budget_v1beta1),
    stored_as=Version(
        POD_DISRUPTION_BUDGETS, _disruption_budget_v1beta1_from_stored, _disruption_budget_v1beta1_to_stored
    ),
)


DISRUPTION_ALLOWED = "DisruptionAllowed"
SUFFICIENT_PODS, INSUFFICIENT_PODS, SYNC_FAILED = "SufficientPods", "InsufficientPods", "SyncFailed"

DISRUPTION_TARGET = "DisruptionTarget"


def covers(budget: PodDisruptionBudget, pod: Pod) -> bool:
    """Return whether the budget selects a pod."""
    selector = budget.spec.selector
    same = pod.metadata.namespace == budget.metadata.namespace
    return same and selector is not None and compile_selector(selector).matches(pod.metadata.labels)


def with_disruption_target(pod: Pod, reason: str, message: str, now: datetime.datetime) -> Pod:
    """Return the pod with the condition DisruptionTarget; the first reason is kept."""
    if any(condition.type == DISRUPTION_TARGET and condition.status == "True" for condition in pod.status.conditions):
        return pod
    condition = Condition(
        type=DISRUPTION_TARGET, status="True", reason=reason, message=message, last_transition_time=format_time(now)
    )
    others = (other for other in pod.status.conditions if other.type != DISRUPTION_TARGET)
    return replace(pod, status=replace(pod.status, conditions=(*others, condition)))


def with_condition(status: PodDisruptionBudgetStatus, now: datetime.datetime) -> PodDisruptionBudgetStatus:
    """Return the status with the condition that follows from its numbers."""
    reason = SUFFICIENT_PODS if status.disruptions_allowed else INSUFFICIENT_PODS
    return replace(status, conditions=budget_conditions(status, reason, "", now))


def budget_conditions(
    status: PodDisruptionBudgetStatus, reason: str, message: str, now: datetime.datetime
) -> tuple[StatusCondition, ...]:
    """Return the conditions with DisruptionAllowed set for this reason."""
    old = next((condition for condition in status.conditions if condition.type == DISRUPTION_ALLOWED), None)
    good = str(reason == SUFFICIENT_PODS)
    condition = StatusCondition(
        type=DISRUPTION_ALLOWED,
        status=good,
        reason=reason,
        message=message,
        observed_generation=status.observed_generation,
        last_transition_time=old.last_transition_time if old and old.status == good else format_time(now),
    )
    return (*(other for other in status.conditions if other.type != DISRUPTION_ALLOWED), condition)

"""PodDisruptionBudgets: the pods that they cover, and their conditions. Pure."""

from __future__ import annotations

import datetime

from msgspec.structs import replace

from api.core.pod import Pod
from api.meta.selectors import selector
from api.meta.types import Condition, StatusCondition
from master.kinds.kind import show_time
from master.kinds.pod_disruption_budget import PodDisruptionBudget, PodDisruptionBudgetStatus

DISRUPTION_ALLOWED = "DisruptionAllowed"
SUFFICIENT_PODS, INSUFFICIENT_PODS, SYNC_FAILED = "SufficientPods", "InsufficientPods", "SyncFailed"

DISRUPTION_TARGET = "DisruptionTarget"


def covers(budget: PodDisruptionBudget, pod: Pod) -> bool:
    """Whether a pod is one of those that the budget is about."""
    wish = budget.spec.selector
    same = pod.metadata.namespace == budget.metadata.namespace
    return same and wish is not None and selector(wish).matches(pod.metadata.labels)


def with_disruption_target(pod: Pod, reason: str, message: str, now: datetime.datetime) -> Pod:
    """The pod with the condition that says why somebody ends it; the first who does has the word."""
    if any(row.type == DISRUPTION_TARGET and row.status == "True" for row in pod.status.conditions):
        return pod
    row = Condition(
        type=DISRUPTION_TARGET, status="True", reason=reason, message=message, last_transition_time=show_time(now)
    )
    others = (other for other in pod.status.conditions if other.type != DISRUPTION_TARGET)
    return replace(pod, status=replace(pod.status, conditions=(*others, row)))


def with_condition(status: PodDisruptionBudgetStatus, now: datetime.datetime) -> PodDisruptionBudgetStatus:
    """The status with the condition that its numbers mean."""
    reason = SUFFICIENT_PODS if status.disruptions_allowed else INSUFFICIENT_PODS
    return replace(status, conditions=budget_conditions(status, reason, "", now))


def budget_conditions(
    status: PodDisruptionBudgetStatus, reason: str, message: str, now: datetime.datetime
) -> tuple[StatusCondition, ...]:
    """Return the conditions with DisruptionAllowed set for this reason."""
    old = next((row for row in status.conditions if row.type == DISRUPTION_ALLOWED), None)
    good = str(reason == SUFFICIENT_PODS)
    row = StatusCondition(
        type=DISRUPTION_ALLOWED,
        status=good,
        reason=reason,
        message=message,
        observed_generation=status.observed_generation,
        last_transition_time=old.last_transition_time if old and old.status == good else show_time(now),
    )
    return (*(other for other in status.conditions if other.type != DISRUPTION_ALLOWED), row)

"""How many pods of each disruption budget are healthy, and how many may be evicted. Pure.

The numbers are those of the reference: how many pods there ought to be is told by their controllers, as far as a part
in percent or a number that may be missing needs it.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from api.core.pod import Pod
from api.meta.selectors import selector
from api.meta.types import Condition, Object, StatusCondition
from master.controllers.dependents import controller_of
from master.kinds import BY_NAME
from master.kinds.kind import parse_time, show_time
from master.kinds.pod import is_ready
from master.kinds.pod_disruption_budget import PodDisruptionBudget, PodDisruptionBudgetStatus
from master.kinds.workload import share
from master.writing.outcomes import Change

ALLOWED = "DisruptionAllowed"
ENOUGH, TOO_FEW, FAILED = "SufficientPods", "InsufficientPods", "SyncFailed"

TARGET = "DisruptionTarget"

PROMISE = datetime.timedelta(minutes=2)
"""How long somebody's promise to end a pod is believed."""


class Unknown(Exception):
    """It cannot be told how many pods there ought to be; the text is for the condition."""


def covers(budget: PodDisruptionBudget, pod: Pod) -> bool:
    """Whether a pod is one of those that the budget is about."""
    wish = budget.spec.selector
    same = pod.metadata.namespace == budget.metadata.namespace
    return same and wish is not None and selector(wish).matches(pod.metadata.labels)


def disrupted(pod: Pod, reason: str, message: str, now: datetime.datetime) -> Pod:
    """The pod with the condition that says why somebody ends it; the first who does has the word."""
    if any(row.type == TARGET and row.status == "True" for row in pod.status.conditions):
        return pod
    row = Condition(type=TARGET, status="True", reason=reason, message=message, last_transition_time=show_time(now))
    others = (other for other in pod.status.conditions if other.type != TARGET)
    return replace(pod, status=replace(pod.status, conditions=(*others, row)))


def passes(
    budgets: Iterable[PodDisruptionBudget], pods: Iterable[Pod], scaled: Iterable[Object], now: datetime.datetime
) -> Iterator[Change]:
    """The status of each budget, where it is news. `scaled` are all objects that say how many pods they want."""
    owners = {item.metadata.uid: item for item in scaled}
    by_namespace: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        by_namespace[pod.metadata.namespace].append(pod)
    for budget in budgets:
        mine = [pod for pod in by_namespace[budget.metadata.namespace] if covers(budget, pod)]
        status = _status(budget, mine, owners, now)
        if status != budget.status:
            yield Change(replace(budget, status=status), budget)


def _status(
    budget: PodDisruptionBudget, pods: list[Pod], owners: Mapping[str, Object], now: datetime.datetime
) -> PodDisruptionBudgetStatus:
    old = replace(budget.status, observed_generation=budget.metadata.generation)
    try:
        expected, desired = _wanted(budget, pods, owners)
    except Unknown as error:
        failed = replace(old, disruptions_allowed=0)
        return replace(failed, conditions=_conditions(failed, FAILED, str(error), now))
    promised = _promised(budget, pods, now)
    healthy = sum(
        is_ready(pod) and not pod.metadata.deletion_timestamp and pod.metadata.name not in promised for pod in pods
    )
    counted = replace(
        old,
        disrupted_pods=promised,
        disruptions_allowed=max(0, healthy - desired) if expected else 0,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=expected,
    )
    return told(counted, now)


def told(status: PodDisruptionBudgetStatus, now: datetime.datetime) -> PodDisruptionBudgetStatus:
    """The status with the condition that its numbers mean."""
    reason = ENOUGH if status.disruptions_allowed else TOO_FEW
    return replace(status, conditions=_conditions(status, reason, "", now))


def _conditions(
    status: PodDisruptionBudgetStatus, reason: str, message: str, now: datetime.datetime
) -> tuple[StatusCondition, ...]:
    old = next((row for row in status.conditions if row.type == ALLOWED), None)
    good = str(reason == ENOUGH)
    row = StatusCondition(
        type=ALLOWED,
        status=good,
        reason=reason,
        message=message,
        observed_generation=status.observed_generation,
        last_transition_time=old.last_transition_time if old and old.status == good else show_time(now),
    )
    return (*(other for other in status.conditions if other.type != ALLOWED), row)


def _promised(budget: PodDisruptionBudget, pods: Iterable[Pod], now: datetime.datetime) -> dict[str, str]:
    """Of the pods that are still there, those that somebody promised to end not long ago."""
    there = {pod.metadata.name for pod in pods if not pod.metadata.deletion_timestamp}
    found = {name: parse_time(since) for name, since in budget.status.disrupted_pods.items() if name in there}
    return {name: show_time(since) for name, since in found.items() if since is not None and now < since + PROMISE}


# --- how many there ought to be ---------------------------------------------------------------------------------------


def _wanted(budget: PodDisruptionBudget, pods: list[Pod], owners: Mapping[str, Object]) -> tuple[int, int]:
    """(pods that there ought to be, pods that must be healthy). Raises Unknown."""
    spec = budget.spec
    if spec.max_unavailable is not None:
        expected = _expected(pods, owners)
        return expected, max(0, expected - share(spec.max_unavailable, expected, up=True))
    if isinstance(spec.min_available, int):
        return len(pods), spec.min_available
    if spec.min_available is None:
        return 0, 0
    expected = _expected(pods, owners)
    return expected, share(spec.min_available, expected, up=True)


def _expected(pods: Iterable[Pod], owners: Mapping[str, Object]) -> int:
    """What the controllers of these pods want together; pods without one are not counted."""
    scales: dict[str, int] = {}
    for pod in pods:
        owner: Object | None = None
        reference = controller_of(pod.metadata)
        while reference is not None and (above := owners.get(reference.uid)) is not None:
            owner, reference = above, controller_of(above.metadata)
        if owner is not None:
            scaling = BY_NAME[owner.KIND].scaling
            scales[owner.metadata.uid] = scaling.replicas(owner) if scaling else 0
        elif reference is not None:
            kind = BY_NAME.get(reference.kind)
            if kind is not None and kind.scaling is None:
                what = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
                raise Unknown(f"{what} does not implement the scale subresource")
            raise Unknown(f'found no controllers for pod "{pod.metadata.name}"')
    return sum(scales.values())

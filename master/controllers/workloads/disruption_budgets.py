"""Status of PodDisruptionBudgets: healthy pods, and disruptions allowed. Pure.

The numbers are those of Kubernetes. Percentages and maxUnavailable are relative to the number of pods that the
controllers of the pods expect.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from api.core.pod import Pod
from api.meta.types import Object
from master.controllers.actions import Action, Failed, Update, isolate_errors
from master.controllers.context import Lister
from master.resources.disruption_budgets import (
    SYNC_FAILED,
    PodDisruptionBudget,
    PodDisruptionBudgetStatus,
    budget_conditions,
    covers,
    with_condition,
)
from master.resources.metadata import controller_of, format_time, parse_time
from master.resources.pod_template import int_or_percent
from master.resources.pods import is_pod_ready
from master.resources.scheme import BY_KIND, STORED

DISRUPTION_TIMEOUT = datetime.timedelta(minutes=2)
"""How long an evicted pod that is not yet deleted counts as disrupted."""


class ExpectedCountUnknown(Exception):
    """The expected number of pods cannot be determined; the text is for the condition."""


def reconcile(
    budgets: Iterable[PodDisruptionBudget], pods: Iterable[Pod], scalable: Iterable[Object], now: datetime.datetime
) -> Iterator[Update | Failed]:
    """Yield the changed status of budgets. `scalable` are all objects with a scale."""
    owners = {obj.metadata.uid: obj for obj in scalable}
    by_namespace: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        by_namespace[pod.metadata.namespace].append(pod)

    def sync_budget(budget: PodDisruptionBudget) -> Iterator[Update]:
        covered = [pod for pod in by_namespace[budget.metadata.namespace] if covers(budget, pod)]
        status = _status(budget, covered, owners, now)
        if status != budget.status:
            yield Update(replace(budget, status=status), budget)

    return isolate_errors(budgets, sync_budget)


def _status(
    budget: PodDisruptionBudget, pods: list[Pod], owners: Mapping[str, Object], now: datetime.datetime
) -> PodDisruptionBudgetStatus:
    old = replace(budget.status, observed_generation=budget.metadata.generation)
    try:
        expected, desired = _desired_healthy(budget, pods, owners)
    except ExpectedCountUnknown as error:
        failed = replace(old, disruptions_allowed=0)
        return replace(failed, conditions=budget_conditions(failed, SYNC_FAILED, str(error), now))
    pending = _pending_disruptions(budget, pods, now)
    healthy = sum(
        is_pod_ready(pod) and not pod.metadata.deletion_timestamp and pod.metadata.name not in pending for pod in pods
    )
    counted = replace(
        old,
        disrupted_pods=pending,
        disruptions_allowed=max(0, healthy - desired) if expected else 0,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=expected,
    )
    return with_condition(counted, now)


def _pending_disruptions(budget: PodDisruptionBudget, pods: Iterable[Pod], now: datetime.datetime) -> dict[str, str]:
    """Return the evicted pods that still exist, within DISRUPTION_TIMEOUT."""
    names = {pod.metadata.name for pod in pods if not pod.metadata.deletion_timestamp}
    disrupted = {name: parse_time(since) for name, since in budget.status.disrupted_pods.items() if name in names}
    return {
        name: format_time(since)
        for name, since in disrupted.items()
        if since is not None and now < since + DISRUPTION_TIMEOUT
    }


# --- how many there ought to be ---------------------------------------------------------------------------------------


def _desired_healthy(budget: PodDisruptionBudget, pods: list[Pod], owners: Mapping[str, Object]) -> tuple[int, int]:
    """Return (expected pods, pods that must be healthy). Raises ExpectedCountUnknown."""
    spec = budget.spec
    if spec.max_unavailable is not None:
        expected = _expected_pods(pods, owners)
        return expected, max(0, expected - int_or_percent(spec.max_unavailable, expected, up=True))
    if isinstance(spec.min_available, int):
        return len(pods), spec.min_available
    if spec.min_available is None:
        return 0, 0
    expected = _expected_pods(pods, owners)
    return expected, int_or_percent(spec.min_available, expected, up=True)


def _expected_pods(pods: Iterable[Pod], owners: Mapping[str, Object]) -> int:
    """Return how many pods the controllers of these pods expect; pods without one are not counted."""
    scales: dict[str, int] = {}
    for pod in pods:
        owner: Object | None = None
        reference = controller_of(pod.metadata)
        while reference is not None and (parent := owners.get(reference.uid)) is not None:
            owner, reference = parent, controller_of(parent.metadata)
        if owner is not None:
            scaling = BY_KIND[owner.KIND].scale
            scales[owner.metadata.uid] = scaling.replicas(owner) if scaling else 0
        elif reference is not None:
            resource = BY_KIND.get(reference.kind)
            if resource is not None and resource.scale is None:
                name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
                raise ExpectedCountUnknown(f"{name} does not implement the scale subresource")
            raise ExpectedCountUnknown(f'found no controllers for pod "{pod.metadata.name}"')
    return sum(scales.values())


SCALABLE_RESOURCES = tuple(resource.group_resource for resource in STORED if resource.scale is not None)
"""Resources with a scale."""


def sync_disruption_budgets(lister: Lister) -> Iterable[Action]:
    """Update the status of all PodDisruptionBudgets."""
    if not (budgets := lister.list(PodDisruptionBudget)):
        return ()
    scalable = [obj for resource in SCALABLE_RESOURCES for obj in lister.list_resource(resource)]
    return reconcile(budgets, lister.list(Pod), scalable, lister.now)

"""Whether a pod may be evicted, by the disruption budgets that cover it. Pure. Raises `answers.Failure`.

The budget is drawn on in the same write that ends the pod, so no two evictions ever spend the same disruption.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from api.core.pod import FINAL_PHASES, Pod
from api.meta.schema import without_nulls
from api.meta.types import Object, StatusCause, StatusDetails
from master.controllers.workloads.disruptions import ALLOWED, FAILED, covers, disrupted, told
from master.kinds.pod import is_ready
from master.kinds.pod_disruption_budget import ALWAYS, POD_DISRUPTION_BUDGET, PodDisruptionBudget
from master.wire import answers
from master.writing.writes import DeleteOptions

VERSIONS = ("", "policy/v1", "policy/v1beta1")
CAUSE = "DisruptionBudget"
WAIT_SECONDS = 10
"""After which a client may ask again, where a budget has not been looked at since it was changed."""

MOST_PROMISED = 2000


class Eviction(Object, frozen=True):
    """Asks for the end of a pod, if its disruption budgets allow it."""

    API_VERSION = "policy/v1"
    KIND = "Eviction"

    delete_options: DeleteOptions | None = None


def read(name: str, document: Any) -> Eviction:
    """The Eviction in a body."""
    try:
        found = msgspec.convert(without_nulls(document), Eviction)
    except msgspec.ValidationError as error:
        raise answers.bad_request(f"the body is not an Eviction: {error}") from error
    if found.kind not in ("", Eviction.KIND) or found.api_version not in VERSIONS:
        raise answers.bad_request(
            f"the body is a {found.kind} of {found.api_version}; Eviction of policy/v1 is accepted"
        )
    if found.metadata.name != name:
        raise answers.bad_request("name in URL does not match name in Eviction object")
    return found


def drawn_on(pod: Pod, budgets: Iterable[PodDisruptionBudget], now: datetime.datetime) -> PodDisruptionBudget | None:
    """The budget as it is after the eviction of this pod, None if it costs nothing."""
    if pod.status.phase in (*FINAL_PHASES, "Pending") or pod.metadata.deletion_timestamp:
        return None
    covering = [budget for budget in budgets if covers(budget, pod)]
    if len(covering) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise answers.failure(500, "", message)
    if not covering or _is_free(pod, covering[0]):
        return None
    (budget,) = covering
    _check(budget)
    left = replace(budget.status, disruptions_allowed=budget.status.disruptions_allowed - 1)
    return replace(budget, status=told(left, now))


def _is_free(pod: Pod, budget: PodDisruptionBudget) -> bool:
    """A pod that is not healthy costs nothing, where the budget says so or enough others are."""
    if is_ready(pod):
        return False
    status = budget.status
    enough = status.current_healthy >= status.desired_healthy > 0
    return enough or budget.spec.unhealthy_pod_eviction_policy == ALWAYS


def _check(budget: PodDisruptionBudget) -> None:
    name, status = budget.metadata.name, budget.status
    if status.observed_generation < budget.metadata.generation:
        raise _too_many(f"The disruption budget {name} is still being processed by the server.", WAIT_SECONDS)
    if status.disruptions_allowed < 0:
        raise _forbidden(name, "pdb disruptions allowed is negative", "pdb disruptions allowed is negative")
    if len(status.disrupted_pods) > MOST_PROMISED:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise _forbidden(name, why, "too many pending evictions not confirmed by PDB controller")
    if status.disruptions_allowed == 0:
        raise _too_many(_why_not(budget))


def _why_not(budget: PodDisruptionBudget) -> str:
    name, status = budget.metadata.name, budget.status
    row = next(
        (row for row in status.conditions if row.type == ALLOWED and row.status == "False" and row.message), None
    )
    if row is not None and row.reason == FAILED:
        return (
            f"The disruption budget {name} does not allow evicting pods currently because it failed sync: {row.message}"
        )
    if status.current_healthy <= status.desired_healthy:
        return (
            f"The disruption budget {name} needs {status.desired_healthy} healthy pods and has "
            f"{status.current_healthy} currently"
        )
    return f"The disruption budget {name} does not allow evicting pods currently"


def _too_many(why: str, seconds: int = 0) -> answers.Failure:
    """429. Without seconds it is the client that decides how long it waits, as kubectl tells its user."""
    details = StatusDetails(causes=(StatusCause(reason=CAUSE, message=why),), retry_after_seconds=seconds)
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return answers.failure(429, "TooManyRequests", message, details)


def _forbidden(name: str, why: str, cause: str) -> answers.Failure:
    words = f"The disruption budget {name} does not allow evicting pods currently: {cause}"
    return answers.forbidden(POD_DISRUPTION_BUDGET, name, why, [StatusCause(reason=CAUSE, message=words)])


def marked(pod: Pod, now: datetime.datetime) -> Pod:
    """The pod with the condition that says why it ends."""
    return disrupted(pod, "EvictionByEvictionAPI", "Eviction API: evicting", now)

"""The subresources pods/binding and pods/eviction.

An eviction charges the disruption budget in the same write that ends the pod, so two evictions never use the same
allowed disruption.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from api.core.node import Binding, Node
from api.core.pod import FINAL_PHASES, Pod
from api.meta.schema import without_nulls
from api.meta.types import Condition, Object, StatusCause, StatusDetails
from master import errors
from master.registry import strategy
from master.registry.guaranteed_update import WriteDecision
from master.registry.registry import Registry
from master.registry.request import DeleteOptions, Request, Response, dry_run
from master.resources.disruption_budgets import (
    ALWAYS,
    DISRUPTION_ALLOWED,
    POD_DISRUPTION_BUDGETS,
    SYNC_FAILED,
    PodDisruptionBudget,
    covers,
    with_condition,
    with_disruption_target,
)
from master.resources.metadata import format_time
from master.resources.pods import PODS, is_pod_ready
from master.resources.resource import AnyResource
from master.resources.scheme import group_resource
from master.storage.interface import Delete, Key, Put, Record, Storage

# --- binding ----------------------------------------------------------------------------------------------------------


def bind(resource: AnyResource, pod: Pod, binding: Binding, now: datetime.datetime) -> Pod:
    """Return the pod, bound to the node that the Binding names."""
    name, metadata, target = pod.metadata.name, binding.metadata, binding.target
    if metadata.name not in ("", name):
        raise errors.bad_request("name in URL does not match name in Binding object")
    if target is None or target.kind not in ("", "Node") or not target.name:
        raise errors.bad_request("the Binding has no target of kind Node with a name")
    if metadata.uid not in ("", pod.metadata.uid):
        raise errors.uid_conflict(resource, name, metadata.uid, pod.metadata.uid)
    if pod.metadata.deletion_timestamp:
        raise errors.conflict(resource, name, "the pod is being deleted and cannot be assigned to a node")
    if pod.spec.node_name:
        raise errors.conflict(resource, name, f"the pod is already assigned to node {pod.spec.node_name!r}")
    return with_node(pod, target.name, now)


def with_node(pod: Pod, node: str, now: datetime.datetime) -> Pod:
    """Return the pod on that node, with the condition PodScheduled."""
    scheduled = Condition(type="PodScheduled", status="True", last_transition_time=format_time(now))
    conditions = (*(condition for condition in pod.status.conditions if condition.type != "PodScheduled"), scheduled)
    return msgspec.structs.replace(
        pod,
        spec=msgspec.structs.replace(pod.spec, node_name=node),
        status=msgspec.structs.replace(pod.status, conditions=conditions, nominated_node_name=""),
    )


EVICTION_VERSIONS = ("", "policy/v1", "policy/v1beta1")
BUDGET_CAUSE = "DisruptionBudget"
EVICTION_RETRY_SECONDS = 10
"""After which a client may ask again, where a budget has not been looked at since it was changed."""

MAX_DISRUPTED_PODS = 2000


class Eviction(Object, frozen=True):
    """Ends a pod if its disruption budgets allow it."""

    API_VERSION = "policy/v1"
    KIND = "Eviction"

    delete_options: DeleteOptions | None = None


def decode_eviction(name: str, document: Any) -> Eviction:
    """Return the Eviction in a body."""
    try:
        eviction = msgspec.convert(without_nulls(document), Eviction)
    except msgspec.ValidationError as error:
        raise errors.bad_request(f"the body is not an Eviction: {error}") from error
    if eviction.kind not in ("", Eviction.KIND) or eviction.api_version not in EVICTION_VERSIONS:
        raise errors.bad_request(
            f"the body is a {eviction.kind} of {eviction.api_version}; Eviction of policy/v1 is accepted"
        )
    if eviction.metadata.name != name:
        raise errors.bad_request("name in URL does not match name in Eviction object")
    return eviction


def budget_after_eviction(
    pod: Pod, budgets: Iterable[PodDisruptionBudget], now: datetime.datetime
) -> PodDisruptionBudget | None:
    """Return the budget as it is after the eviction of this pod; None if the eviction is not charged to it."""
    if pod.status.phase in (*FINAL_PHASES, "Pending") or pod.metadata.deletion_timestamp:
        return None
    covering = [budget for budget in budgets if covers(budget, pod)]
    if len(covering) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise errors.status_error(500, "", message)
    if not covering or _costs_nothing(pod, covering[0]):
        return None
    (budget,) = covering
    _check_budget(budget)
    status = replace(budget.status, disruptions_allowed=budget.status.disruptions_allowed - 1)
    return replace(budget, status=with_condition(status, now))


def _costs_nothing(pod: Pod, budget: PodDisruptionBudget) -> bool:
    """Return whether the eviction of an unhealthy pod is not charged to the budget.

    The policy of the budget may say so, or enough pods are healthy.
    """
    if is_pod_ready(pod):
        return False
    status = budget.status
    enough = status.current_healthy >= status.desired_healthy > 0
    return enough or budget.spec.unhealthy_pod_eviction_policy == ALWAYS


def _check_budget(budget: PodDisruptionBudget) -> None:
    name, status = budget.metadata.name, budget.status
    if status.observed_generation < budget.metadata.generation:
        raise _too_many_requests(
            f"The disruption budget {name} is still being processed by the server.", EVICTION_RETRY_SECONDS
        )
    if status.disruptions_allowed < 0:
        raise _budget_forbids(name, "pdb disruptions allowed is negative", "pdb disruptions allowed is negative")
    if len(status.disrupted_pods) > MAX_DISRUPTED_PODS:
        reason = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise _budget_forbids(name, reason, "too many pending evictions not confirmed by PDB controller")
    if status.disruptions_allowed == 0:
        raise _too_many_requests(_no_disruption_reason(budget))


def _no_disruption_reason(budget: PodDisruptionBudget) -> str:
    name, status = budget.metadata.name, budget.status
    disallowed = next(
        (
            condition
            for condition in status.conditions
            if condition.type == DISRUPTION_ALLOWED and condition.status == "False" and condition.message
        ),
        None,
    )
    if disallowed is not None and disallowed.reason == SYNC_FAILED:
        return (
            f"The disruption budget {name} does not allow evicting pods currently because it failed sync: "
            f"{disallowed.message}"
        )
    if status.current_healthy <= status.desired_healthy:
        return (
            f"The disruption budget {name} needs {status.desired_healthy} healthy pods and has "
            f"{status.current_healthy} currently"
        )
    return f"The disruption budget {name} does not allow evicting pods currently"


def _too_many_requests(reason: str, seconds: int = 0) -> errors.StatusError:
    """Return 429. Without seconds the client decides how long it waits, as kubectl tells its user."""
    details = StatusDetails(causes=(StatusCause(reason=BUDGET_CAUSE, message=reason),), retry_after_seconds=seconds)
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return errors.status_error(429, "TooManyRequests", message, details)


def _budget_forbids(name: str, reason: str, cause: str) -> errors.StatusError:
    words = f"The disruption budget {name} does not allow evicting pods currently: {cause}"
    return errors.forbidden(POD_DISRUPTION_BUDGETS, name, reason, [StatusCause(reason=BUDGET_CAUSE, message=words)])


def with_eviction_condition(pod: Pod, now: datetime.datetime) -> Pod:
    """Return the pod with the condition that gives the reason of its end."""
    return with_disruption_target(pod, "EvictionByEvictionAPI", "Eviction API: evicting", now)


DISRUPTION_BUDGETS = group_resource(PodDisruptionBudget)


class PodActions:
    """Binds and evicts pods. Raises `errors.StatusError`, and NotReady when the store rejects a write."""

    def __init__(self, storage: Storage, clock: Callable[[], datetime.datetime], registry: Registry) -> None:
        self._store = storage
        self._clock = clock
        self._registry = registry

    async def bind(self, request: Request) -> Response:
        """Serve POST pods/NAME/binding, and POST bindings, where only the body names the pod."""
        try:
            binding = msgspec.convert(request.body, Binding)
        except msgspec.ValidationError as error:
            raise errors.bad_request(f"the body is not a Binding: {error}") from error
        name = request.info.name or binding.metadata.name

        def decide() -> WriteDecision[Response]:
            old = self._old(request.info.namespace, name)
            self._registry.admit_action(request, old.object)
            pod = bind(PODS, old.object, binding, self._clock())
            return WriteDecision(_created, (Put(old.key, pod, expect=old.revision),), dry_run(request.query))

        return await self._registry.decide_action(request, decide)

    async def evict(self, request: Request) -> Response:
        """Serve POST pods/NAME/eviction. The budget is charged in the write that ends the pod."""
        return await self._registry.decide_action(request, lambda: self._decide_eviction(request))

    def _decide_eviction(self, request: Request) -> WriteDecision[Response]:
        now, old = self._clock(), self._old(request.info.namespace, request.info.name)
        options = decode_eviction(request.info.name, request.body).delete_options or DeleteOptions()
        pod: Pod = old.object
        strategy.check_preconditions(PODS, pod, options)
        self._registry.admit_action(request, pod, is_dry_run=bool(options.dry_run))
        budgets = self._store.list_uncommitted(DISRUPTION_BUDGETS, pod.metadata.namespace)
        budget = budget_after_eviction(pod, (record.object for record in budgets), now)
        remaining = strategy.prepare_delete(PODS, with_eviction_condition(pod, now), options, now, self._node_of(pod))
        changes: list[Put | Delete] = [
            Delete(old.key, pod, expect=old.revision)
            if remaining is None
            else Put(old.key, remaining, expect=old.revision)
        ]
        if budget is not None:
            revision = int(budget.metadata.resource_version)
            changes.append(Put(Key.of(DISRUPTION_BUDGETS, budget), budget, expect=revision))
        return WriteDecision(_created, tuple(changes), dry_run(request.query) or bool(options.dry_run))

    def _node_of(self, pod: Pod) -> Node | None:
        if not pod.spec.node_name:
            return None
        record = self._store.get_uncommitted(Key(group_resource(Node), "", pod.spec.node_name))
        return None if record is None else record.object

    def _old(self, namespace: str, name: str) -> Record:
        record = self._store.get_uncommitted(Key(group_resource(Pod), namespace, name))
        if record is None:
            raise errors.not_found(PODS, name)
        return record


def _created(_: tuple[Any, ...]) -> Response:
    return Response(201, errors.encode_status(errors.success(code=201)))

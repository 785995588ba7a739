"""The results of scheduling: bind, preempt, or mark as unschedulable. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial

from msgspec.structs import replace

from api.core.node import Namespace, Node
from api.core.pod import Pod
from api.core.storage import LocalVolume, PersistentVolume, PersistentVolumeClaim
from api.meta.selectors import compile_selector
from api.meta.types import Condition
from master.controllers import events
from master.controllers.actions import Action, Delete, Failed, Update, isolate_errors
from master.controllers.context import Lister
from master.controllers.events import SCHEDULER
from master.controllers.scheduling.algorithm import (
    Scheduled,
    Unschedulable,
    WaitingForVolumes,
    needs_scheduling,
    schedule,
)
from master.controllers.scheduling.preemption import ClusterView, Preemption, cluster_view, preemption
from master.controllers.scheduling.volume_binding import BINDING, NO_STORAGE, StorageObjects, VolumeBinder
from master.registry.pods import with_node
from master.resources.disruption_budgets import PodDisruptionBudget, with_disruption_target
from master.resources.metadata import format_time
from master.resources.volumes import StorageClass

MAX_PER_PASS = 500
"""Pods bound in one pass."""


def reconcile(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    namespaces: Iterable[Namespace],
    budgets: Iterable[PodDisruptionBudget],
    now: datetime.datetime,
    storage: StorageObjects = NO_STORAGE,
) -> Iterator[Action]:
    """Yield the actions for all pods that need a node.

    One pod preempts in a pass: the next pass sees which pods are terminating. At most MAX_PER_PASS pods are bound;
    their writes trigger the next pass, and client requests are served in between.
    """
    all_pods, all_nodes, all_namespaces = tuple(pods), tuple(nodes), tuple(namespaces)
    if not any(needs_scheduling(pod) for pod in all_pods):
        return
    failed_uids: set[str] = set()
    usable_budgets: list[PodDisruptionBudget] = []
    binder = VolumeBinder()

    def add_budget(budget: PodDisruptionBudget) -> tuple[()]:
        _check_budget(budget)
        usable_budgets.append(budget)
        return ()

    @cache
    def cluster() -> ClusterView:
        usable_nodes = (node for node in all_nodes if node.metadata.uid not in failed_uids)
        usable_pods = (pod for pod in all_pods if pod.metadata.uid not in failed_uids)
        return cluster_view(usable_nodes, usable_pods, all_namespaces, usable_budgets, binder)

    yield from isolate_errors(budgets, add_budget)
    bound, has_preempted = 0, False
    for result in schedule(all_nodes, all_pods, all_namespaces, storage, binder):
        if isinstance(result, Failed):
            failed_uids.add(result.object.metadata.uid)
            yield result
        elif isinstance(result, Scheduled):
            yield Update(with_node(result.pod, result.node, now), result.pod)
            yield events.scheduled(result.pod, result.node, now)
            bound += 1
            if bound == MAX_PER_PASS:
                return
        elif isinstance(result, WaitingForVolumes):
            yield from _wait_for_volumes(result, now)
        else:
            preempt = None if has_preempted else partial(preemption, cluster=cluster())
            for action in isolate_errors((result.pod,), partial(_unschedulable, result, preempt, now)):
                has_preempted |= isinstance(action, Delete)
                yield action


def _check_budget(budget: PodDisruptionBudget) -> None:
    """Compile the selector of a budget. Raises for a selector that cannot be read."""
    if budget.spec.selector is not None:
        compile_selector(budget.spec.selector)


def _wait_for_volumes(result: WaitingForVolumes, now: datetime.datetime) -> Iterator[Action]:
    """Yield the choices for the claims of a pod, and the pod with the reason if a volume is not provisioned."""
    yield from result.choices
    if result.problem:
        failure = Unschedulable(result.pod, BINDING + result.problem)
        yield from isolate_errors((result.pod,), partial(_unschedulable, failure, None, now))


def _unschedulable(
    result: Unschedulable, preempt: Callable[[Pod], Preemption | None] | None, now: datetime.datetime, pod: Pod
) -> Iterator[Action]:
    """Yield the deletion of the victims if the pod may preempt, and the pod with the reason why it waits."""
    victims = None if preempt is None else preempt(pod)
    pending = with_unschedulable(result, now)
    if victims is not None:
        pending = replace(pending, status=replace(pending.status, nominated_node_name=victims.node))
        yield from _preempt_victims(victims, now)
    if pending != pod:
        yield Update(pending, pod)
        yield events.failed_scheduling(pod, result.message, now)


def _preempt_victims(result: Preemption, now: datetime.datetime) -> Iterator[Action]:
    for victim in result.victims:
        message = f"{SCHEDULER}: preempting to accommodate a higher priority pod"
        yield Delete(with_disruption_target(victim, "PreemptionByScheduler", message, now))
        yield events.preempted(victim, result.pod, now)


def with_unschedulable(result: Unschedulable, now: datetime.datetime) -> Pod:
    """Return the pod with the condition that it is unschedulable; unchanged if it has the condition already."""
    pod = result.pod
    old = next((scheduled for scheduled in pod.status.conditions if scheduled.type == "PodScheduled"), None)
    if old is not None and (old.status, old.reason, old.message) == ("False", "Unschedulable", result.message):
        return pod
    since = old.last_transition_time if old is not None and old.status == "False" else format_time(now)
    scheduled = Condition(
        type="PodScheduled",
        status="False",
        reason="Unschedulable",
        message=result.message,
        last_transition_time=since,
    )
    conditions = (*(other for other in pod.status.conditions if other.type != "PodScheduled"), scheduled)
    return replace(pod, status=replace(pod.status, conditions=conditions))


def sync_scheduler(lister: Lister) -> Iterable[Action]:
    """Schedule the pods that have no node."""
    nodes, pods, budgets = lister.list(Node), lister.list(Pod), lister.list(PodDisruptionBudget)
    storage = StorageObjects(
        lister.list(PersistentVolumeClaim),
        lister.list(PersistentVolume),
        lister.list(StorageClass),
        lister.list(LocalVolume),
    )
    return reconcile(nodes, pods, lister.list(Namespace), budgets, lister.now, storage)

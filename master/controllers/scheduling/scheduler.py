"""The results of scheduling: bind, preempt, or mark as unschedulable. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.core.node import Namespace, Node
from api.core.pod import Pod
from api.meta.types import Condition
from master.controllers import events
from master.controllers.actions import Action, Delete, Update
from master.controllers.context import Lister
from master.controllers.events import SCHEDULER
from master.controllers.scheduling.algorithm import Scheduled, Unschedulable, needs_scheduling, schedule
from master.controllers.scheduling.preemption import Preemption, cluster_view, preemption
from master.registry.pods import with_node
from master.resources.disruption_budgets import PodDisruptionBudget, with_disruption_target
from master.resources.metadata import format_time

MAX_PER_PASS = 500
"""Pods bound in one pass."""


def reconcile(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    namespaces: Iterable[Namespace],
    budgets: Iterable[PodDisruptionBudget],
    now: datetime.datetime,
) -> Iterator[Action]:
    """Yield the actions for all pods that need a node.

    One pod preempts in a pass: the next pass sees which pods are terminating. At most MAX_PER_PASS pods are bound;
    their writes trigger the next pass, and client requests are served in between.
    """
    all_pods, all_nodes, all_namespaces = tuple(pods), tuple(nodes), tuple(namespaces)
    if not any(needs_scheduling(pod) for pod in all_pods):
        return
    cluster, has_preempted, bound = cluster_view(all_nodes, all_pods, all_namespaces, budgets), False, 0
    for result in schedule(all_nodes, all_pods, all_namespaces):
        if isinstance(result, Scheduled):
            yield Update(with_node(result.pod, result.node, now), result.pod)
            yield events.scheduled(result.pod, result.node, now)
            bound += 1
            if bound == MAX_PER_PASS:
                return
            continue
        victims = None if has_preempted else preemption(result.pod, cluster)
        pending = with_unschedulable(result, now)
        if victims is not None:
            has_preempted = True
            pending = replace(pending, status=replace(pending.status, nominated_node_name=victims.node))
            yield from _preempt_victims(victims, now)
        if pending != result.pod:
            yield Update(pending, result.pod)
            yield events.failed_scheduling(result.pod, result.message, now)


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
    return reconcile(nodes, pods, lister.list(Namespace), budgets, lister.now)

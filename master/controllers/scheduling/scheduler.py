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
from master.registry import pods as writes
from master.resources.disruption_budgets import PodDisruptionBudget, with_disruption_target
from master.resources.metadata import format_time

MAX_PER_PASS = 500


def reconcile(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    namespaces: Iterable[Namespace],
    budgets: Iterable[PodDisruptionBudget],
    now: datetime.datetime,
) -> Iterator[Action]:
    """Everything that is to be written for pods that wait for a node.

    Room is made for one pod at a time: the next pass sees who is on its way out. So many pods are placed at most; their
    writes bring the next pass, and what clients ask for meanwhile is not kept waiting.
    """
    everything, every_node, every_project = tuple(pods), tuple(nodes), tuple(namespaces)
    if not any(needs_scheduling(pod) for pod in everything):
        return
    within, made_room, placed = cluster_view(every_node, everything, every_project, budgets), False, 0
    for answer in schedule(every_node, everything, every_project):
        if isinstance(answer, Scheduled):
            yield Update(writes.with_node(answer.pod, answer.node, now), answer.pod)
            yield events.scheduled(answer.pod, answer.node, now)
            placed += 1
            if placed == MAX_PER_PASS:
                return
            continue
        found = None if made_room else preemption(answer.pod, within)
        waiting = with_unschedulable(answer, now)
        if found is not None:
            made_room = True
            waiting = replace(waiting, status=replace(waiting.status, nominated_node_name=found.node))
            yield from _preempt_victims(found, now)
        if waiting != answer.pod:
            yield Update(waiting, answer.pod)
            yield events.failed_scheduling(answer.pod, answer.sentence, now)


def _preempt_victims(found: Preemption, now: datetime.datetime) -> Iterator[Action]:
    for victim in found.victims:
        why = f"{SCHEDULER}: preempting to accommodate a higher priority pod"
        yield Delete(with_disruption_target(victim, "PreemptionByScheduler", why, now))
        yield events.preempted(victim, found.pod, now)


def with_unschedulable(answer: Unschedulable, now: datetime.datetime) -> Pod:
    """The pod with the condition that says why it waits; as it was, if that is no news."""
    pod = answer.pod
    old = next((row for row in pod.status.conditions if row.type == "PodScheduled"), None)
    if old is not None and (old.status, old.reason, old.message) == ("False", "Unschedulable", answer.sentence):
        return pod
    since = old.last_transition_time if old is not None and old.status == "False" else format_time(now)
    row = Condition(
        type="PodScheduled",
        status="False",
        reason="Unschedulable",
        message=answer.sentence,
        last_transition_time=since,
    )
    conditions = (*(other for other in pod.status.conditions if other.type != "PodScheduled"), row)
    return replace(pod, status=replace(pod.status, conditions=conditions))


def sync_scheduler(lister: Lister) -> Iterable[Action]:
    """Schedule the pods that have no node."""
    nodes, pods, budgets = lister.list("Node"), lister.list("Pod"), lister.list("PodDisruptionBudget")
    return reconcile(nodes, pods, lister.list("Namespace"), budgets, lister.now)

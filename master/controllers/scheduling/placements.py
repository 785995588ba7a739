"""What becomes of the scheduler's answers. Pure.

A pod gets its node, or a condition that says why it waits; an important one gets the room of others.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.core.node import Namespace, Node
from api.core.pod import Pod
from api.meta.types import Condition
from master.controllers import happenings
from master.controllers.scheduling.preemption import Preemption, preemption, scene
from master.controllers.scheduling.scheduler import SCHEDULER, Placed, Unplaced, schedule, waits
from master.controllers.workloads.disruptions import disrupted
from master.kinds.kind import show_time
from master.kinds.pod_disruption_budget import PodDisruptionBudget
from master.writing import writes
from master.writing.outcomes import Change, End, Outcome

MOST_AT_ONCE = 500


def passes(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    namespaces: Iterable[Namespace],
    budgets: Iterable[PodDisruptionBudget],
    now: datetime.datetime,
) -> Iterator[Outcome]:
    """Everything that is to be written for pods that wait for a node.

    Room is made for one pod at a time: the next pass sees who is on its way out. So many pods are placed at most; their
    writes bring the next pass, and what clients ask for meanwhile is not kept waiting.
    """
    everything, every_node, every_project = tuple(pods), tuple(nodes), tuple(namespaces)
    if not any(waits(pod) for pod in everything):
        return
    within, made_room, placed = scene(every_node, everything, every_project, budgets), False, 0
    for answer in schedule(every_node, everything, every_project):
        if isinstance(answer, Placed):
            yield Change(writes.placed(answer.pod, answer.node, now), answer.pod)
            yield happenings.scheduled(answer.pod, answer.node, now)
            placed += 1
            if placed == MOST_AT_ONCE:
                return
            continue
        found = None if made_room else preemption(answer.pod, within)
        waiting = unschedulable(answer, now)
        if found is not None:
            made_room = True
            waiting = replace(waiting, status=replace(waiting.status, nominated_node_name=found.node))
            yield from _ended(found, now)
        if waiting != answer.pod:
            yield Change(waiting, answer.pod)
            yield happenings.unscheduled(answer.pod, answer.sentence, now)


def _ended(found: Preemption, now: datetime.datetime) -> Iterator[Outcome]:
    for victim in found.victims:
        why = f"{SCHEDULER}: preempting to accommodate a higher priority pod"
        yield End(disrupted(victim, "PreemptionByScheduler", why, now))
        yield happenings.preempted(victim, found.pod, now)


def unschedulable(answer: Unplaced, now: datetime.datetime) -> Pod:
    """The pod with the condition that says why it waits; as it was, if that is no news."""
    pod = answer.pod
    old = next((row for row in pod.status.conditions if row.type == "PodScheduled"), None)
    if old is not None and (old.status, old.reason, old.message) == ("False", "Unschedulable", answer.sentence):
        return pod
    since = old.last_transition_time if old is not None and old.status == "False" else show_time(now)
    row = Condition(
        type="PodScheduled",
        status="False",
        reason="Unschedulable",
        message=answer.sentence,
        last_transition_time=since,
    )
    conditions = (*(other for other in pod.status.conditions if other.type != "PodScheduled"), row)
    return replace(pod, status=replace(pod.status, conditions=conditions))

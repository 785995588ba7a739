"""What becomes of the scheduler's answers: a pod gets its node, or a condition that says why it waits. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from api.objects import Condition, Namespace, Node, Pod
from master import happenings, writes
from master.controllers import Change, Outcome
from master.kinds.kind import show_time
from master.scheduler import Placed, Unplaced, schedule, waits


def passes(
    nodes: Iterable[Node], pods: Iterable[Pod], namespaces: Iterable[Namespace], now: datetime.datetime
) -> Iterator[Outcome]:
    """Everything that is to be written for pods that wait for a node."""
    everything = tuple(pods)
    if not any(waits(pod) for pod in everything):
        return
    for answer in schedule(nodes, everything, namespaces):
        if isinstance(answer, Placed):
            yield Change(writes.placed(answer.pod, answer.node, now), answer.pod)
            yield happenings.scheduled(answer.pod, answer.node, now)
        elif news := list(unschedulable(answer, now)):
            yield from news
            yield happenings.unscheduled(answer.pod, answer.sentence, now)


def unschedulable(answer: Unplaced, now: datetime.datetime) -> Iterator[Change]:
    """The pod with the condition that says why it waits, if that is news."""
    pod = answer.pod
    old = next((row for row in pod.status.conditions if row.type == "PodScheduled"), None)
    if old is not None and (old.status, old.reason, old.message) == ("False", "Unschedulable", answer.sentence):
        return
    since = old.last_transition_time if old is not None and old.status == "False" else show_time(now)
    row = Condition(
        type="PodScheduled",
        status="False",
        reason="Unschedulable",
        message=answer.sentence,
        last_transition_time=since,
    )
    conditions = (*(other for other in pod.status.conditions if other.type != "PodScheduled"), row)
    yield Change(replace(pod, status=replace(pod.status, conditions=conditions)), pod)

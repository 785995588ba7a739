"""Evictions by NoExecute taints: which pods leave, and when. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping

from api.core import placement
from api.core.events import NORMAL, EventSource, make_event, object_reference
from api.core.node import Node, Taint
from api.core.pod import FINAL_PHASES, Pod
from api.validation.static_pods import is_mirror
from master.controllers.actions import Create, Delete, Failed, isolate_errors
from master.controllers.nodes.taints import EVICTING_TAINTS, NO_EXECUTE
from master.resources.disruption_budgets import with_disruption_target

TaintTimes = Mapping[tuple[str, str], float]
"""(uid of the node, key of a NoExecute taint) → the time (monotonic clock, seconds) from which tolerations count."""

EVENT_SOURCE = EventSource(component="taint-eviction-controller")
EVICTION_MESSAGE = "Taint manager: deleting due to NoExecute taint"


def taint_times(
    before: TaintTimes | None, nodes: Iterable[Node], grace: float, monotonic: float
) -> dict[tuple[str, str], float]:
    """Return the times at `now`. Only the master's monotonic clock counts.

    `before` is None at the first pass after a start or a suspension of the master. Nodes that were not ready before
    that have the full `grace` to report; only then tolerations of their pods begin to count.
    """
    times: dict[tuple[str, str], float] = {}
    for node in nodes:
        for taint in _no_execute_taints(node):
            key = (node.metadata.uid, taint.key)
            delay = grace if before is None and (taint.key, taint.effect) in EVICTING_TAINTS else 0.0
            times[key] = (before or {}).get(key, monotonic + delay)
    return times


def _no_execute_taints(node: Node) -> tuple[Taint, ...]:
    return tuple(taint for taint in node.spec.taints if taint.effect == NO_EXECUTE)


def evictions(
    nodes: Iterable[Node], pods: Iterable[Pod], since: TaintTimes, monotonic: float, now: datetime.datetime
) -> Iterator[Delete | Create | Failed]:
    """Yield the deletion of pods that do not tolerate a taint of their node, each with an event.

    Mirror pods stay, because their deletion would not end the pod. Terminated pods stay too.
    """
    tainted = {node.metadata.name: node for node in nodes if _no_execute_taints(node)}
    if not tainted:
        return iter(())

    def evict(pod: Pod) -> Iterator[Delete | Create]:
        node = tainted.get(pod.spec.node_name)
        if node is None or pod.metadata.deletion_timestamp or pod.status.phase in FINAL_PHASES or is_mirror(pod):
            return
        if any(monotonic >= deadline for deadline in _eviction_time(pod, node, since)):
            message = f"Marking for deletion Pod {pod.metadata.namespace}/{pod.metadata.name}"
            yield Delete(with_disruption_target(pod, "DeletionByTaintManager", EVICTION_MESSAGE, now))
            yield Create(make_event(object_reference(pod), NORMAL, "TaintManagerEviction", message, EVENT_SOURCE, now))

    return isolate_errors(pods, evict)


def _eviction_time(pod: Pod, node: Node, since: TaintTimes) -> Iterator[float]:
    """Yield for each taint the time at which its toleration ends; none for taints tolerated for ever."""
    for taint in _no_execute_taints(node):
        start = since.get((node.metadata.uid, taint.key))
        toleration = placement.find_toleration(pod.spec, taint)
        seconds = 0 if toleration is None else toleration.toleration_seconds
        if start is not None and seconds is not None:
            yield start + max(seconds, 0)

"""Evictions by NoExecute taints: which pods leave, and when. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping

from api.core import placement
from api.core.events import NORMAL, EventSource, event, reference
from api.core.node import Node, Taint
from api.core.pod import FINAL_PHASES, Pod
from api.validation.static_pods import is_mirror
from master.controllers.actions import Create, Delete
from master.controllers.nodes.taints import EVICTING_TAINTS, NO_EXECUTE
from master.resources.disruption_budgets import with_disruption_target

TaintTimes = Mapping[tuple[str, str], float]
"""(uid of the node, key of a NoExecute taint) → the time (steady clock, seconds) from which tolerations count."""

EVENT_SOURCE = EventSource(component="taint-eviction-controller")
EVICTION_MESSAGE = "Taint manager: deleting due to NoExecute taint"


def taint_times(
    before: TaintTimes | None, nodes: Iterable[Node], grace: float, now: float
) -> dict[tuple[str, str], float]:
    """What is known at `now`. Only the master's own steady clock counts.

    `before` is None at the first look after a start or an absence of the master: a node that was found unwell before
    that has its full `grace` to report, and only then do the tolerations of its pods begin to count.
    """
    found: dict[tuple[str, str], float] = {}
    for node in nodes:
        for taint in _no_execute_taints(node):
            mark = (node.metadata.uid, taint.key)
            late = grace if before is None and (taint.key, taint.effect) in EVICTING_TAINTS else 0.0
            found[mark] = (before or {}).get(mark, now + late)
    return found


def _no_execute_taints(node: Node) -> tuple[Taint, ...]:
    return tuple(taint for taint in node.spec.taints if taint.effect == NO_EXECUTE)


def evictions(
    nodes: Iterable[Node], pods: Iterable[Pod], since: TaintTimes, now: float, wall: datetime.datetime
) -> Iterator[Delete | Create]:
    """Pods that do not tolerate a taint of their node (any more) are deleted, each with an event.

    Mirror pods stay, since their deletion would end nothing; so do pods that have ended, for what they tell.
    """
    marked = {node.metadata.name: node for node in nodes if _no_execute_taints(node)}
    for pod in pods:
        node = marked.get(pod.spec.node_name)
        if node is None or pod.metadata.deletion_timestamp or pod.status.phase in FINAL_PHASES or is_mirror(pod):
            continue
        if any(now >= due for due in _eviction_time(pod, node, since)):
            words = f"Marking for deletion Pod {pod.metadata.namespace}/{pod.metadata.name}"
            yield Delete(with_disruption_target(pod, "DeletionByTaintManager", EVICTION_MESSAGE, wall))
            yield Create(event(reference(pod), NORMAL, "TaintManagerEviction", words, EVENT_SOURCE, wall))


def _eviction_time(pod: Pod, node: Node, since: TaintTimes) -> Iterator[float]:
    """When the pod has borne each of the taints for as long as it can; nothing of a taint that it bears for ever."""
    for taint in _no_execute_taints(node):
        begun = since.get((node.metadata.uid, taint.key))
        toleration = placement.find_toleration(pod.spec, taint)
        seconds = 0 if toleration is None else toleration.toleration_seconds
        if begun is not None and seconds is not None:
            yield begun + max(seconds, 0)

"""Which pods have to leave nodes with NoExecute taints, and when. Pure; facts/node.md 14, facts/api.md."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping

from api.core import placement
from api.core.events import NORMAL, EventSource, event, reference
from api.core.node import Node, Taint
from api.core.pod import FINAL_PHASES, Pod
from api.validation.static_pods import is_mirror
from master.controllers.nodes.node_taints import EVICTING, NO_EXECUTE
from master.controllers.workloads.disruptions import disrupted
from master.writing.outcomes import End, Make

Marks = Mapping[tuple[str, str], float]
"""(uid of the node, key of a NoExecute taint) → the time (steady clock, seconds) from which tolerations count."""

SOURCE = EventSource(component="taint-eviction-controller")
WHY = "Taint manager: deleting due to NoExecute taint"


def marks(before: Marks | None, nodes: Iterable[Node], grace: float, now: float) -> dict[tuple[str, str], float]:
    """What is known at `now`. Only the master's own steady clock counts.

    `before` is None at the first look after a start or an absence of the master: a node that was found unwell before
    that has its full `grace` to report, and only then do the tolerations of its pods begin to count.
    """
    found: dict[tuple[str, str], float] = {}
    for node in nodes:
        for taint in _executing(node):
            mark = (node.metadata.uid, taint.key)
            late = grace if before is None and (taint.key, taint.effect) in EVICTING else 0.0
            found[mark] = (before or {}).get(mark, now + late)
    return found


def _executing(node: Node) -> tuple[Taint, ...]:
    return tuple(taint for taint in node.spec.taints if taint.effect == NO_EXECUTE)


def evictions(
    nodes: Iterable[Node], pods: Iterable[Pod], since: Marks, now: float, wall: datetime.datetime
) -> Iterator[End | Make]:
    """Pods that do not tolerate a taint of their node (any more) are deleted, each with an event.

    Mirror pods stay, since their deletion would end nothing; so do pods that have ended, for what they tell.
    """
    marked = {node.metadata.name: node for node in nodes if _executing(node)}
    for pod in pods:
        node = marked.get(pod.spec.node_name)
        if node is None or pod.metadata.deletion_timestamp or pod.status.phase in FINAL_PHASES or is_mirror(pod):
            continue
        if any(now >= due for due in _ends(pod, node, since)):
            words = f"Marking for deletion Pod {pod.metadata.namespace}/{pod.metadata.name}"
            yield End(disrupted(pod, "DeletionByTaintManager", WHY, wall))
            yield Make(event(reference(pod), NORMAL, "TaintManagerEviction", words, SOURCE, wall))


def _ends(pod: Pod, node: Node, since: Marks) -> Iterator[float]:
    """When the pod has borne each of the taints for as long as it can; nothing of a taint that it bears for ever."""
    for taint in _executing(node):
        begun = since.get((node.metadata.uid, taint.key))
        toleration = placement.find_toleration(pod.spec, taint)
        seconds = 0 if toleration is None else toleration.toleration_seconds
        if begun is not None and seconds is not None:
            yield begun + max(seconds, 0)

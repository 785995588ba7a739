"""The taints by which the master keeps pods off nodes that are not well. Pure; facts/node.md 14.

They follow from the node's conditions and `spec.unschedulable`; every other taint is the administrator's and stays.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from msgspec.structs import replace

from api.core.node import Node, Taint
from api.core.placement import MEMORY_PRESSURE, NOT_READY, UNREACHABLE, UNSCHEDULABLE
from api.core.pod import Pod
from api.meta.types import Condition
from master.kinds.kind import show_time
from master.kinds.node import ready
from master.writing.outcomes import Change

PRESSURES: Mapping[str, str] = {
    "MemoryPressure": MEMORY_PRESSURE,
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
"""Condition that is True → the key of its taint."""

NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
EVICTING = frozenset(((NOT_READY, NO_EXECUTE), (UNREACHABLE, NO_EXECUTE)))
OURS = EVICTING | {(key, NO_SCHEDULE) for key in (NOT_READY, UNREACHABLE, UNSCHEDULABLE, *PRESSURES.values())}
"""(key, effect) of the taints that come and go by themselves."""

MOST_UNWELL, UNWELL_SHARE = 2, 0.55
"""With more nodes than this and this share of them unwell, it is likelier the network, or we, who are."""


class Outage(Enum):
    """How much of the cluster seems to be away."""

    NONE = "single nodes"
    LARGE = "most nodes"
    WHOLE = "every node"


def wanted(node: Node) -> frozenset[tuple[str, str]]:
    """(key, effect) of every taint that the state of the node calls for."""
    rows = {row.type: row.status for row in node.status.conditions}
    found = {(key, NO_SCHEDULE) for kind, key in PRESSURES.items() if rows.get(kind) == "True"}
    if node.spec.unschedulable:
        found.add((UNSCHEDULABLE, NO_SCHEDULE))
    if "Ready" not in rows:
        found.add((NOT_READY, NO_SCHEDULE))  # It has yet to say how it is.
    elif rows["Ready"] != "True":
        key = NOT_READY if rows["Ready"] == "False" else UNREACHABLE
        found |= {(key, NO_SCHEDULE), (key, NO_EXECUTE)}
    return frozenset(found)


def standing(node: Node) -> tuple[Taint, ...]:
    """The node's taints with those that it is about to get, for whoever decides before they are written."""
    held = {(taint.key, taint.effect) for taint in node.spec.taints}
    return (*node.spec.taints, *(Taint(key=key, effect=effect) for key, effect in sorted(wanted(node) - held)))


def outage(nodes: Iterable[Node]) -> Outage:
    """When no node at all is well, nobody is left to take the pods; it may as well be the master that is cut off."""
    states = [ready(node) == "True" for node in nodes]
    unwell = states.count(False)
    if states and unwell == len(states):
        return Outage.WHOLE
    return Outage.LARGE if unwell > MOST_UNWELL and unwell >= UNWELL_SHARE * len(states) else Outage.NONE


def tainted(nodes: Iterable[Node], wall: datetime.datetime) -> Iterator[Change]:
    """Every node whose taints are not as its state calls for.

    In an outage no further node loses its pods; when every node is away, none does.
    """
    everything = tuple(nodes)
    extent = outage(everything)
    for node in everything:
        taints = _taints(node, extent, wall)
        if taints != node.spec.taints:
            yield Change(replace(node, spec=replace(node.spec, taints=taints)), node)


def _taints(node: Node, extent: Outage, wall: datetime.datetime) -> tuple[Taint, ...]:
    held = {(taint.key, taint.effect) for taint in node.spec.taints}
    wishes = wanted(node)
    if extent is Outage.WHOLE or (extent is Outage.LARGE and not held & EVICTING):
        wishes -= EVICTING
    kept = (row for row in node.spec.taints if (row.key, row.effect) not in OURS or (row.key, row.effect) in wishes)
    since = show_time(wall)
    new = (Taint(key=key, effect=effect, time_added=since) for key, effect in sorted(wishes - held))
    return (*kept, *new)


def unready_pods(nodes: Iterable[Node], pods: Iterable[Pod], wall: datetime.datetime) -> Iterator[Change]:
    """Pods of nodes that nobody hears of are Ready no more, so that nobody is sent to them.

    The node agent says again how they are as soon as it is back.
    """
    silent = {node.metadata.name for node in nodes if (UNREACHABLE, NO_EXECUTE) in wanted(node)}
    for pod in pods:
        if pod.spec.node_name in silent and any(map(_holds_ready, pod.status.conditions)):
            rows = tuple(_denied(row, wall) if _holds_ready(row) else row for row in pod.status.conditions)
            yield Change(replace(pod, status=replace(pod.status, conditions=rows)), pod)


def _holds_ready(row: Condition) -> bool:
    return row.type == "Ready" and row.status == "True"


def _denied(row: Condition, wall: datetime.datetime) -> Condition:
    return replace(row, status="False", last_transition_time=show_time(wall))

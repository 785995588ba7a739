"""Taints of nodes by their conditions; pods of unreachable nodes become not ready. Pure.

The taints follow from conditions and `spec.unschedulable`. Every other taint is the administrator's and stays.
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
from master.controllers import events
from master.controllers.actions import Action, Update
from master.controllers.context import Lister
from master.kinds.kind import show_time
from master.kinds.node import ready

PRESSURE_TAINTS: Mapping[str, str] = {
    "MemoryPressure": MEMORY_PRESSURE,
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
"""Condition that is True → the key of its taint."""

NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
EVICTING_TAINTS = frozenset(((NOT_READY, NO_EXECUTE), (UNREACHABLE, NO_EXECUTE)))
MANAGED_TAINTS = EVICTING_TAINTS | {
    (key, NO_SCHEDULE) for key in (NOT_READY, UNREACHABLE, UNSCHEDULABLE, *PRESSURE_TAINTS.values())
}
"""(key, effect) of the taints that come and go by themselves."""

LARGE_ZONE_SIZE, UNHEALTHY_ZONE_SHARE = 2, 0.55
"""With more nodes than this and this share of them unwell, it is likelier the network, or we, who are."""


class ZoneState(Enum):
    """How much of the cluster seems to be away."""

    NONE = "single nodes"
    LARGE = "most nodes"
    WHOLE = "every node"


def condition_taints(node: Node) -> frozenset[tuple[str, str]]:
    """(key, effect) of every taint that the state of the node calls for."""
    rows = {row.type: row.status for row in node.status.conditions}
    found = {(key, NO_SCHEDULE) for kind, key in PRESSURE_TAINTS.items() if rows.get(kind) == "True"}
    if node.spec.unschedulable:
        found.add((UNSCHEDULABLE, NO_SCHEDULE))
    if "Ready" not in rows:
        found.add((NOT_READY, NO_SCHEDULE))  # It has yet to say how it is.
    elif rows["Ready"] != "True":
        key = NOT_READY if rows["Ready"] == "False" else UNREACHABLE
        found |= {(key, NO_SCHEDULE), (key, NO_EXECUTE)}
    return frozenset(found)


def effective_taints(node: Node) -> tuple[Taint, ...]:
    """The node's taints with those that it is about to get, for whoever decides before they are written."""
    held = {(taint.key, taint.effect) for taint in node.spec.taints}
    return (
        *node.spec.taints,
        *(Taint(key=key, effect=effect) for key, effect in sorted(condition_taints(node) - held)),
    )


def zone_state(nodes: Iterable[Node]) -> ZoneState:
    """When no node at all is well, nobody is left to take the pods; it may as well be the master that is cut off."""
    states = [ready(node) == "True" for node in nodes]
    unwell = states.count(False)
    if states and unwell == len(states):
        return ZoneState.WHOLE
    return (
        ZoneState.LARGE if unwell > LARGE_ZONE_SIZE and unwell >= UNHEALTHY_ZONE_SHARE * len(states) else ZoneState.NONE
    )


def reconcile(nodes: Iterable[Node], wall: datetime.datetime) -> Iterator[Update]:
    """Every node whose taints are not as its state calls for.

    In an outage no further node loses its pods; when every node is away, none does.
    """
    everything = tuple(nodes)
    extent = zone_state(everything)
    for node in everything:
        taints = _taints(node, extent, wall)
        if taints != node.spec.taints:
            yield Update(replace(node, spec=replace(node.spec, taints=taints)), node)


def _taints(node: Node, extent: ZoneState, wall: datetime.datetime) -> tuple[Taint, ...]:
    held = {(taint.key, taint.effect) for taint in node.spec.taints}
    wishes = condition_taints(node)
    if extent is ZoneState.WHOLE or (extent is ZoneState.LARGE and not held & EVICTING_TAINTS):
        wishes -= EVICTING_TAINTS
    kept = (
        row
        for row in node.spec.taints
        if (row.key, row.effect) not in MANAGED_TAINTS or (row.key, row.effect) in wishes
    )
    since = show_time(wall)
    new = (Taint(key=key, effect=effect, time_added=since) for key, effect in sorted(wishes - held))
    return (*kept, *new)


def pods_not_ready(nodes: Iterable[Node], pods: Iterable[Pod], wall: datetime.datetime) -> Iterator[Update]:
    """Pods of nodes that nobody hears of are Ready no more, so that nobody is sent to them.

    The node agent says again how they are as soon as it is back.
    """
    silent = {node.metadata.name for node in nodes if (UNREACHABLE, NO_EXECUTE) in condition_taints(node)}
    for pod in pods:
        if pod.spec.node_name in silent and any(map(_holds_ready, pod.status.conditions)):
            rows = tuple(_with_not_ready(row, wall) if _holds_ready(row) else row for row in pod.status.conditions)
            yield Update(replace(pod, status=replace(pod.status, conditions=rows)), pod)


def _holds_ready(row: Condition) -> bool:
    return row.type == "Ready" and row.status == "True"


def _with_not_ready(row: Condition, wall: datetime.datetime) -> Condition:
    return replace(row, status="False", last_transition_time=show_time(wall))


def sync_pod_readiness(look: Lister) -> Iterator[Action]:
    """Pods of nodes that nobody hears of are not Ready."""
    for one in pods_not_ready(look.all("Node"), look.all("Pod"), look.now):
        yield one
        yield events.pod_not_ready(one.item, look.now)

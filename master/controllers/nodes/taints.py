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
from master.controllers.actions import Action, Failed, Update, isolate_errors
from master.controllers.context import Lister
from master.resources.metadata import format_time
from master.resources.nodes import ready_status

PRESSURE_TAINTS: Mapping[str, str] = {
    "MemoryPressure": MEMORY_PRESSURE,
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
"""Type of a condition whose status is True → key of its taint."""

NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
EVICTING_TAINTS = frozenset(((NOT_READY, NO_EXECUTE), (UNREACHABLE, NO_EXECUTE)))
MANAGED_TAINTS = EVICTING_TAINTS | {
    (key, NO_SCHEDULE) for key in (NOT_READY, UNREACHABLE, UNSCHEDULABLE, *PRESSURE_TAINTS.values())
}
"""(key, effect) of the taints that this controller adds and removes."""

LARGE_ZONE_SIZE, UNHEALTHY_ZONE_SHARE = 2, 0.55
"""If more nodes than this, and this share of all, are not ready, the network or the master is likely at fault."""


class ZoneState(Enum):
    """How many nodes are not ready."""

    NONE = "single nodes"
    LARGE = "most nodes"
    WHOLE = "every node"


def condition_taints(node: Node) -> frozenset[tuple[str, str]]:
    """Return the (key, effect) of the taints that the conditions of a node require."""
    statuses = {condition.type: condition.status for condition in node.status.conditions}
    taints = {
        (key, NO_SCHEDULE) for condition_type, key in PRESSURE_TAINTS.items() if statuses.get(condition_type) == "True"
    }
    if node.spec.unschedulable:
        taints.add((UNSCHEDULABLE, NO_SCHEDULE))
    if "Ready" not in statuses:
        taints.add((NOT_READY, NO_SCHEDULE))  # The kubelet has not reported yet.
    elif statuses["Ready"] != "True":
        key = NOT_READY if statuses["Ready"] == "False" else UNREACHABLE
        taints |= {(key, NO_SCHEDULE), (key, NO_EXECUTE)}
    return frozenset(taints)


def effective_taints(node: Node) -> tuple[Taint, ...]:
    """Return the taints of a node with those that this controller is about to add, for decisions made before they are
    written.
    """
    present = {(taint.key, taint.effect) for taint in node.spec.taints}
    return (
        *node.spec.taints,
        *(Taint(key=key, effect=effect) for key, effect in sorted(condition_taints(node) - present)),
    )


def zone_state(nodes: Iterable[Node]) -> ZoneState:
    """Return how many nodes are not ready. If all are, no node is left for their pods, and the master itself may be cut
    off.
    """
    ready_nodes = [ready_status(node) == "True" for node in nodes]
    not_ready = ready_nodes.count(False)
    if ready_nodes and not_ready == len(ready_nodes):
        return ZoneState.WHOLE
    return (
        ZoneState.LARGE
        if not_ready > LARGE_ZONE_SIZE and not_ready >= UNHEALTHY_ZONE_SHARE * len(ready_nodes)
        else ZoneState.NONE
    )


def reconcile(nodes: Iterable[Node], now: datetime.datetime) -> Iterator[Update | Failed]:
    """Yield the nodes with the taints that their conditions require.

    While most nodes are not ready, no further node gets an evicting taint. While all are, none has one.
    """
    all_nodes = tuple(nodes)
    zone = zone_state(all_nodes)

    def sync_node(node: Node) -> Iterator[Update]:
        taints = _taints(node, zone, now)
        if taints != node.spec.taints:
            yield Update(replace(node, spec=replace(node.spec, taints=taints)), node)

    return isolate_errors(all_nodes, sync_node)


def _taints(node: Node, zone: ZoneState, now: datetime.datetime) -> tuple[Taint, ...]:
    present = {(taint.key, taint.effect) for taint in node.spec.taints}
    required = condition_taints(node)
    if zone is ZoneState.WHOLE or (zone is ZoneState.LARGE and not present & EVICTING_TAINTS):
        required -= EVICTING_TAINTS
    remaining = (
        taint
        for taint in node.spec.taints
        if (taint.key, taint.effect) not in MANAGED_TAINTS or (taint.key, taint.effect) in required
    )
    since = format_time(now)
    new = (Taint(key=key, effect=effect, time_added=since) for key, effect in sorted(required - present))
    return (*remaining, *new)


def pods_not_ready(nodes: Iterable[Node], pods: Iterable[Pod], now: datetime.datetime) -> Iterator[Update]:
    """Yield the pods of unreachable nodes with the condition Ready false, so that they get no traffic. The kubelet
    reports their readiness again when it is back.
    """
    unreachable = {node.metadata.name for node in nodes if (UNREACHABLE, NO_EXECUTE) in condition_taints(node)}
    for pod in pods:
        if pod.spec.node_name in unreachable and any(map(_holds_ready, pod.status.conditions)):
            conditions = tuple(
                _with_not_ready(condition, now) if _holds_ready(condition) else condition
                for condition in pod.status.conditions
            )
            yield Update(replace(pod, status=replace(pod.status, conditions=conditions)), pod)


def _holds_ready(condition: Condition) -> bool:
    return condition.type == "Ready" and condition.status == "True"


def _with_not_ready(condition: Condition, now: datetime.datetime) -> Condition:
    return replace(condition, status="False", last_transition_time=format_time(now))


def sync_pod_readiness(lister: Lister) -> Iterator[Action]:
    """Set the pods of unreachable nodes to not ready.

    The controller watches Nodes only. A pod becomes ready by its kubelet, which reports nothing meanwhile.
    """
    for update in pods_not_ready(lister.list(Node), lister.list(Pod), lister.now):
        yield update
        yield events.pod_not_ready(update.object, lister.now)


def sync_taints(lister: Lister) -> Iterable[Action]:
    """Set the taints of all nodes."""
    return reconcile(lister.list(Node), lister.now)

"""Node lifecycle: heartbeats, expired nodes, orphaned leases and evictions by taint.

Heartbeats are kept in memory. After a restart or a suspension of the master every node has a full grace period.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from api.core.node import NODE_LEASES, Lease, Node
from api.meta.types import Condition
from master.controllers import events
from master.controllers.actions import Action, ForceDelete, Update
from master.controllers.context import Lister
from master.controllers.nodes import pod_gc, taint_eviction
from master.kinds.kind import show_time
from master.kinds.node import ready


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """When a node was last heard of (seconds of a steady clock), and what it said then, to tell a new report by."""

    at: float
    report: tuple[str | None, ...]


Heartbeats = Mapping[tuple[str, str], Heartbeat]
"""By (name, uid) of the node. Empty after a start, so that every node has a full grace period to report."""


def was_suspended(last_look: float, now: float, grace: float) -> bool:
    """Whether the master itself did not look for so long (stopped, starved) that silence proves nothing."""
    return now - last_look > grace / 2


def update_heartbeats(
    before: Heartbeats, nodes: Iterable[Node], leases: Iterable[Lease], now: float
) -> dict[tuple[str, str], Heartbeat]:
    """What is known at `now`: a node lives when it renews its lease or reports its status.

    Only the master's own steady clock counts: the nodes' clocks may be wrong.
    """
    found: dict[tuple[str, str], Heartbeat] = {}
    renewed = {one.metadata.name: one.spec.renew_time for one in leases if one.metadata.namespace == NODE_LEASES}
    for node in nodes:
        key = (node.metadata.name, node.metadata.uid)
        report = (renewed.get(node.metadata.name), *(row.last_heartbeat_time for row in node.status.conditions))
        known = before.get(key)
        found[key] = known if known is not None and known.report == report else Heartbeat(now, report)
    return found


def expired_nodes(
    nodes: Iterable[Node], seen: Heartbeats, grace: float, now: float, wall: datetime.datetime
) -> Iterator[Update]:
    """The conditions of a node that has not reported for `grace` seconds become Unknown."""
    for node in nodes:
        sighting = seen.get((node.metadata.name, node.metadata.uid))
        if sighting is None or now - sighting.at < grace or _is_expired(node):
            continue
        rows = node.status.conditions or (Condition(type="Ready", status="Unknown"),)
        conditions = tuple(_unknown(row, grace, wall) for row in rows)
        status = msgspec.structs.replace(node.status, conditions=conditions)
        yield Update(msgspec.structs.replace(node, status=status), node)


def _is_expired(node: Node) -> bool:
    return ready(node) == "Unknown" and any(row.reason == "NodeStatusUnknown" for row in node.status.conditions)


def _unknown(row: Condition, grace: float, wall: datetime.datetime) -> Condition:
    return msgspec.structs.replace(
        row,
        status="Unknown",
        reason="NodeStatusUnknown",
        message=f"The node agent has not reported for {grace:.0f} s.",
        last_transition_time=row.last_transition_time if row.status == "Unknown" else show_time(wall),
    )


def orphaned_leases(nodes: Iterable[Node], leases: Iterable[Lease]) -> Iterator[ForceDelete]:
    """A node's lease goes with it."""
    present = {node.metadata.uid for node in nodes}
    for one in leases:
        owners = [owner.uid for owner in one.metadata.owner_references if owner.kind == Node.KIND]
        if owners and one.metadata.namespace == NODE_LEASES and not present.intersection(owners):
            yield ForceDelete(one)


log = logging.getLogger(__name__)

CHECKS_PER_GRACE_PERIOD = 8
"""How often, within the grace period of a node, its last report is looked at."""

MAX_RESYNC_SECONDS = 30.0


class NodeLifecycle:
    """`losses` and `evictions` belong to one pass, in this order."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._sightings: Heartbeats = {}
        self._marks: taint_eviction.TaintTimes | None = None
        self._looked_at = float("-inf")
        self._absences: dict[str, float] = {}
        self.resync = min(MAX_RESYNC_SECONDS, grace / CHECKS_PER_GRACE_PERIOD)

    def losses(self, look: Lister) -> Iterator[Action]:
        """Nodes that are silent, leases without a node, and pods whose node is gone."""
        now, nodes, pods, leases = look.env.steady(), look.all("Node"), look.all("Pod"), look.all("Lease")
        if was_suspended(self._looked_at, now, self._grace):
            self._sightings, self._marks = {}, None
        self._looked_at = now
        self._sightings = update_heartbeats(self._sightings, nodes, leases, now)
        self._absences = pod_gc.missing_nodes(self._absences, nodes, pods, now)
        for change in expired_nodes(nodes, self._sightings, self._grace, now, look.now):
            log.warning("node is lost", extra={"node": change.item.metadata.name, "silent_for": f"{self._grace:.0f}s"})
            yield change
            yield events.node_not_ready(change.before, look.now)
        yield from pod_gc.orphaned_pods(pods, self._absences, self._grace, now, look.now)
        yield from orphaned_leases(nodes, leases)

    def evictions(self, look: Lister) -> Iterator[Action]:
        """Pods that do not bear the taints of their node go."""
        now, nodes = look.env.steady(), look.all("Node")
        self._marks = taint_eviction.taint_times(self._marks, nodes, self._grace, now)
        yield from taint_eviction.evictions(nodes, look.all("Pod"), self._marks, now, look.now)

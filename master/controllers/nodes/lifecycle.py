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
from api.core.pod import Pod
from api.meta.types import Condition
from master.controllers import events
from master.controllers.actions import Action, Failed, ForceDelete, Update, isolate_errors
from master.controllers.context import Lister
from master.controllers.nodes import pod_gc, taint_eviction
from master.resources.metadata import format_time
from master.resources.nodes import ready_status

log = logging.getLogger(__name__)

CHECKS_PER_GRACE_PERIOD = 8
"""Passes within the grace period of a node."""

MAX_RESYNC_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last report of a node and when the master read it (seconds of a monotonic clock). `report` tells a new one
    apart.
    """

    observed_at: float
    report: tuple[str | None, ...]


Heartbeats = Mapping[tuple[str, str], Heartbeat]
"""By name and uid of the node. Empty after a start, so that every node has a full grace period to report."""


def was_suspended(last_pass: float, monotonic: float, grace: float) -> bool:
    """Return whether the master itself did not run for so long (stopped, starved) that missing heartbeats prove
    nothing.
    """
    return monotonic - last_pass > grace / 2


def update_heartbeats(
    before: Heartbeats, nodes: Iterable[Node], leases: Iterable[Lease], monotonic: float
) -> dict[tuple[str, str], Heartbeat]:
    """Return the heartbeats at `now`: a node is alive when it renews its lease or reports its status. Only the master's
    monotonic clock counts, because clocks of nodes may be wrong.
    """
    heartbeats: dict[tuple[str, str], Heartbeat] = {}
    renewed = {
        lease.metadata.name: lease.spec.renew_time for lease in leases if lease.metadata.namespace == NODE_LEASES
    }
    for node in nodes:
        key = (node.metadata.name, node.metadata.uid)
        report = (
            renewed.get(node.metadata.name),
            *(c.last_heartbeat_time for c in node.status.conditions if c.last_heartbeat_time),
        )
        known = before.get(key)
        heartbeats[key] = known if known is not None and known.report == report else Heartbeat(monotonic, report)
    return heartbeats


def expired_nodes(
    nodes: Iterable[Node], heartbeats: Heartbeats, grace: float, monotonic: float, now: datetime.datetime
) -> Iterator[Update | Failed]:
    """Yield the nodes that have not reported for `grace` seconds, with conditions of status Unknown."""

    def expire(node: Node) -> Iterator[Update]:
        heartbeat = heartbeats.get((node.metadata.name, node.metadata.uid))
        if heartbeat is None or monotonic - heartbeat.observed_at < grace or _is_expired(node):
            return
        old_conditions = node.status.conditions or (Condition(type="Ready", status="Unknown"),)
        conditions = tuple(_unknown(condition, grace, now) for condition in old_conditions)
        status = msgspec.structs.replace(node.status, conditions=conditions)
        yield Update(msgspec.structs.replace(node, status=status), node)

    return isolate_errors(nodes, expire)


def _is_expired(node: Node) -> bool:
    return ready_status(node) == "Unknown" and any(
        condition.reason == "NodeStatusUnknown" for condition in node.status.conditions
    )


def _unknown(condition: Condition, grace: float, now: datetime.datetime) -> Condition:
    return msgspec.structs.replace(
        condition,
        status="Unknown",
        reason="NodeStatusUnknown",
        message=f"The node agent has not reported for {grace:.0f} s.",
        last_transition_time=condition.last_transition_time if condition.status == "Unknown" else format_time(now),
    )


def orphaned_leases(nodes: Iterable[Node], leases: Iterable[Lease]) -> Iterator[ForceDelete]:
    """Yield the leases whose node does not exist."""
    node_uids = {node.metadata.uid for node in nodes}
    for lease in leases:
        owner_uids = [owner.uid for owner in lease.metadata.owner_references if owner.kind == Node.KIND]
        if owner_uids and lease.metadata.namespace == NODE_LEASES and not node_uids.intersection(owner_uids):
            yield ForceDelete(lease)


class NodeLifecycle:
    """The node lifecycle controller. It keeps the heartbeats of nodes between passes."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._heartbeats: Heartbeats = {}
        self._taint_times: taint_eviction.TaintTimes | None = None
        self._last_pass = float("-inf")
        self._missing_nodes: dict[str, float] = {}
        self.resync = min(MAX_RESYNC_SECONDS, grace / CHECKS_PER_GRACE_PERIOD)

    def reconcile(self, lister: Lister) -> Iterator[Action]:
        """Yield the actions for all nodes and their pods."""
        # Heartbeats come first: after a suspension of the master they reset the times from which tolerations count.
        yield from self.reconcile_heartbeats(lister)
        yield from self.reconcile_taints(lister)

    def reconcile_heartbeats(self, lister: Lister) -> Iterator[Action]:
        """Yield actions for nodes without heartbeats, leases without a node, and pods of missing nodes."""
        monotonic, nodes, pods, leases = (
            lister.context.monotonic(),
            lister.list(Node),
            lister.list(Pod),
            lister.list(Lease),
        )
        if was_suspended(self._last_pass, monotonic, self._grace):
            self._heartbeats, self._taint_times = {}, None
        self._last_pass = monotonic
        self._heartbeats = update_heartbeats(self._heartbeats, nodes, leases, monotonic)
        self._missing_nodes = pod_gc.missing_nodes(self._missing_nodes, nodes, pods, monotonic)
        for update in expired_nodes(nodes, self._heartbeats, self._grace, monotonic, lister.now):
            if isinstance(update, Failed):
                yield update
                continue
            log.warning(
                "node not ready", extra={"node": update.object.metadata.name, "unreported": f"{self._grace:.0f}s"}
            )
            yield update
            yield events.node_not_ready(update.before, lister.now)
        yield from pod_gc.orphaned_pods(pods, self._missing_nodes, self._grace, monotonic, lister.now)
        yield from orphaned_leases(nodes, leases)

    def reconcile_taints(self, lister: Lister) -> Iterator[Action]:
        """Yield evictions of pods that do not tolerate the taints of their node."""
        monotonic, nodes = lister.context.monotonic(), lister.list(Node)
        self._taint_times = taint_eviction.taint_times(self._taint_times, nodes, self._grace, monotonic)
        yield from taint_eviction.evictions(nodes, lister.list(Pod), self._taint_times, monotonic, lister.now)

"""Since when nothing is heard of whom, and what becomes of such nodes. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from api.core.node import NODE_LEASES, Lease, Node
from api.meta.types import Condition
from master.kinds.kind import show_time
from master.kinds.node import ready
from master.writing.outcomes import Change, Drop


@dataclass(frozen=True, slots=True)
class Sighting:
    """When a node was last heard of (seconds of a steady clock), and what it said then, to tell a new report by."""

    at: float
    report: tuple[str | None, ...]


Sightings = Mapping[tuple[str, str], Sighting]
"""By (name, uid) of the node. Empty after a start, so that every node has a full grace period to report."""


def was_away(last_look: float, now: float, grace: float) -> bool:
    """Whether the master itself did not look for so long (stopped, starved) that silence proves nothing."""
    return now - last_look > grace / 2


def sightings(
    before: Sightings, nodes: Iterable[Node], leases: Iterable[Lease], now: float
) -> dict[tuple[str, str], Sighting]:
    """What is known at `now`: a node lives when it renews its lease or reports its status.

    Only the master's own steady clock counts: the nodes' clocks may be wrong.
    """
    found: dict[tuple[str, str], Sighting] = {}
    renewed = {one.metadata.name: one.spec.renew_time for one in leases if one.metadata.namespace == NODE_LEASES}
    for node in nodes:
        key = (node.metadata.name, node.metadata.uid)
        report = (renewed.get(node.metadata.name), *(row.last_heartbeat_time for row in node.status.conditions))
        known = before.get(key)
        found[key] = known if known is not None and known.report == report else Sighting(now, report)
    return found


def lost_nodes(
    nodes: Iterable[Node], seen: Sightings, grace: float, now: float, wall: datetime.datetime
) -> Iterator[Change]:
    """The conditions of a node that has not reported for `grace` seconds become Unknown."""
    for node in nodes:
        sighting = seen.get((node.metadata.name, node.metadata.uid))
        if sighting is None or now - sighting.at < grace or _is_lost(node):
            continue
        rows = node.status.conditions or (Condition(type="Ready", status="Unknown"),)
        conditions = tuple(_unknown(row, grace, wall) for row in rows)
        status = msgspec.structs.replace(node.status, conditions=conditions)
        yield Change(msgspec.structs.replace(node, status=status), node)


def _is_lost(node: Node) -> bool:
    return ready(node) == "Unknown" and any(row.reason == "NodeStatusUnknown" for row in node.status.conditions)


def _unknown(row: Condition, grace: float, wall: datetime.datetime) -> Condition:
    return msgspec.structs.replace(
        row,
        status="Unknown",
        reason="NodeStatusUnknown",
        message=f"The node agent has not reported for {grace:.0f} s.",
        last_transition_time=row.last_transition_time if row.status == "Unknown" else show_time(wall),
    )


def orphaned_leases(nodes: Iterable[Node], leases: Iterable[Lease]) -> Iterator[Drop]:
    """A node's lease goes with it."""
    present = {node.metadata.uid for node in nodes}
    for one in leases:
        owners = [owner.uid for owner in one.metadata.owner_references if owner.kind == Node.KIND]
        if owners and one.metadata.namespace == NODE_LEASES and not present.intersection(owners):
            yield Drop(one)

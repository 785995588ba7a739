"""What the master itself wishes of the objects: a snapshot in, writes out. Pure.

Each controller looks at everything of its kind every time and keeps nothing, so it does not matter which events it has
missed. Numbers are handed out here; the cursors that make freed ones rest are part of the snapshot and of the writes.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import ClassVar

import msgspec

from api.leases import NODE_LEASES, Lease
from api.objects import (
    ClusterNetwork,
    ClusterNetworkEntry,
    Condition,
    Namespace,
    Node,
    Object,
    ObjectMeta,
)
from api.queries import NodeQuery
from master.allocators import SubnetPools
from master.kinds.kind import parse_time, show_time
from master.kinds.namespace import LASTING
from master.kinds.node import ready
from master.kinds.priority_class import SYSTEM_CLASSES, PriorityClass
from master.kinds.service_cidr import ServiceCIDR, ServiceCIDRSpec
from master.writes import BACKGROUND

GLOBAL_NAMESPACE = "default"
SERVICE_CIDR_NAME = "kubernetes"
QUERY_LIFE = datetime.timedelta(minutes=5)


class Cursor(Object, frozen=True):
    """Where an allocator goes on; kept in the store beside the objects, not served. Named subnets or vnids."""

    API_VERSION = "internal"
    KIND: ClassVar[str] = "Cursor"

    next: int = 0


@dataclass(frozen=True, slots=True)
class Make:
    """A new object; `by`, if anybody, tells its owner in an event that it was made.

    `owner` is for whom it is made, where that is not its controller.
    """

    item: Object
    by: str = ""
    owner: Object | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """An object in another state. `before` must still be the newest."""

    item: Object
    before: Object


@dataclass(frozen=True, slots=True)
class Drop:
    """An object that goes at once."""

    item: Object


@dataclass(frozen=True, slots=True)
class End:
    """An object to be deleted as a user would delete it: a pod with its grace period, others by their finalizers.

    `policy` says what becomes of its dependents.
    """

    item: Object
    policy: str = BACKGROUND


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that an operator must know and that no write can mend."""

    text: str
    about: str


Write = Make | Change | Drop | End
Outcome = Write | Notice


def moved(cursor: Cursor, after: int) -> Make | Change:
    """The cursor's own write."""
    item = msgspec.structs.replace(cursor, next=after)
    return Change(item, cursor) if cursor.metadata.resource_version else Make(item)


# --- what there is from the start -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NetworkWish:
    """The overlay as the settings want it."""

    pools: SubnetPools
    service_network: IPv4Network
    plugin_name: str
    mtu: int | None = None


def bootstrap(
    wish: NetworkWish, namespaces: Iterable[Namespace], network: ClusterNetwork | None
) -> Iterator[Make | Change]:
    """The namespaces that are always there, and the ClusterNetwork `default` as the settings have it."""
    present = {namespace.metadata.name for namespace in namespaces}
    for name in LASTING:
        if name not in present:
            yield Make(Namespace(metadata=ObjectMeta(name=name)))
    first = wish.pools.pools[0]
    entries = (ClusterNetworkEntry(cidr=str(p.network), host_subnet_length=p.host_bits) for p in wish.pools.pools)
    wanted = ClusterNetwork(
        metadata=ObjectMeta(name="default") if network is None else network.metadata,
        network=str(first.network),
        hostsubnetlength=first.host_bits,
        service_network=str(wish.service_network),
        plugin_name=wish.plugin_name,
        cluster_networks=tuple(entries),
        mtu=wish.mtu,
    )
    if network is None:
        yield Make(wanted)
        return
    wanted = msgspec.structs.replace(
        wanted, api_version=network.api_version, kind=network.kind, vxlan_port=network.vxlan_port
    )
    if wanted != network:
        yield Change(wanted, network)


def priority_classes(found: Iterable[PriorityClass]) -> Iterator[Make]:
    """The classes that are always there, as far as they are not."""
    present = {item.metadata.name for item in found}
    yield from (Make(item) for item in SYSTEM_CLASSES if item.metadata.name not in present)


def service_cidr(wish: NetworkWish, found: ServiceCIDR | None) -> Iterator[Make | Change]:
    """The one ServiceCIDR, `kubernetes`, says the network that the settings give to services."""
    spec = ServiceCIDRSpec(cidrs=(str(wish.service_network),))
    if found is None:
        yield Make(ServiceCIDR(metadata=ObjectMeta(name=SERVICE_CIDR_NAME), spec=spec))
    elif found.spec != spec:
        yield Change(msgspec.structs.replace(found, spec=spec), found)


# --- queries ----------------------------------------------------------------------------------------------------------


def old_queries(queries: Iterable[NodeQuery], wall: datetime.datetime) -> Iterator[Drop]:
    """Queries that whoever asked has forgotten."""
    for query in queries:
        made = parse_time(query.metadata.creation_timestamp)
        if made is None or wall - made > QUERY_LIFE:
            yield Drop(query)


# --- nodes ------------------------------------------------------------------------------------------------------------


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

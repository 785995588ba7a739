"""The plan of the network controllers for another cluster: objects in, writes out. Pure.

Allocated numbers are recorded first, by a write to the ClusterNetwork that fails if another process has written it
meanwhile. So two processes that both believe to be the leader do not allocate the same numbers.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from api.core.node import Namespace, Node
from api.meta.types import ObjectMeta
from api.network.conflicts import CURSORS_ANNOTATION, conflicting_subnets, split_valid
from api.network.queries import NodeQuery
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace
from api.validation.network import check_host_subnet, check_net_namespace_fields
from master.allocators import AllocatorCursor
from master.config import NetworkConfig
from master.controllers import bootstrap, expiration
from master.controllers.actions import Action, Create, ForceDelete, Update, Warn
from master.controllers.network.host_subnets import reconcile_host_subnets
from master.controllers.network.net_namespaces import reconcile_net_namespaces, separate_duplicates
from master.resources.cluster_network import NODE_UID_ANNOTATION

SUBNETS, VNIDS = "subnets", "vnids"

Write = Create | Update | ForceDelete


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the API server holds."""

    namespaces: tuple[Namespace, ...]
    nodes: tuple[Node, ...]
    network: ClusterNetwork | None
    subnets: tuple[HostSubnet, ...]
    lanes: tuple[NetNamespace, ...]
    queries: tuple[NodeQuery, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """`network`, the ClusterNetwork with the numbers that are taken, is written before any of `rest`.

    `notices` are sentences for operators, by what they are about.
    """

    network: Create | Update | None
    rest: tuple[Write, ...]
    notices: Mapping[str, str]


def plan(wish: NetworkConfig, seen: ClusterState, now: datetime.datetime) -> Plan:
    """All that is to be done now."""
    notices: dict[str, str] = {}
    rest: list[Write] = []
    numbers = _numbers(seen.network)
    network = seen.network
    for outcome in _outcomes(wish, seen, numbers, now):
        if isinstance(outcome, Warn):
            notices[outcome.about] = outcome.text
        elif isinstance(outcome.item, AllocatorCursor):
            numbers = {**numbers, outcome.item.metadata.name: outcome.item.next}
        elif isinstance(outcome.item, ClusterNetwork):
            network = outcome.item
        elif isinstance(outcome, Create | Update | ForceDelete) and not isinstance(outcome.item, Namespace):
            rest.append(outcome)
    return Plan(_network(seen.network, network, numbers), tuple(rest), notices)


def _outcomes(
    wish: NetworkConfig, seen: ClusterState, numbers: Mapping[str, int], now: datetime.datetime
) -> Iterator[Action]:
    subnets, bad_subnets = split_valid(seen.subnets, check_host_subnet)
    lanes, bad_lanes = split_valid(seen.lanes, check_net_namespace_fields)
    for kind, bad in (("hostsubnet", bad_subnets), ("netnamespace", bad_lanes)):
        yield from (Warn(f"no node believes it: {what}", f"{kind} {name}") for name, what in bad.items())
    yield from bootstrap.bootstrap_objects(wish, seen.namespaces, seen.network)
    # Who has what belongs to another loses it first; all else is for the next pass.
    overlaps = tuple(_overlaps(subnets))
    drops = any(isinstance(one, ForceDelete) for one in overlaps)
    yield from overlaps
    nodes = tuple(node for node in seen.nodes if node.metadata.name not in bad_subnets)
    yield from () if drops else reconcile_host_subnets(wish, nodes, subnets, _cursor(SUBNETS, numbers))
    intruders = tuple(separate_duplicates(lanes, _cursor(VNIDS, numbers)))
    projects = tuple(one for one in seen.namespaces if one.metadata.name not in bad_lanes)
    yield from intruders or reconcile_net_namespaces(wish, projects, lanes, _cursor(VNIDS, numbers))
    yield from expiration.expired_queries(seen.queries, now)


def _overlaps(subnets: Iterable[HostSubnet]) -> Iterator[Action]:
    """Of two that overlap the younger goes, if it was made for a node: that gets another one."""
    known = {subnet.metadata.name: subnet for subnet in subnets}
    for name, holder in sorted(conflicting_subnets(known.values()).items()):
        subnet, older = known[name], known[holder]
        if subnet.host_ip == older.host_ip:
            yield Warn(f"its hostIP {subnet.host_ip} is that of {holder}: no node believes it", f"hostsubnet {name}")
            continue
        text = f"its subnet {subnet.subnet} overlaps {older.subnet} of {holder}: no node believes it"
        yield Warn(text, f"hostsubnet {name}")
        if NODE_UID_ANNOTATION in subnet.metadata.annotations:
            yield ForceDelete(subnet)


def _cursor(name: str, numbers: Mapping[str, int]) -> AllocatorCursor:
    return AllocatorCursor(metadata=ObjectMeta(name=name), next=numbers[name])


def _numbers(network: ClusterNetwork | None) -> dict[str, int]:
    """Where each allocator goes on; from the beginning where nothing, or nothing readable, is noted."""
    try:
        noted = json.loads(network.metadata.annotations[CURSORS_ANNOTATION]) if network is not None else {}
        return {name: int(noted.get(name, 0)) for name in (SUBNETS, VNIDS)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {SUBNETS: 0, VNIDS: 0}


def _network(
    before: ClusterNetwork | None, after: ClusterNetwork | None, numbers: Mapping[str, int]
) -> Create | Update | None:
    """The ClusterNetwork as wished, with the numbers; None when it is so already."""
    if after is None:
        return None
    annotations = {**after.metadata.annotations, CURSORS_ANNOTATION: json.dumps(numbers, sort_keys=True)}
    item = msgspec.structs.replace(after, metadata=msgspec.structs.replace(after.metadata, annotations=annotations))
    if before is None:
        return Create(item)
    return Update(item, before) if item != before else None

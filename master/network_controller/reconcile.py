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
from master.controllers.actions import Action, Create, Failed, ForceDelete, Update, Warn
from master.controllers.network import host_subnets, net_namespaces
from master.resources.cluster_network import NODE_UID_ANNOTATION

SUBNETS, VNIDS = "subnets", "vnids"

Write = Create | Update | ForceDelete


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The objects on the API server."""

    namespaces: tuple[Namespace, ...]
    nodes: tuple[Node, ...]
    network: ClusterNetwork | None
    host_subnets: tuple[HostSubnet, ...]
    net_namespaces: tuple[NetNamespace, ...]
    queries: tuple[NodeQuery, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes of a pass. `network`, the ClusterNetwork with the allocated numbers, is written before `other_writes`.
    `warnings` are texts for operators by their subject.
    """

    network: Create | Update | None
    other_writes: tuple[Write, ...]
    warnings: Mapping[str, str]


def plan(config: NetworkConfig, state: ClusterState, now: datetime.datetime) -> Plan:
    """Return the writes and warnings for this state."""
    warnings: dict[str, str] = {}
    other_writes: list[Write] = []
    numbers = _numbers(state.network)
    network = state.network
    for action in _actions(config, state, numbers, now):
        if isinstance(action, Warn):
            warnings[action.about] = action.text
        elif isinstance(action, Failed):
            subject = f"{type(action.object).__name__.lower()} {action.object.metadata.name}"
            warnings[subject] = f"not reconciled: {action.error!r}"
        elif isinstance(action.object, AllocatorCursor):
            numbers = {**numbers, action.object.metadata.name: action.object.next}
        elif isinstance(action.object, ClusterNetwork):
            network = action.object
        elif isinstance(action, Create | Update | ForceDelete) and not isinstance(action.object, Namespace):
            other_writes.append(action)
    return Plan(_network(state.network, network, numbers), tuple(other_writes), warnings)


def _actions(
    config: NetworkConfig, state: ClusterState, numbers: Mapping[str, int], now: datetime.datetime
) -> Iterator[Action]:
    subnets, bad_subnets = split_valid(state.host_subnets, check_host_subnet)
    valid_net_namespaces, bad_net_namespaces = split_valid(state.net_namespaces, check_net_namespace_fields)
    for kind, errors in (("hostsubnet", bad_subnets), ("netnamespace", bad_net_namespaces)):
        yield from (Warn(f"rejected by nodes: {error}", f"{kind} {name}") for name, error in errors.items())
    yield from bootstrap.bootstrap_objects(config, state.namespaces, state.network)
    # Conflicting subnets and VNIDs are released first; everything else waits for the next pass.
    overlaps = tuple(_overlaps(subnets))
    has_deletes = any(isinstance(action, ForceDelete) for action in overlaps)
    yield from overlaps
    nodes = tuple(node for node in state.nodes if node.metadata.name not in bad_subnets)
    yield from () if has_deletes else host_subnets.reconcile(config, nodes, subnets, _cursor(SUBNETS, numbers))
    duplicates = tuple(net_namespaces.separate_duplicates(valid_net_namespaces, _cursor(VNIDS, numbers)))
    namespaces = tuple(namespace for namespace in state.namespaces if namespace.metadata.name not in bad_net_namespaces)
    yield from duplicates or net_namespaces.reconcile(config, namespaces, valid_net_namespaces, _cursor(VNIDS, numbers))
    yield from expiration.expired_queries(state.queries, now)


def _overlaps(subnets: Iterable[HostSubnet]) -> Iterator[Action]:
    """Yield the deletion of the younger of two overlapping subnets, if it was made for a node: the node gets another
    one.
    """
    by_name = {subnet.metadata.name: subnet for subnet in subnets}
    for name, older_name in sorted(conflicting_subnets(by_name.values()).items()):
        subnet, older = by_name[name], by_name[older_name]
        if subnet.host_ip == older.host_ip:
            yield Warn(f"its hostIP {subnet.host_ip} is that of {older_name}: rejected by nodes", f"hostsubnet {name}")
            continue
        text = f"its subnet {subnet.subnet} overlaps {older.subnet} of {older_name}: rejected by nodes"
        yield Warn(text, f"hostsubnet {name}")
        if NODE_UID_ANNOTATION in subnet.metadata.annotations:
            yield ForceDelete(subnet)


def _cursor(name: str, numbers: Mapping[str, int]) -> AllocatorCursor:
    return AllocatorCursor(metadata=ObjectMeta(name=name), next=numbers[name])


def _numbers(network: ClusterNetwork | None) -> dict[str, int]:
    """Return the position of each allocator; 0 if none, or no readable one, is stored."""
    try:
        stored = json.loads(network.metadata.annotations[CURSORS_ANNOTATION]) if network is not None else {}
        return {name: int(stored.get(name, 0)) for name in (SUBNETS, VNIDS)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {SUBNETS: 0, VNIDS: 0}


def _network(
    old: ClusterNetwork | None, desired: ClusterNetwork | None, numbers: Mapping[str, int]
) -> Create | Update | None:
    """Return the write of the ClusterNetwork with the allocated numbers; None if it is unchanged."""
    if desired is None:
        return None
    annotations = {**desired.metadata.annotations, CURSORS_ANNOTATION: json.dumps(numbers, sort_keys=True)}
    annotated = msgspec.structs.replace(
        desired, metadata=msgspec.structs.replace(desired.metadata, annotations=annotations)
    )
    if old is None:
        return Create(annotated)
    return Update(annotated, old) if annotated != old else None

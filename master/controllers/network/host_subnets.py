"""HostSubnets: a part of the cluster network for each node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network

import msgspec

from api.core.node import Node
from api.meta.types import ObjectMeta
from api.network.types import ASSIGN_SUBNET, HostSubnet
from master.allocators import AllocatorCursor
from master.config import NetworkConfig
from master.controllers.actions import Action, Create, ForceDelete, Update, Warn, advance_cursor
from master.resources.cluster_network import NODE_UID_ANNOTATION
from master.resources.nodes import internal_ip


def reconcile_host_subnets(
    wish: NetworkConfig, nodes: Iterable[Node], subnets: Iterable[HostSubnet], cursor: AllocatorCursor
) -> Iterator[Action]:
    """A HostSubnet for every Node that has an address, and none for nodes that are gone.

    A node is known by name and uid: one that was deleted and came back under its name gets another subnet. A new
    address changes the HostSubnet in place. A HostSubnet without the mark of a node, made by hand for a host that is no
    node, stays as it is; it gets a subnet when its annotation asks for one.
    """
    by_name = {node.metadata.name: node for node in nodes}
    kept: dict[str, HostSubnet] = {}
    resting: list[str] = []
    for subnet in subnets:
        node, uid = by_name.get(subnet.metadata.name), subnet.metadata.annotations.get(NODE_UID_ANNOTATION, "")
        if uid and (node is None or node.metadata.uid != uid):
            resting.append(subnet.subnet)
            yield ForceDelete(subnet)
        else:
            kept[subnet.metadata.name] = subnet
    wanting: list[Node] = []
    holders = {subnet.host_ip: name for name, subnet in kept.items()}
    for name, node in sorted(by_name.items()):
        holder = holders.setdefault(internal_ip(node), name)
        problem = _address_problem(wish, node) or _address_conflict(node, holder)
        if problem:
            yield Warn(problem, f"node {name}")
        elif name in kept:
            yield from _updated(kept[name], node)
        else:
            wanting.append(node)
    asking = [subnet for _, subnet in sorted(kept.items()) if ASSIGN_SUBNET in subnet.metadata.annotations]
    used = [subnet.subnet for subnet in kept.values() if subnet.subnet] + resting
    yield from _new_subnets(wish, wanting, asking, list(map(IPv4Network, used)), cursor)


def _new_subnets(
    wish: NetworkConfig, nodes: list[Node], asking: list[HostSubnet], used: list[IPv4Network], cursor: AllocatorCursor
) -> Iterator[Action]:
    nodes.sort(key=lambda node: (node.metadata.creation_timestamp or "", node.metadata.name))
    given, after = wish.pools.allocate(len(nodes) + len(asking), used, cursor.next)
    for node, subnet in zip(nodes, given, strict=False):
        yield Create(_host_subnet(node, subnet))
    for host, subnet in zip(asking, given[len(nodes) :], strict=False):
        yield _assigned(host, subnet)
    if after != cursor.next:
        yield advance_cursor(cursor, after)
    names = [*(f"node {node.metadata.name}" for node in nodes), *(f"hostsubnet {one.host}" for one in asking)]
    for about in names[len(given) :]:
        yield Warn(f"all {wish.pools.size} subnets of {wish.pools} are in use", about)


def _assigned(asking: HostSubnet, subnet: IPv4Network) -> Update:
    """The subnet and the removal of the request, in one write."""
    kept = {key: text for key, text in asking.metadata.annotations.items() if key != ASSIGN_SUBNET}
    metadata = msgspec.structs.replace(asking.metadata, annotations=kept)
    return Update(msgspec.structs.replace(asking, metadata=metadata, subnet=str(subnet)), asking)


def _host_subnet(node: Node, subnet: IPv4Network) -> HostSubnet:
    name = node.metadata.name
    metadata = ObjectMeta(name=name, annotations={NODE_UID_ANNOTATION: node.metadata.uid})
    return HostSubnet(metadata=metadata, host=name, host_ip=internal_ip(node), subnet=str(subnet))


def _updated(subnet: HostSubnet, node: Node) -> Iterator[Update]:
    annotations = {**subnet.metadata.annotations, NODE_UID_ANNOTATION: node.metadata.uid}
    metadata = msgspec.structs.replace(subnet.metadata, annotations=annotations)
    wanted = msgspec.structs.replace(subnet, metadata=metadata, host_ip=internal_ip(node))
    if wanted != subnet:
        yield Update(wanted, subnet)


def _address_conflict(node: Node, holder: str) -> str:
    """Why the node cannot have an address that is behind another HostSubnet; empty if it is its own."""
    if holder == node.metadata.name:
        return ""
    return f"its InternalIP {internal_ip(node)} is that of {holder}; each needs its own"


def _address_problem(wish: NetworkConfig, node: Node) -> str:
    """Why the node's address cannot be the end of a tunnel; empty if it can."""
    text = internal_ip(node)
    if not text:
        return "it reports no InternalIP, so it gets no subnet"
    try:
        address = IPv4Address(text)
    except ValueError:
        return f"its InternalIP {text!r} is no IPv4 address, so it gets no subnet"
    if address.is_loopback or address.is_unspecified or address.is_multicast or address.is_reserved:
        return f"its InternalIP {text} is not an address that others reach, so it gets no subnet"
    networks = [("cluster", pool.network) for pool in wish.pools.pools]
    for name, network in (*networks, ("service", wish.service_network)):
        if address in network:
            return f"its InternalIP {text} lies in the {name} network {network}, so it gets no subnet"
    return ""

"""HostSubnets: a part of the cluster network for each node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network

import msgspec

from api.core.node import Node
from api.meta.types import ObjectMeta
from api.network.types import ASSIGN_SUBNET_ANNOTATION, HostSubnet
from master.allocators import AllocatorCursor
from master.config import NetworkConfig
from master.controllers.actions import Action, Create, ForceDelete, Update, Warn, advance_cursor, isolate_errors
from master.resources.cluster_network import NODE_UID_ANNOTATION
from master.resources.nodes import internal_ip


def reconcile(
    config: NetworkConfig, nodes: Iterable[Node], subnets: Iterable[HostSubnet], cursor: AllocatorCursor
) -> Iterator[Action]:
    """Yield the writes for a HostSubnet of every Node that has an address, and none for missing nodes.

    A node is identified by name and uid: a node that was deleted and registered again under its name gets another
    subnet. A new address changes the HostSubnet in place. A HostSubnet without a node's uid was made by hand for a host
    that is no node; it stays, and gets a subnet when its annotation requests one.
    """
    by_name = {node.metadata.name: node for node in nodes}
    host_subnets: dict[str, HostSubnet] = {}
    used: list[IPv4Network] = []

    def sync_subnet(subnet: HostSubnet) -> Iterator[ForceDelete]:
        node, uid = by_name.get(subnet.metadata.name), subnet.metadata.annotations.get(NODE_UID_ANNOTATION, "")
        if uid and (node is None or node.metadata.uid != uid):
            yield ForceDelete(subnet)
        else:
            host_subnets[subnet.metadata.name] = subnet
        if subnet.subnet:
            used.append(IPv4Network(subnet.subnet))

    yield from isolate_errors(subnets, sync_subnet)
    new_nodes: list[Node] = []
    names_by_address = {subnet.host_ip: name for name, subnet in host_subnets.items()}

    def sync_node(node: Node) -> Iterator[Action]:
        name = node.metadata.name
        holder = names_by_address.setdefault(internal_ip(node), name)
        problem = _address_problem(config, node) or _address_conflict(node, holder)
        if problem:
            yield Warn(problem, f"node {name}")
        elif name in host_subnets:
            yield from _updated(host_subnets[name], node)
        else:
            new_nodes.append(node)

    yield from isolate_errors((node for _, node in sorted(by_name.items())), sync_node)
    unassigned = [
        subnet for _, subnet in sorted(host_subnets.items()) if ASSIGN_SUBNET_ANNOTATION in subnet.metadata.annotations
    ]
    yield from _new_subnets(config, new_nodes, unassigned, used, cursor)


def _new_subnets(
    config: NetworkConfig,
    nodes: list[Node],
    unassigned: list[HostSubnet],
    used: list[IPv4Network],
    cursor: AllocatorCursor,
) -> Iterator[Action]:
    nodes.sort(key=lambda node: (node.metadata.creation_timestamp or "", node.metadata.name))
    allocated, after = config.pools.allocate(len(nodes) + len(unassigned), used, cursor.next)
    for node, subnet in zip(nodes, allocated, strict=False):
        yield Create(_host_subnet(node, subnet))
    for host, subnet in zip(unassigned, allocated[len(nodes) :], strict=False):
        yield _assigned(host, subnet)
    if after != cursor.next:
        yield advance_cursor(cursor, after)
    names = [
        *(f"node {node.metadata.name}" for node in nodes),
        *(f"hostsubnet {host_subnet.host}" for host_subnet in unassigned),
    ]
    for about in names[len(allocated) :]:
        yield Warn(f"all {config.pools.size} subnets of {config.pools} are in use", about)


def _assigned(host_subnet: HostSubnet, subnet: IPv4Network) -> Update:
    """Return the update that sets the subnet and removes the request."""
    annotations = {
        key: value for key, value in host_subnet.metadata.annotations.items() if key != ASSIGN_SUBNET_ANNOTATION
    }
    metadata = msgspec.structs.replace(host_subnet.metadata, annotations=annotations)
    return Update(msgspec.structs.replace(host_subnet, metadata=metadata, subnet=str(subnet)), host_subnet)


def _host_subnet(node: Node, subnet: IPv4Network) -> HostSubnet:
    name = node.metadata.name
    metadata = ObjectMeta(name=name, annotations={NODE_UID_ANNOTATION: node.metadata.uid})
    return HostSubnet(metadata=metadata, host=name, host_ip=internal_ip(node), subnet=str(subnet))


def _updated(subnet: HostSubnet, node: Node) -> Iterator[Update]:
    annotations = {**subnet.metadata.annotations, NODE_UID_ANNOTATION: node.metadata.uid}
    metadata = msgspec.structs.replace(subnet.metadata, annotations=annotations)
    desired = msgspec.structs.replace(subnet, metadata=metadata, host_ip=internal_ip(node))
    if desired != subnet:
        yield Update(desired, subnet)


def _address_conflict(node: Node, holder: str) -> str:
    """Return why a node cannot have an address of another HostSubnet; empty if the address is its own."""
    if holder == node.metadata.name:
        return ""
    return f"its InternalIP {internal_ip(node)} is that of {holder}; each needs its own"


def _address_problem(config: NetworkConfig, node: Node) -> str:
    """Return why the address of a node cannot be a tunnel endpoint; empty if it can."""
    text = internal_ip(node)
    if not text:
        return "it reports no InternalIP, so it gets no subnet"
    try:
        address = IPv4Address(text)
    except ValueError:
        return f"its InternalIP {text!r} is no IPv4 address, so it gets no subnet"
    if address.is_loopback or address.is_unspecified or address.is_multicast or address.is_reserved:
        return f"its InternalIP {text} is not an address that others reach, so it gets no subnet"
    networks = [("cluster", pool.network) for pool in config.pools.pools]
    for name, network in (*networks, ("service", config.service_network)):
        if address in network:
            return f"its InternalIP {text} lies in the {name} network {network}, so it gets no subnet"
    return ""

"""Nodes, subnets, lanes and the cluster network: what is accepted of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from api import lanes
from api.addresses import out_of_reach
from api.objects import (
    ASSIGN_SUBNET,
    PLUGIN_MULTITENANT,
    PLUGIN_SUBNET,
    ClusterNetwork,
    HostSubnet,
    NetNamespace,
    Node,
)
from api.schema import FORBIDDEN, INVALID, NOT_SUPPORTED, Problem, shown

LAST_VNID = 0xFFFFFF
MTU_RANGE = range(576, 65537)


def check_node(node: Node) -> Iterator[Problem]:
    """Its addresses are addresses."""
    for number, address in enumerate(node.status.addresses):
        path = f"status.addresses[{number}].address"
        if address.type == "InternalIP":
            yield from check_address(path, address.address)
        elif address.type == "ExternalIP" and (why := out_of_reach(address.address)):
            yield Problem(path, shown(address.address), why)


def check_host_subnet(subnet: HostSubnet) -> Iterator[Problem]:
    """It belongs to the node of its name."""
    if subnet.host != subnet.metadata.name:
        yield Problem("host", shown(subnet.host), f"must equal metadata.name, {shown(subnet.metadata.name)}")
    yield from check_address("hostIP", subnet.host_ip)
    if subnet.subnet or ASSIGN_SUBNET not in subnet.metadata.annotations:
        yield from _check_network("subnet", subnet.subnet)


def immutable_host_subnet(old: HostSubnet, new: HostSubnet) -> Iterator[Problem]:
    """A node keeps its subnet."""
    if old.subnet != new.subnet:
        yield Problem("subnet", shown(new.subnet), "field is immutable; delete the object to get another", FORBIDDEN)


def check_net_namespace(lane: NetNamespace) -> Iterator[Problem]:
    """It is a lane, and what it wishes can be."""
    yield from check_lane(lane)
    wish = lane.metadata.annotations.get(lanes.CHANGE_NETWORK)
    if wish is not None:
        yield from _check_lane_request(lane, wish)


def check_lane(lane: NetNamespace) -> Iterator[Problem]:
    """It belongs to the project of its name, and its VNID is one."""
    if lane.netname != lane.metadata.name:
        yield Problem("netname", shown(lane.netname), f"must equal metadata.name, {shown(lane.metadata.name)}")
    if not 0 <= lane.netid <= LAST_VNID:
        yield Problem("netid", shown(lane.netid), f"0 to {LAST_VNID} is accepted")


def immutable_net_namespace(old: NetNamespace, new: NetNamespace) -> Iterator[Problem]:
    """A lane keeps its project."""
    if old.netname != new.netname:
        yield Problem("netname", shown(new.netname), "field is immutable", FORBIDDEN)


def _check_lane_request(lane: NetNamespace, wish: str) -> Iterator[Problem]:
    path = f"metadata.annotations[{lanes.CHANGE_NETWORK}]"
    try:
        request = lanes.parse(wish)
    except lanes.BadRequest as error:
        yield Problem(path, shown(wish), str(error), NOT_SUPPORTED)
        return
    if lane.metadata.name == "default" and request.verb != "global":
        yield Problem(path, shown(wish), "default stays global: the whole cluster relies on it", FORBIDDEN)


def check_cluster_network(wish: ClusterNetwork) -> Iterator[Problem]:
    """Networks that are some, and leave room for the subnets of nodes."""
    ranges: dict[str, Any] = {"network": wish.network, "serviceNetwork": wish.service_network}
    ranges |= {f"clusterNetworks[{n}].CIDR": entry.cidr for n, entry in enumerate(wish.cluster_networks)}
    for path, text in ranges.items():
        yield from _check_network(path, text)
    if wish.plugin_name not in {PLUGIN_SUBNET, PLUGIN_MULTITENANT}:
        accepted = f'"{PLUGIN_SUBNET}" or "{PLUGIN_MULTITENANT}" is accepted'
        yield Problem("pluginName", shown(wish.plugin_name), accepted, NOT_SUPPORTED)
    if wish.mtu is not None and wish.mtu not in MTU_RANGE:
        yield Problem("mtu", shown(wish.mtu), "576 to 65536 is accepted")
    if wish.vxlan_port is not None and not 1 <= wish.vxlan_port <= 65535:
        yield Problem("vxlanPort", shown(wish.vxlan_port), "a port is 1 to 65535")
    if not any(list(_check_network("", text)) for text in ranges.values()):
        yield from _check_layout(wish)


def _check_layout(wish: ClusterNetwork) -> Iterator[Problem]:
    network, services = IPv4Network(wish.network), IPv4Network(wish.service_network)
    most = 32 - network.prefixlen
    if not 2 <= wish.hostsubnetlength <= most:
        yield Problem("hostsubnetlength", shown(wish.hostsubnetlength), f"2 to {most} host bits are accepted")
    if network.overlaps(services):
        yield Problem("serviceNetwork", shown(wish.service_network), f"must not overlap network {wish.network}")


def check_address(path: str, text: str) -> Iterator[Problem]:
    """An address that other nodes can reach."""
    try:
        IPv4Address(text)
    except ValueError:
        yield Problem(path, shown(text), "an IPv4 address is accepted")
        return
    if why := out_of_reach(text):
        yield Problem(path, shown(text), why)


def _check_network(path: str, text: str) -> Iterator[Problem]:
    try:
        IPv4Network(text)
    except ValueError as error:
        yield Problem(path, shown(text), f'a network such as "10.128.0.0/14" is accepted ({error})', INVALID)

"""Checks of Node, HostSubnet, NetNamespace, ClusterNetwork and NodeQuery. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from api.core.node import Node
from api.meta.schema import FORBIDDEN, INVALID, MISSING, NOT_SUPPORTED, FieldError, quoted
from api.network import types
from api.network.addresses import out_of_reach
from api.network.queries import CaptureQuestion, NodeQuery, TraceQuestion
from api.network.types import ASSIGN_SUBNET, PLUGIN_MULTITENANT, PLUGIN_SUBNET, ClusterNetwork, HostSubnet, NetNamespace

LAST_VNID = 0xFFFFFF
MTU_RANGE = range(576, 65537)


def check_node(node: Node) -> Iterator[FieldError]:
    """Its addresses are addresses."""
    for number, address in enumerate(node.status.addresses):
        path = f"status.addresses[{number}].address"
        if address.type == "InternalIP":
            yield from check_address(path, address.address)
        elif address.type == "ExternalIP" and (why := out_of_reach(address.address)):
            yield FieldError(path, quoted(address.address), why)


def check_host_subnet(subnet: HostSubnet) -> Iterator[FieldError]:
    """It belongs to the node of its name."""
    if subnet.host != subnet.metadata.name:
        yield FieldError("host", quoted(subnet.host), f"must equal metadata.name, {quoted(subnet.metadata.name)}")
    yield from check_address("hostIP", subnet.host_ip)
    if subnet.subnet or ASSIGN_SUBNET not in subnet.metadata.annotations:
        yield from _check_network("subnet", subnet.subnet)


def immutable_host_subnet(old: HostSubnet, new: HostSubnet) -> Iterator[FieldError]:
    """A node keeps its subnet."""
    if old.subnet != new.subnet:
        yield FieldError(
            "subnet", quoted(new.subnet), "field is immutable; delete the object to get another", FORBIDDEN
        )


def check_net_namespace(lane: NetNamespace) -> Iterator[FieldError]:
    """It is a lane, and what it wishes can be."""
    yield from check_lane(lane)
    wish = lane.metadata.annotations.get(types.CHANGE_NETWORK)
    if wish is not None:
        yield from _check_lane_request(lane, wish)


def check_lane(lane: NetNamespace) -> Iterator[FieldError]:
    """It belongs to the project of its name, and its VNID is one."""
    if lane.netname != lane.metadata.name:
        yield FieldError("netname", quoted(lane.netname), f"must equal metadata.name, {quoted(lane.metadata.name)}")
    if not 0 <= lane.netid <= LAST_VNID:
        yield FieldError("netid", quoted(lane.netid), f"0 to {LAST_VNID} is accepted")


def immutable_net_namespace(old: NetNamespace, new: NetNamespace) -> Iterator[FieldError]:
    """A lane keeps its project."""
    if old.netname != new.netname:
        yield FieldError("netname", quoted(new.netname), "field is immutable", FORBIDDEN)


def _check_lane_request(lane: NetNamespace, wish: str) -> Iterator[FieldError]:
    path = f"metadata.annotations[{types.CHANGE_NETWORK}]"
    try:
        request = types.parse_change_network(wish)
    except types.BadChangeNetwork as error:
        yield FieldError(path, quoted(wish), str(error), NOT_SUPPORTED)
        return
    if lane.metadata.name == "default" and request.verb != "global":
        yield FieldError(path, quoted(wish), "default stays global: the whole cluster relies on it", FORBIDDEN)


def check_cluster_network(wish: ClusterNetwork) -> Iterator[FieldError]:
    """Networks that are some, and leave room for the subnets of nodes."""
    ranges: dict[str, Any] = {"network": wish.network, "serviceNetwork": wish.service_network}
    ranges |= {f"clusterNetworks[{n}].CIDR": entry.cidr for n, entry in enumerate(wish.cluster_networks)}
    for path, text in ranges.items():
        yield from _check_network(path, text)
    if wish.plugin_name not in {PLUGIN_SUBNET, PLUGIN_MULTITENANT}:
        accepted = f'"{PLUGIN_SUBNET}" or "{PLUGIN_MULTITENANT}" is accepted'
        yield FieldError("pluginName", quoted(wish.plugin_name), accepted, NOT_SUPPORTED)
    if wish.mtu is not None and wish.mtu not in MTU_RANGE:
        yield FieldError("mtu", quoted(wish.mtu), "576 to 65536 is accepted")
    if wish.vxlan_port is not None and not 1 <= wish.vxlan_port <= 65535:
        yield FieldError("vxlanPort", quoted(wish.vxlan_port), "a port is 1 to 65535")
    if not any(list(_check_network("", text)) for text in ranges.values()):
        yield from _check_layout(wish)


def _check_layout(wish: ClusterNetwork) -> Iterator[FieldError]:
    network, services = IPv4Network(wish.network), IPv4Network(wish.service_network)
    most = 32 - network.prefixlen
    if not 2 <= wish.hostsubnetlength <= most:
        yield FieldError("hostsubnetlength", quoted(wish.hostsubnetlength), f"2 to {most} host bits are accepted")
    if network.overlaps(services):
        yield FieldError("serviceNetwork", quoted(wish.service_network), f"must not overlap network {wish.network}")


def check_address(path: str, text: str) -> Iterator[FieldError]:
    """An address that other nodes can reach."""
    try:
        IPv4Address(text)
    except ValueError:
        yield FieldError(path, quoted(text), "an IPv4 address is accepted")
        return
    if why := out_of_reach(text):
        yield FieldError(path, quoted(text), why)


def _check_network(path: str, text: str) -> Iterator[FieldError]:
    try:
        IPv4Network(text)
    except ValueError as error:
        yield FieldError(path, quoted(text), f'a network such as "10.128.0.0/14" is accepted ({error})', INVALID)


ENTRANCES = ("pod", "docker", "tunnel", "node")
PROTOCOLS = ("icmp", "tcp", "udp", "arp", "arp-reply", "ipv6")
WITH_FRAGMENTS = ("icmp", "tcp", "udp")
WITH_PORTS = ("tcp", "udp")
FRAGMENTS = ("first", "later")
LAST_TRACED_VNID, LAST_PORT, LAST_VLAN = 0xFFFFFF, 65535, 4095
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.IGNORECASE)


def check_trace(asked: TraceQuestion) -> Iterator[FieldError]:
    """Every problem; the paths begin at the question."""
    for path, value, accepted in (("enters", asked.enters, ENTRANCES), ("protocol", asked.protocol, PROTOCOLS)):
        if value not in accepted:
            yield FieldError(path, quoted(value), f"{', '.join(accepted)} are accepted", NOT_SUPPORTED)
    yield from _check_addresses(asked)
    for path, number, last in (
        ("port", asked.port, LAST_PORT),
        ("vnid", asked.vnid, LAST_TRACED_VNID),
        ("vlan", asked.vlan or 0, LAST_VLAN),
    ):
        if not 0 <= number <= last:
            yield FieldError(path, quoted(number), f"0 to {last} is accepted")
    for path, mac in (("sourceMac", asked.source_mac), ("targetMac", asked.target_mac)):
        if mac and not _MAC.fullmatch(mac):
            yield FieldError(path, quoted(mac), "a MAC such as 0a:58:0a:80:00:02 is accepted")
    yield from _check_sense(asked)


def _check_addresses(asked: TraceQuestion) -> Iterator[FieldError]:
    yield from _check_address("source", asked.source)
    yield from _check_address("target", asked.target)
    for path, value, where in (
        ("sender", asked.sender, ("pod", "docker")),
        ("tunnelSource", asked.tunnel_source, ("tunnel",)),
    ):
        if asked.enters in where and not value:
            yield FieldError(path, '""', f"required of what enters from {asked.enters}", MISSING)
        elif asked.enters in where:
            yield from _check_address(path, value)
        elif value:
            yield FieldError(path, quoted(value), f"goes with enters: {' or '.join(where)}", FORBIDDEN)


def _check_sense(asked: TraceQuestion) -> Iterator[FieldError]:
    if asked.vnid and asked.enters != "tunnel":
        yield FieldError(
            "vnid", quoted(asked.vnid), "the switch notes it itself, but for what enters from a tunnel", FORBIDDEN
        )
    if asked.port and asked.protocol not in WITH_PORTS:
        yield FieldError(
            "port", quoted(asked.port), f"{asked.protocol} has no ports, {' and '.join(WITH_PORTS)} have", FORBIDDEN
        )
    elif asked.port and asked.fragment == "later":
        yield FieldError("port", quoted(asked.port), "only the first fragment carries the port", FORBIDDEN)
    if asked.fragment and asked.fragment not in FRAGMENTS:
        yield FieldError("fragment", quoted(asked.fragment), f"{', '.join(FRAGMENTS)} are accepted", NOT_SUPPORTED)
    elif asked.fragment and asked.protocol not in WITH_FRAGMENTS:
        yield FieldError("fragment", quoted(asked.fragment), f"goes with {', '.join(WITH_FRAGMENTS)}", FORBIDDEN)
    if asked.protocol == "ipv6" and asked.sender and asked.source != asked.sender:
        yield FieldError("source", quoted(asked.source), "an IPv6 packet carries no IPv4 address to borrow", FORBIDDEN)


def _check_address(path: str, text: str) -> Iterator[FieldError]:
    try:
        IPv4Address(text)
    except ValueError:
        yield FieldError(path, quoted(text), "an IPv4 address is accepted")


MOST_PACKETS, MOST_SECONDS = 1000, 60


def check_query(query: NodeQuery) -> Iterator[FieldError]:
    """Exactly one question, to a node."""
    if not query.spec.node_name:
        yield FieldError("spec.nodeName", '""', "the node that is asked is required", MISSING)
    asked, capture = query.spec.trace, query.spec.capture
    given = [asked is not None, query.spec.report, capture is not None, query.spec.services is not None]
    if given.count(True) != 1:
        yield FieldError("spec", "given", "exactly one of trace, report, capture and services is accepted")
    if capture is not None:
        yield from _check_capture(capture)
    if asked is not None:
        yield from _check_traces(asked)


def _check_capture(asked: CaptureQuestion) -> Iterator[FieldError]:
    yield from check_address("spec.capture.pod", asked.pod)
    for path, value, most in (("packets", asked.packets, MOST_PACKETS), ("seconds", asked.seconds, MOST_SECONDS)):
        if not 1 <= value <= most:
            yield FieldError(f"spec.capture.{path}", quoted(value), f"1 to {most} is accepted")


def _check_traces(asked: TraceQuestion) -> Iterator[FieldError]:
    for problem in check_trace(asked):
        yield problem._replace(path=f"spec.trace.{problem.path}")

"""Checks of Node, HostSubnet, NetNamespace, ClusterNetwork and NodeQuery. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network

from api.core.node import Node
from api.meta.schema import FORBIDDEN, INVALID, MISSING, NOT_SUPPORTED, FieldError, quoted
from api.network.addresses import unreachable_reason
from api.network.queries import CaptureRequest, NodeQuery, TraceRequest
from api.network.types import (
    ASSIGN_SUBNET_ANNOTATION,
    CHANGE_NETWORK_ANNOTATION,
    PLUGIN_MULTITENANT,
    PLUGIN_SUBNET,
    BadChangeNetwork,
    ClusterNetwork,
    HostSubnet,
    NetNamespace,
    parse_change_network,
)

MAX_VNID = 0xFFFFFF
MAX_PORT = 65535
MAX_VLAN_ID = 4095
MTU_RANGE = range(576, 65537)

TRACE_ENTRIES = ("pod", "docker", "tunnel", "node")
TRACE_PROTOCOLS = ("icmp", "tcp", "udp", "arp", "arp-reply", "ipv6")
FRAGMENTED_PROTOCOLS = ("icmp", "tcp", "udp")
PORT_PROTOCOLS = ("tcp", "udp")
FRAGMENTS = ("first", "later")
MAX_CAPTURE_PACKETS = 1000
MAX_CAPTURE_SECONDS = 60

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.IGNORECASE)


def check_node(node: Node) -> Iterator[FieldError]:
    """Yield the errors of a Node: its addresses."""
    for index, address in enumerate(node.status.addresses):
        path = f"status.addresses[{index}].address"
        if address.type == "InternalIP":
            yield from check_address(path, address.address)
        elif address.type == "ExternalIP" and (reason := unreachable_reason(address.address)):
            yield FieldError(path, quoted(address.address), reason)


def check_host_subnet(subnet: HostSubnet) -> Iterator[FieldError]:
    """Yield the errors of a HostSubnet. It must have the name of its node."""
    if subnet.host != subnet.metadata.name:
        yield FieldError("host", quoted(subnet.host), f"must equal metadata.name, {quoted(subnet.metadata.name)}")
    yield from check_address("hostIP", subnet.host_ip)
    if subnet.subnet or ASSIGN_SUBNET_ANNOTATION not in subnet.metadata.annotations:
        yield from _check_network("subnet", subnet.subnet)


def check_host_subnet_update(old: HostSubnet, new: HostSubnet) -> Iterator[FieldError]:
    """Yield an error if an update changes the subnet."""
    if old.subnet != new.subnet:
        yield FieldError(
            "subnet", quoted(new.subnet), "field is immutable; delete the object to get another", FORBIDDEN
        )


def check_net_namespace(net_namespace: NetNamespace) -> Iterator[FieldError]:
    """Yield the errors of a NetNamespace and of its change-network annotation."""
    yield from check_net_namespace_fields(net_namespace)
    requested = net_namespace.metadata.annotations.get(CHANGE_NETWORK_ANNOTATION)
    if requested is None:
        return
    path = f"metadata.annotations[{CHANGE_NETWORK_ANNOTATION}]"
    try:
        request = parse_change_network(requested)
    except BadChangeNetwork as error:
        yield FieldError(path, quoted(requested), str(error), NOT_SUPPORTED)
        return
    if net_namespace.metadata.name == "default" and request.action != "global":
        yield FieldError(path, quoted(requested), "default stays global: the whole cluster relies on it", FORBIDDEN)


def check_net_namespace_fields(net_namespace: NetNamespace) -> Iterator[FieldError]:
    """Yield the errors of a NetNamespace without its annotations. It must have the name of its project."""
    name = net_namespace.metadata.name
    if net_namespace.netname != name:
        yield FieldError("netname", quoted(net_namespace.netname), f"must equal metadata.name, {quoted(name)}")
    if not 0 <= net_namespace.netid <= MAX_VNID:
        yield FieldError("netid", quoted(net_namespace.netid), f"0 to {MAX_VNID} is accepted")


def check_net_namespace_update(old: NetNamespace, new: NetNamespace) -> Iterator[FieldError]:
    """Yield an error if an update changes the project."""
    if old.netname != new.netname:
        yield FieldError("netname", quoted(new.netname), "field is immutable", FORBIDDEN)


def check_cluster_network(cluster_network: ClusterNetwork) -> Iterator[FieldError]:
    """Yield the errors of a ClusterNetwork. Its network must have room for the subnets of nodes."""
    networks = {"network": cluster_network.network, "serviceNetwork": cluster_network.service_network}
    for index, entry in enumerate(cluster_network.cluster_networks):
        networks[f"clusterNetworks[{index}].CIDR"] = entry.cidr
    network_errors = [error for path, text in networks.items() for error in _check_network(path, text)]
    yield from network_errors
    if cluster_network.plugin_name not in {PLUGIN_SUBNET, PLUGIN_MULTITENANT}:
        accepted = f'"{PLUGIN_SUBNET}" or "{PLUGIN_MULTITENANT}" is accepted'
        yield FieldError("pluginName", quoted(cluster_network.plugin_name), accepted, NOT_SUPPORTED)
    if cluster_network.mtu is not None and cluster_network.mtu not in MTU_RANGE:
        yield FieldError("mtu", quoted(cluster_network.mtu), "576 to 65536 is accepted")
    if cluster_network.vxlan_port is not None and not 1 <= cluster_network.vxlan_port <= MAX_PORT:
        yield FieldError("vxlanPort", quoted(cluster_network.vxlan_port), "a port is 1 to 65535")
    if not network_errors:
        yield from _check_layout(cluster_network)


def _check_layout(cluster_network: ClusterNetwork) -> Iterator[FieldError]:
    network = IPv4Network(cluster_network.network)
    service_network = IPv4Network(cluster_network.service_network)
    host_bits = 32 - network.prefixlen
    if not 2 <= cluster_network.hostsubnetlength <= host_bits:
        bad_value = quoted(cluster_network.hostsubnetlength)
        yield FieldError("hostsubnetlength", bad_value, f"2 to {host_bits} host bits are accepted")
    if network.overlaps(service_network):
        bad_value = quoted(cluster_network.service_network)
        yield FieldError("serviceNetwork", bad_value, f"must not overlap network {cluster_network.network}")


def check_address(path: str, text: str) -> Iterator[FieldError]:
    """Yield an error if a text is not an IPv4 address that other nodes can reach."""
    try:
        IPv4Address(text)
    except ValueError:
        yield FieldError(path, quoted(text), "an IPv4 address is accepted")
        return
    if reason := unreachable_reason(text):
        yield FieldError(path, quoted(text), reason)


def _check_network(path: str, text: str) -> Iterator[FieldError]:
    try:
        IPv4Network(text)
    except ValueError as error:
        yield FieldError(path, quoted(text), f'a network such as "10.128.0.0/14" is accepted ({error})', INVALID)


def check_node_query(query: NodeQuery) -> Iterator[FieldError]:
    """Yield the errors of a NodeQuery. It must have a node and exactly one request."""
    spec = query.spec
    if not spec.node_name:
        yield FieldError("spec.nodeName", '""', "the node that is queried is required", MISSING)
    requests = [spec.trace is not None, spec.report, spec.capture is not None, spec.services is not None]
    if requests.count(True) != 1:
        yield FieldError("spec", "given", "exactly one of trace, report, capture and services is accepted")
    if spec.capture is not None:
        yield from _check_capture(spec.capture)
    if spec.trace is not None:
        for error in check_trace(spec.trace):
            yield error._replace(path=f"spec.trace.{error.path}")


def _check_capture(capture: CaptureRequest) -> Iterator[FieldError]:
    yield from check_address("spec.capture.pod", capture.pod)
    if not 1 <= capture.packets <= MAX_CAPTURE_PACKETS:
        accepted = f"1 to {MAX_CAPTURE_PACKETS} is accepted"
        yield FieldError("spec.capture.packets", quoted(capture.packets), accepted)
    if not 1 <= capture.seconds <= MAX_CAPTURE_SECONDS:
        accepted = f"1 to {MAX_CAPTURE_SECONDS} is accepted"
        yield FieldError("spec.capture.seconds", quoted(capture.seconds), accepted)


def check_trace(trace: TraceRequest) -> Iterator[FieldError]:
    """Yield the errors of a trace request, with paths that begin at the request."""
    for path, value, accepted in (
        ("enters", trace.enters, TRACE_ENTRIES),
        ("protocol", trace.protocol, TRACE_PROTOCOLS),
    ):
        if value not in accepted:
            yield FieldError(path, quoted(value), f"{', '.join(accepted)} are accepted", NOT_SUPPORTED)
    yield from _check_trace_addresses(trace)
    for path, number, maximum in (
        ("port", trace.port, MAX_PORT),
        ("vnid", trace.vnid, MAX_VNID),
        ("vlan", trace.vlan or 0, MAX_VLAN_ID),
    ):
        if not 0 <= number <= maximum:
            yield FieldError(path, quoted(number), f"0 to {maximum} is accepted")
    for path, mac in (("sourceMac", trace.source_mac), ("targetMac", trace.target_mac)):
        if mac and not _MAC.fullmatch(mac):
            yield FieldError(path, quoted(mac), "a MAC such as 0a:58:0a:80:00:02 is accepted")
    yield from _check_trace_combinations(trace)


def _check_trace_addresses(trace: TraceRequest) -> Iterator[FieldError]:
    yield from _check_ipv4("source", trace.source)
    yield from _check_ipv4("target", trace.target)
    for path, value, entries in (
        ("sender", trace.sender, ("pod", "docker")),
        ("tunnelSource", trace.tunnel_source, ("tunnel",)),
    ):
        if trace.enters in entries and not value:
            yield FieldError(path, '""', f"is required with enters: {trace.enters}", MISSING)
        elif trace.enters in entries:
            yield from _check_ipv4(path, value)
        elif value:
            yield FieldError(path, quoted(value), f"is accepted only with enters: {' or '.join(entries)}", FORBIDDEN)


def _check_trace_combinations(trace: TraceRequest) -> Iterator[FieldError]:
    if trace.vnid and trace.enters != "tunnel":
        reason = "is accepted only with enters: tunnel; the switch determines the VNID of other packets"
        yield FieldError("vnid", quoted(trace.vnid), reason, FORBIDDEN)
    if trace.port and trace.protocol not in PORT_PROTOCOLS:
        reason = f"{trace.protocol} has no ports, {' and '.join(PORT_PROTOCOLS)} have"
        yield FieldError("port", quoted(trace.port), reason, FORBIDDEN)
    elif trace.port and trace.fragment == "later":
        yield FieldError("port", quoted(trace.port), "only the first fragment carries the port", FORBIDDEN)
    if trace.fragment and trace.fragment not in FRAGMENTS:
        yield FieldError("fragment", quoted(trace.fragment), f"{', '.join(FRAGMENTS)} are accepted", NOT_SUPPORTED)
    elif trace.fragment and trace.protocol not in FRAGMENTED_PROTOCOLS:
        reason = f"is accepted only with {', '.join(FRAGMENTED_PROTOCOLS)}"
        yield FieldError("fragment", quoted(trace.fragment), reason, FORBIDDEN)
    if trace.protocol == "ipv6" and trace.sender and trace.source != trace.sender:
        yield FieldError("source", quoted(trace.source), "an IPv6 packet has no IPv4 source address", FORBIDDEN)


def _check_ipv4(path: str, text: str) -> Iterator[FieldError]:
    try:
        IPv4Address(text)
    except ValueError:
        yield FieldError(path, quoted(text), "an IPv4 address is accepted")

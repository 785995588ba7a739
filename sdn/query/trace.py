"""Builds the arguments of `ofproto/trace` from a trace request, and its result from the output. Pure.

A trace of a connection to a service has several runs of `ofproto/trace`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from msgspec.structs import replace

from api.network.queries import DockerNetworkReport, TraceRequest, TraceResult, TraceStep
from sdn.host.firewall import rejects_packet_of_pod
from sdn.model.match import mac_number, mac_text
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo
from sdn.pipeline.cookies import CookieCategory, owner_of, peer_cookie
from sdn.pipeline.drops import MISS_REASONS, DropReason, drop_reason
from sdn.pipeline.pod_connectivity import ARP_REPLY, ARP_REQUEST, DOCKER_MAC_PREFIX
from sdn.pipeline.tables import NODE_ACCESS_MAC, Table
from sdn.proxy.service_map import ClientConnection, FrontendLookup
from sdn.proxy.service_ports import Key, ProxyConfig, ServiceState
from sdn.query.reports import endpoint_texts, port_report, rejection_reports
from sdn.topology import GATEWAY_OFPORT, VXLAN_OFPORT, Node, NodeNetwork, mac_of

# Lines of the output of `ofproto/trace`.
_STEP = re.compile(r"^ ?(\d+)\. (.*)$")
_FLOW = re.compile(r"^(.*), (?:priority (\d+), )?cookie 0x([0-9a-f]+)$|^(.*), priority (\d+)$")
_SET_VNID = re.compile(r"^set_field:0x([0-9a-f]+)->reg0$|NXM_NX_REG0\[\] is now 0x([0-9a-f]+)")
_SET_SOURCE_MAC = re.compile(r"NXM_OF_ETH_SRC\[\] is now ([0-9a-f:]+)")
_PERMIT = f"set_field:{mac_text(NODE_ACCESS_MAC)}->eth_src"
_SET_TUNNEL = re.compile(r"set_field:([0-9.]+)->tun_dst")
_DNAT = re.compile(r"^ct\(commit.*nat\(dst=([0-9.:]+)\)")
_OUTPUT = re.compile(r"output:(\d+)")
_IN_PORT = re.compile(r"in_port=(\d+)")
_REMARKS = ("->", "nat", "thaw", "Resuming from")
SKIPPED = ">> skipping output to input port"

SERVICES = "services"
"""Owner of flows of services before the service is known: the flows name no service, only its ports do."""

_VLAN_PRESENT = 0x1000
_BROADCAST_MAC = 0xFFFFFFFFFFFF
_ARP_OPERATIONS = {"arp": ARP_REQUEST, "arp-reply": ARP_REPLY}
_FIRST_PACKETS = {"icmp": "icmp_type=8", "tcp": "tcp_flags=syn,tcp_dst={port}", "udp": "udp_dst={port}"}


class InvalidTrace(Exception):
    """`str(error)` says why there is no such packet on this node."""


def trace_request(request: TraceRequest, network: NodeNetwork) -> str:
    """Return the packet in the syntax of `ofproto/trace`. Raises InvalidTrace."""
    entry, default_source_mac = _entry(request, network)
    target = IPv4Address(request.target)
    source_mac = mac_number(request.source_mac) if request.source_mac else default_source_mac
    if request.target_mac:
        target_mac = mac_number(request.target_mac)
    else:
        target_mac = _BROADCAST_MAC if request.protocol == "arp" else mac_of(target)
    vlan = "" if request.vlan is None else f",vlan_tci={_VLAN_PRESENT | request.vlan:#x}"
    macs = f"dl_src={mac_text(source_mac)},dl_dst={mac_text(target_mac)}"
    return f"{entry}{vlan},{macs},{_payload(request, source_mac, target_mac)}"


def _entry(request: TraceRequest, network: NodeNetwork) -> tuple[str, int]:
    """Return the port with the fields of a tunnel, and the MAC that the sender at this port has."""
    if request.enters == "pod":
        sender = IPv4Address(request.sender)
        return f"in_port={_port_of_pod(sender, network)}", mac_of(sender)
    if request.enters == "docker":
        sender = IPv4Address(request.sender)
        return f"in_port={_port_of_docker(sender, network)}", DOCKER_MAC_PREFIX << 32 | int(sender)
    gateway_mac = mac_of(network.node.gateway)
    if request.enters == "tunnel":
        tunnel = f"tun_src={request.tunnel_source},tun_dst={network.node.address},tun_id={request.vnid}"
        return f"in_port={VXLAN_OFPORT},{tunnel}", gateway_mac
    return f"in_port={GATEWAY_OFPORT}", gateway_mac


def _port_of_pod(sender: IPv4Address, network: NodeNetwork) -> int:
    for pod in network.pods:
        if pod.address == sender:
            return pod.ofport
    for attached in network.pods_without_vnid:
        if attached.address == sender:
            raise InvalidTrace(f"the pod with {sender} is cut off: its project {attached.namespace} has no VNID")
    raise InvalidTrace(f"no pod on {network.node.name} has the address {sender}")


def _port_of_docker(sender: IPv4Address, network: NodeNetwork) -> int:
    docker = network.docker
    if docker is None:
        raise InvalidTrace(f"no pod on {network.node.name} has the address {sender}, and Docker has no bridge there")
    if sender not in docker.subnet:
        raise InvalidTrace(
            f"no pod on {network.node.name} has the address {sender}, and Docker gives those of {docker.subnet}"
        )
    return docker.ofport


def _payload(request: TraceRequest, source_mac: int, target_mac: int) -> str:
    if request.protocol == "ipv6":
        return "ipv6"
    if request.protocol in _ARP_OPERATIONS:
        target_hardware = f",arp_tha={mac_text(target_mac)}" if request.protocol == "arp-reply" else ""
        addresses = f"arp_spa={request.source},arp_tpa={request.target},arp_sha={mac_text(source_mac)}"
        return f"arp,arp_op={_ARP_OPERATIONS[request.protocol]},{addresses}{target_hardware}"
    addresses = f"{request.protocol},nw_src={request.source},nw_dst={request.target},nw_ttl=64"
    if request.fragment == "later":
        return f"{addresses},nw_frag=later"
    fragment = f",nw_frag={request.fragment}" if request.fragment else ""
    return f"{addresses}{fragment},{_FIRST_PACKETS[request.protocol].format(port=request.port)}"


def parse_trace(text: str, request: TraceRequest, network: NodeNetwork) -> TraceResult:
    """Return the steps and outputs in the output of `ofproto/trace`, with the names of tables and owners.

    If the packet goes to the address of a node, the result says whether the firewall of this node rejects it.
    """
    parser = _TraceParser(network)
    for packet, section in _sections(text):
        for line in section.splitlines():
            parser.read_line(line, packet)
    docker = None if network.docker is None else DockerNetworkReport(str(network.docker.subnet), network.docker.vnid)
    return TraceResult(
        steps=tuple(parser.steps),
        outputs=tuple(parser.outputs),
        vnid=parser.vnid,
        docker=docker,
        endpoint=parser.endpoint,
        rejected_by_firewall=not parser.permitted and _is_rejected_by_firewall(request, parser.outputs, network),
    )


def _is_rejected_by_firewall(request: TraceRequest, outputs: Iterable[str], network: NodeNetwork) -> bool:
    """Return whether the firewall rejects a packet of a pod that the switch sends to the node without permitting it.

    Of a later fragment this is not known: the firewall puts the packet together, and sees its port.
    """
    if request.enters == "node" or "node" not in outputs or request.fragment == "later":
        return False
    nodes = {network.node.gateway, network.node.address, *(peer.address for peer in network.peers)}
    is_to_node = IPv4Address(request.target) in nodes
    return is_to_node and rejects_packet_of_pod(network.node, request.protocol, request.port)


class _TraceParser:
    """Collects the steps and outputs of a trace, and the last values of the fields that name its outputs."""

    def __init__(self, network: NodeNetwork) -> None:
        self.steps: list[TraceStep] = []
        self.outputs: list[str] = []
        self.vnid = 0
        self.endpoint = ""
        self.permitted = False
        """Whether the switch lets the packet reach all ports of nodes."""
        self._tunnel = ""
        self._source_mac = ""
        self._network = network

    def read_line(self, line: str, packet: str) -> None:
        """Read the line of a step, or of one of its actions. `packet` is the packet at the begin of the section."""
        step = _STEP.match(line)
        if step is not None:
            self.steps.append(_step(int(step[1]), step[2], self._network))
            return
        action = line.strip()
        if action and self.steps and not action.startswith(_REMARKS):
            self.steps[-1] = replace(self.steps[-1], actions=(*self.steps[-1].actions, action))
        self._read_fields(action)
        self._read_output(action, packet)

    def _read_fields(self, action: str) -> None:
        if matched := _SET_VNID.search(action):
            self.vnid = int(matched[1] or matched[2], 16)
        if action == _PERMIT:
            self.permitted = True
        if matched := _SET_SOURCE_MAC.search(action):
            self._source_mac = matched[1]
        if matched := _SET_TUNNEL.search(action):
            self._tunnel = matched[1]
        if matched := _DNAT.search(action):
            self.endpoint = matched[1]

    def _read_output(self, action: str, packet: str) -> None:
        if matched := _OUTPUT.fullmatch(action):
            self.outputs.append(_port_name(int(matched[1]), self._tunnel, self._network))
        elif action == "IN_PORT":
            in_port = None if packet.startswith("arp") else _IN_PORT.search(packet)
            if in_port is None:
                self.outputs.append(f"sender {self._source_mac}")
            else:
                self.outputs.append(_port_name(int(in_port[1]), self._tunnel, self._network))
        elif action == SKIPPED:
            self.outputs.pop()


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the packet at the begin of each section, and what our bridge did with it.

    After connection tracking, the packet continues in a section of its own. Lines of other bridges are skipped.
    """
    for section in text.split("\nFlow: "):
        packet = section.removeprefix("Flow: ")
        yield packet, packet.partition("-------------\n")[2].partition("\nFinal flow:")[0].partition("\nbridge(")[0]


def _step(table_number: int, text: str, network: NodeNetwork) -> TraceStep:
    table = max(table for table in Table if table <= table_number)
    name = table.name.lower()
    matched = _FLOW.match(text)
    if matched is None:
        return TraceStep(table=name, drop_reason=_drop_reason_label(MISS_REASONS.get(table)))
    cookie = int(matched[3] or "0", 16)
    return TraceStep(
        table=name,
        flow=matched[1] or matched[4],
        owner=_owner_name(cookie, network),
        drop_reason=_drop_reason_label(drop_reason(cookie)),
    )


def _drop_reason_label(reason: DropReason | None) -> str:
    return "" if reason is None else reason.label


def _owner_name(cookie: int, network: NodeNetwork) -> str:
    owner = owner_of(cookie)
    if owner is None:
        return "unknown"
    if owner.category is CookieCategory.NODE:
        return f"node {network.node.name}"
    if owner.category is CookieCategory.DOCKER:
        return "Docker's bridge"
    if owner.category is CookieCategory.SERVICE:
        return SERVICES
    if owner.category is CookieCategory.POD:
        return f"pod {IPv4Address(owner.key)}"
    return next((f"node {peer.name}" for peer in network.peers if owner_of(peer_cookie(peer)) == owner), "unknown")


def _port_name(ofport: int, tunnel: str, network: NodeNetwork) -> str:
    if ofport == VXLAN_OFPORT:
        return f"tunnel {tunnel}"
    if ofport == GATEWAY_OFPORT:
        return "node"
    if network.docker is not None and ofport == network.docker.ofport:
        return "docker"
    return next((f"pod {pod.address}" for pod in network.pods if pod.ofport == ofport), f"port {ofport}")


_DNAT_BY_NFTABLES, _DNAT_BY_SWITCH = ("node",), ("pod", "docker")
_GROUP = "group:"


@dataclass(frozen=True, slots=True)
class ServiceConnection:
    """A connection to a service: the service port, and the endpoints that its client can get on this node."""

    port: ServicePortInfo
    state: ServiceState
    endpoints: tuple[EndpointInfo, ...]


def service_connection(
    request: TraceRequest,
    config: ProxyConfig,
    ports: Iterable[ServicePortInfo],
    states: Mapping[Key, ServiceState],
) -> ServiceConnection | None:
    """Return the service to which a packet is addressed, or None if there is none that its sender can reach here.

    External clients reach neither cluster IPs nor the node ports of other nodes through this node.
    """
    by_nftables = request.enters in _DNAT_BY_NFTABLES
    if not by_nftables and request.enters not in _DNAT_BY_SWITCH:
        return None
    if request.protocol.upper() not in Protocol.__members__:
        return None
    address, client = IPv4Address(request.target), IPv4Address(request.source)
    frontend = (address, Protocol[request.protocol.upper()], request.port)
    from_host = by_nftables and client in {config.node.gateway, config.node.address}
    lookup = FrontendLookup(config)
    lookup.update(ServicePortChange(added=tuple(ports)))
    port = lookup.find(frontend)
    if port is None or (by_nftables and not _is_reachable_by_nftables(address, port, config.node, from_host)):
        return None
    endpoints = lookup.endpoints(ClientConnection(frontend, client, from_host))
    return ServiceConnection(port, states[port.key.namespace, port.key.service], endpoints)


def _is_reachable_by_nftables(address: IPv4Address, port: ServicePortInfo, node: Node, from_host: bool) -> bool:
    if address == port.cluster_ip:
        return from_host
    return address == node.address or address in port.external_ips


async def trace_service_connection(
    request: TraceRequest,
    network: NodeNetwork,
    connection: ServiceConnection,
    trace_packet: Callable[[TraceRequest], Awaitable[TraceResult]],
) -> TraceResult:
    """Trace a connection to a service. `trace_packet` traces one packet through the switch.

    The switch applies DNAT to packets of pods, nftables to all others before they enter the switch. Where the endpoint
    is selected at random, which a trace cannot follow, the trace continues to the first endpoint.
    """
    by_switch = request.enters in _DNAT_BY_SWITCH
    result = await trace_packet(request) if by_switch else TraceResult()
    if by_switch and not _ends_in_group(result):
        return _with_service_details(result, connection, result.endpoint)
    if not connection.endpoints:
        return _with_service_details(result, connection, "")
    endpoint = connection.endpoints[0]
    if by_switch or any(endpoint.address in subnet for subnet in network.cluster.networks):
        rest = await trace_packet(_after_dnat(request, endpoint, network.node))
        result = _concatenated(result, rest)
    return _with_service_details(result, connection, *endpoint_texts((endpoint,)))


def _ends_in_group(result: TraceResult) -> bool:
    actions = result.steps[-1].actions if result.steps else ()
    return any(action.startswith(_GROUP) for action in actions)


def _after_dnat(request: TraceRequest, endpoint: EndpointInfo, node: Node) -> TraceRequest:
    """Return the packet as it goes to an endpoint. nftables masquerades packets to pods of other nodes."""
    source = request.source
    if request.enters in _DNAT_BY_NFTABLES and not endpoint.is_local:
        source = str(node.gateway)
    return replace(request, source=source, target=str(endpoint.address), port=endpoint.port)


def _concatenated(first: TraceResult, rest: TraceResult) -> TraceResult:
    """Join the steps up to the group with the steps of the packet to its endpoint."""
    if not first.steps:
        return rest
    l3_forwarding = Table.L3_FORWARDING.name.lower()
    steps = itertools.dropwhile(lambda step: step.table != l3_forwarding, rest.steps)
    return replace(rest, steps=(*first.steps, *steps))


def _with_service_details(result: TraceResult, connection: ServiceConnection, endpoint: str) -> TraceResult:
    """Add the service port, its endpoints and rejections, and name the service as the owner of its flows."""
    key = (connection.port.key.namespace, connection.port.key.service)
    owner = f"service {'/'.join(key)}"
    steps = (replace(step, owner=owner) if step.owner == SERVICES else step for step in result.steps)
    return replace(
        result,
        steps=tuple(steps),
        service=port_report(connection.port),
        endpoints=endpoint_texts(connection.endpoints),
        endpoint=endpoint,
        rejected=tuple(rejection_reports(key, connection.state)),
    )

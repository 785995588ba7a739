"""Traces: a question to the arguments of `ofproto/trace`, its output to an answer, calls of services included. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from msgspec.structs import replace

from api.network.queries import DockerNetwork, TraceRequest, TraceResult, TraceStep
from sdn.model.match import mac_number, mac_text
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo
from sdn.pipeline.cookies import CookieCategory, owner_of, peer_cookie
from sdn.pipeline.pod_connectivity import ARP_REPLY, ARP_REQUEST, DOCKER_MAC_PREFIX
from sdn.pipeline.tables import Table
from sdn.proxy.service_map import ClientConnection, FrontendLookup
from sdn.proxy.service_ports import Key, ProxyConfig, ServiceState
from sdn.query.reports import endpoint_texts, port_report, rejection_reports
from sdn.topology import TUN0, VXLAN0, Node, NodeNetwork, mac_of

_STEP = re.compile(r"^ ?(\d+)\. (.*)$")
_ROW = re.compile(r"^(.*), (?:priority (\d+), )?cookie 0x([0-9a-f]+)$|^(.*), priority (\d+)$")
_NOTED = re.compile(r"^set_field:0x([0-9a-f]+)->reg0$|NXM_NX_REG0\[\] is now 0x([0-9a-f]+)")
_GIVEN = re.compile(r"NXM_OF_ETH_SRC\[\] is now ([0-9a-f:]+)")
_ENTERED = re.compile(r"in_port=(\d+)")
_LED = re.compile(r"^ct\(commit.*nat\(dst=([0-9.:]+)\)")
_REMARKS = ("->", "nat", "thaw", "Resuming from")
SKIPPED = ">> skipping output to input port"
SERVICES = "services"
"""The owner of rows that are there for services; which one, only their ports tell."""

_TAGGED = 0x1000
_BROADCAST_MAC = 0xFFFFFFFFFFFF
_OPERATIONS = {"arp": ARP_REQUEST, "arp-reply": ARP_REPLY}
_BEGINS = {"icmp": "icmp_type=8", "tcp": "tcp_flags=syn,tcp_dst={port}", "udp": "udp_dst={port}"}


class InvalidTrace(Exception):
    """`str(error)` says why there is no such packet on this node."""


def trace_request(asked: TraceRequest, view: NodeNetwork) -> str:
    """The packet as `ofproto/trace` takes it. Raises Unaskable."""
    enters, own_mac = _entrance(asked, view)
    target = IPv4Address(asked.target)
    source_mac = mac_number(asked.source_mac) if asked.source_mac else own_mac
    target_mac = _BROADCAST_MAC if asked.protocol == "arp" else mac_of(target)
    target_mac = mac_number(asked.target_mac) if asked.target_mac else target_mac
    tag = "" if asked.vlan is None else f",vlan_tci={_TAGGED | asked.vlan:#x}"
    macs = f"dl_src={mac_text(source_mac)},dl_dst={mac_text(target_mac)}"
    return f"{enters}{tag},{macs},{_payload(asked, source_mac, target_mac)}"


def _entrance(asked: TraceRequest, view: NodeNetwork) -> tuple[str, int]:
    """The port with what a tunnel adds, and the MAC of an honest sender there."""
    if asked.enters == "pod":
        sender = IPv4Address(asked.sender)
        return f"in_port={_port_of_pod(sender, view)}", mac_of(sender)
    if asked.enters == "docker":
        sender = IPv4Address(asked.sender)
        return f"in_port={_port_of_docker(sender, view)}", DOCKER_MAC_PREFIX << 32 | int(sender)
    own_mac = mac_of(view.node.gateway)
    if asked.enters == "tunnel":
        tunnel = f"tun_src={asked.tunnel_source},tun_dst={view.node.address},tun_id={asked.vnid}"
        return f"in_port={VXLAN0},{tunnel}", own_mac
    return f"in_port={TUN0}", own_mac


def _port_of_pod(sender: IPv4Address, view: NodeNetwork) -> int:
    for pod in view.pods:
        if pod.address == sender:
            return pod.ofport
    for one in view.pods_without_vnid:
        if one.address == sender:
            raise InvalidTrace(f"the pod with {sender} is cut off: its project {one.namespace} has no VNID")
    raise InvalidTrace(f"no pod on {view.node.name} has the address {sender}")


def _port_of_docker(sender: IPv4Address, view: NodeNetwork) -> int:
    docker = view.docker
    if docker is None:
        raise InvalidTrace(f"no pod on {view.node.name} has the address {sender}, and Docker has no bridge there")
    if sender not in docker.subnet:
        raise InvalidTrace(
            f"no pod on {view.node.name} has the address {sender}, and Docker gives those of {docker.subnet}"
        )
    return docker.ofport


def _payload(asked: TraceRequest, source_mac: int, target_mac: int) -> str:
    if asked.protocol == "ipv6":
        return "ipv6"
    if asked.protocol in _OPERATIONS:
        told = f",arp_tha={mac_text(target_mac)}" if asked.protocol == "arp-reply" else ""
        ends = f"arp_spa={asked.source},arp_tpa={asked.target},arp_sha={mac_text(source_mac)}{told}"
        return f"arp,arp_op={_OPERATIONS[asked.protocol]},{ends}"
    addresses = f"{asked.protocol},nw_src={asked.source},nw_dst={asked.target},nw_ttl=64"
    fragment = f",nw_frag={asked.fragment}" if asked.fragment else ""
    begins = "" if asked.fragment == "later" else f",{_BEGINS[asked.protocol].format(port=asked.port)}"
    return f"{addresses}{fragment}{begins}"


def parse_trace(text: str, view: NodeNetwork) -> TraceResult:
    """Step by step what `ofproto/trace` said, with the names of tables and owners.

    After connection tracking it begins anew, under a title of its own; so a packet has as many passes.
    """
    steps: list[TraceStep] = []
    outputs: list[str] = []
    vnid, tunnel, given, endpoint = 0, "", "", ""
    for flow, of_our_bridge in _passes(text):
        for line in of_our_bridge.splitlines():
            begins = _STEP.match(line)
            if begins is not None:
                steps.append(_step(int(begins[1]), begins[2], view))
                continue
            action = line.strip()
            if action and steps and not action.startswith(_REMARKS):
                steps[-1] = replace(steps[-1], actions=(*steps[-1].actions, action))
            noted = _NOTED.search(action)
            vnid = int(noted[1] or noted[2], 16) if noted else vnid
            told = _GIVEN.search(action)
            given = told[1] if told else given
            far = re.search(r"set_field:([0-9.]+)->tun_dst", action)
            tunnel = far[1] if far else tunnel
            led = _LED.search(action)
            endpoint = led[1] if led else endpoint
            out = re.fullmatch(r"output:(\d+)", action)
            if out is not None:
                outputs.append(_name(int(out[1]), tunnel, view))
            elif action == "IN_PORT":
                entered = _ENTERED.search(flow)
                back = None if flow.startswith("arp") else entered
                outputs.append(f"sender {given}" if back is None else _name(int(back[1]), tunnel, view))
            elif action == SKIPPED:
                outputs.pop()
    docker = None if view.docker is None else DockerNetwork(str(view.docker.subnet), view.docker.vnid)
    return TraceResult(steps=tuple(steps), outputs=tuple(outputs), vnid=vnid, docker=docker, endpoint=endpoint)


def _passes(text: str) -> Iterator[tuple[str, str]]:
    """The packet as it entered, and what our bridge did; other bridges are not ours to tell of."""
    for found in text.split("\nFlow: "):
        flow = found.removeprefix("Flow: ")
        yield flow, flow.partition("-------------\n")[2].partition("\nFinal flow:")[0].partition("\nbridge(")[0]


def _step(number: int, text: str, view: NodeNetwork) -> TraceStep:
    table = max(table for table in Table if table <= number).name.lower()
    found = _ROW.match(text)
    if found is None:
        return TraceStep(table=table)
    return TraceStep(table=table, flow=found[1] or found[4], owner=_owner(int(found[3] or "0", 16), view))


def _owner(cookie: int, network: NodeNetwork) -> str:
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


def _name(port: int, tunnel: str, view: NodeNetwork) -> str:
    if port == VXLAN0:
        return f"tunnel {tunnel}"
    if port == TUN0:
        return "node"
    if view.docker is not None and port == view.docker.ofport:
        return "docker"
    return next((f"pod {pod.address}" for pod in view.pods if pod.ofport == port), f"port {port}")


_BY_FIREWALL, _BY_SWITCH = ("node",), ("pod", "docker")
_GROUP = "group:"


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """A port of a service that a packet is addressed to, and the backends that its sender gets here."""

    port: ServicePortInfo
    served: ServiceState
    backends: tuple[EndpointInfo, ...]


def service_call(
    asked: TraceRequest,
    node: Node,
    vantage: ProxyConfig,
    ports: Iterable[ServicePortInfo],
    served: Mapping[Key, ServiceState],
) -> ServiceCall | None:
    """Whom the packet calls; None where that is no service, or where services are not asked.

    From outside, cluster IPs and the node ports of other nodes are none of this node's.
    """
    if asked.enters not in _BY_FIREWALL + _BY_SWITCH or asked.protocol.upper() not in Protocol.__members__:
        return None
    front = (IPv4Address(asked.target), Protocol[asked.protocol.upper()], asked.port)
    caller = IPv4Address(asked.source)
    is_own = asked.enters in _BY_FIREWALL and caller in {node.gateway, node.address}
    directory = FrontendLookup(vantage.is_cluster, vantage.nodes.__contains__)
    directory.edit(ServicePortChange(added=tuple(ports)))
    port = directory.find(front)
    if port is None or (asked.enters in _BY_FIREWALL and not _is_for_firewall(front[0], port, node, is_own)):
        return None
    backends = directory.backends(ClientConnection(front, caller, is_own))
    return ServiceCall(port, served[port.key.namespace, port.key.service], backends)


def _is_for_firewall(address: IPv4Address, port: ServicePortInfo, node: Node, is_own: bool) -> bool:
    if address == port.cluster_ip:
        return is_own
    return address == node.address or address in port.external_ips


async def trace_service_call(
    asked: TraceRequest, view: NodeNetwork, found: ServiceCall, ask: Callable[[TraceRequest], Awaitable[TraceResult]]
) -> TraceResult:
    """The way of a packet that calls a service, by the answers of the switch.

    Pods' calls are translated by the switch, others by the firewall before it. Where calls are dealt out by chance, of
    which a trace knows nothing, it goes on to the first endpoint.
    """
    is_for_switch = asked.enters in _BY_SWITCH
    answer = await ask(asked) if is_for_switch else TraceResult()
    if is_for_switch and not _ends_in_group(answer):
        return _with_service_details(answer, found, answer.endpoint)
    if not found.backends:
        return _with_service_details(answer, found, "")
    backend = found.backends[0]
    if is_for_switch or any(backend.address in network for network in view.cluster.networks):
        onward = await ask(_to_backend(asked, backend, view.node))
        answer = _concatenated(answer, onward)
    return _with_service_details(answer, found, *endpoint_texts((backend,)))


def _ends_in_group(answer: TraceResult) -> bool:
    acts = answer.steps[-1].actions if answer.steps else ()
    return any(action.startswith(_GROUP) for action in acts)


def _to_backend(asked: TraceRequest, backend: EndpointInfo, node: Node) -> TraceRequest:
    """The packet when it has got this endpoint. The firewall masquerades what goes to pods of other nodes."""
    source = asked.source
    if asked.enters in _BY_FIREWALL and not backend.is_local:
        source = str(node.gateway)
    return replace(asked, source=source, target=str(backend.address), port=backend.port)


def _concatenated(first: TraceResult, onward: TraceResult) -> TraceResult:
    """The way of one packet: to where calls are dealt out, and from there to the endpoint."""
    if not first.steps:
        return onward
    rest = itertools.dropwhile(lambda step: step.table != "route", onward.steps)
    return replace(onward, steps=(*first.steps, *rest))


def _with_service_details(answer: TraceResult, found: ServiceCall, endpoint: str) -> TraceResult:
    """With what the asker wants to know of the service."""
    key = found.port.key.namespace, found.port.key.service
    owner = f"service {'/'.join(key)}"
    steps = (replace(step, owner=owner) if step.owner == SERVICES else step for step in answer.steps)
    return replace(
        answer,
        steps=tuple(steps),
        service=port_report(found.port),
        endpoints=endpoint_texts(found.backends),
        endpoint=endpoint,
        rejected=tuple(rejection_reports(key, found.served)),
    )

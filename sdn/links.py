"""View → the bridge, its own ports, and what the node's network stack holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv4Network

from sdn.match import mac_text
from sdn.observed import Bridge, Link, Port, Switch, Zone, words
from sdn.pipeline import (
    BRIDGE,
    DOCKER_PORT,
    GATEWAY_PORT,
    ITSELF,
    SERVICES,
    TABLES,
    TUN0,
    TUNNEL_PORT,
    VOVSBR_MULTITENANT,
    VOVSBR_SUBNET,
    VXLAN0,
)
from sdn.view import Cluster, Node, mac_of

OWNER = ("podlane", "owner")
NETDEV = "netdev"

CLOSED_STATES = ("tcp_close", "tcp_last_ack", "tcp_time_wait")
CLOSED_SECONDS = 1

DOCKER_BRIDGE, BRIDGE_END = "lbr0", "vlinuxbr"
DOCKER_LINKS = (DOCKER_BRIDGE, BRIDGE_END, DOCKER_PORT)
ALIAS = "podlane"
"""Our mark on Docker's bridge and its cable."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the node's network stack holds: tun0's address, routes through it, and kernel settings (sysctl → value)."""

    device: str
    address: IPv4Interface
    routes: frozenset[IPv4Network]
    sysctls: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DockerBridge:
    """Docker's own bridge lbr0 and its cable vlinuxbr-vovsbr to br0.

    The bridge carries the gateway's address because Docker gives its containers the bridge's address as their gateway;
    the packets go through br0 all the same, since lbr0 itself hands nothing to the node (`guarded_devices`).
    `checksums` is False when the datapath needs the sender to fill in checksums itself.
    """

    address: IPv4Interface
    mtu: int
    checksums: bool


def desired_docker_bridge(cluster: Cluster, node: Node, datapath_type: str) -> DockerBridge | None:
    """None where Docker is to have no bridge of ours."""
    if node.docker_subnet is None:
        return None
    return DockerBridge(
        IPv4Interface((node.gateway, node.subnet.prefixlen)), cluster.mtu, checksums=datapath_type != NETDEV
    )


def is_docker_bridge(wish: DockerBridge, links: Mapping[str, Link]) -> bool:
    """Whether bridge and cable are as wished."""
    ours = [link for name, link in links.items() if name in DOCKER_LINKS]
    whole = len(ours) == len(DOCKER_LINKS) and links[BRIDGE_END].master == DOCKER_BRIDGE
    fit = all(link.up and link.alias == ALIAS and link.mtu == wish.mtu for link in ours)
    addresses = {(link.name, address) for link in ours for address in link.addresses}
    return whole and fit and addresses == {(DOCKER_BRIDGE, wish.address)}


def desired_bridge(cluster: Cluster, node: Node, datapath_type: str) -> Bridge:
    """br0 with its tunnel and gateway ports; it drops what no flow matches, also while it has no flows."""
    tunnel = Port(
        TUNNEL_PORT,
        type="vxlan",
        ofport_request=VXLAN0,
        options=words({"remote_ip": "flow", "key": "flow", "dst_port": str(cluster.vxlan_port)}),
    )
    gateway = Port(
        GATEWAY_PORT,
        type="internal",
        ofport_request=TUN0,
        mac=mac_text(mac_of(node.gateway)),
        mtu_request=cluster.mtu,
    )
    docker = Port(DOCKER_PORT, ofport_request=VOVSBR_MULTITENANT if cluster.multitenant else VOVSBR_SUBNET)
    return Bridge(
        BRIDGE,
        datapath_type=datapath_type,
        fail_mode="secure",
        external_ids=(OWNER,),
        table_names=tuple((int(table), table.name.lower()) for table in TABLES),
        ports=(gateway, tunnel) if node.docker_subnet is None else (gateway, tunnel, docker),
    )


def missing(desired: Bridge, observed: Bridge | None) -> Bridge | None:
    """What to write so that the bridge becomes as desired; None when it is. Ports of pods are not its business."""
    if observed is None:
        return desired
    ports = tuple(port for port in desired.ports if _wishes(observed.port(port.name)) != port)
    marks = set(observed.external_ids)
    same = replace(observed, ports=(), external_ids=()) == replace(desired, ports=(), external_ids=())
    if same and not ports and marks.issuperset(desired.external_ids):
        return None
    return replace(desired, ports=ports)


def _wishes(port: Port | None) -> Port | None:
    return None if port is None else replace(port, ofport=None, external_ids=(), error="")


def desired_zones(datapath_type: str) -> frozenset[Zone]:
    """The zones of services forget TCP connections soon after their end; by default it takes 45 s.

    Meanwhile a caller that uses its port again for a call to the backend's own address would be answered in the name
    of the service, and not understand it.
    """
    timeouts = tuple((state, CLOSED_SECONDS) for state in CLOSED_STATES)
    return frozenset(Zone(datapath_type, number, timeouts) for number in (SERVICES, ITSELF))


def desired_gateway(cluster: Cluster, node: Node) -> Gateway:
    """tun0 carries the gateway address; the cluster and the service network lie behind it.

    The address comes without the kernel's own route to the subnet, so that pods of this node are reached as all
    others are. Whoever of the node calls, with whichever address of his, the kernel asks for a pod's MAC with the
    gateway's: no other is believed of the node (arp_announce, ip-sysctl of the Linux documentation).
    """
    own = f"net.ipv4.conf.{GATEWAY_PORT}"
    return Gateway(
        device=GATEWAY_PORT,
        address=IPv4Interface((node.gateway, node.subnet.prefixlen)),
        routes=frozenset({*cluster.networks, cluster.service_network}),
        sysctls=(("net.ipv4.ip_forward", "1"), (f"{own}.forwarding", "1"), (f"{own}.arp_announce", "2")),
    )


def guarded_devices(switch: Switch, node: Node) -> frozenset[str]:
    """Devices from which the node's network stack may take nothing.

    Those that Open vSwitch reads in user space, where the kernel sees a copy of every frame; and Docker's bridge:
    its containers reach the node through br0, like pods.
    """
    docker = frozenset() if node.docker_subnet is None else frozenset({DOCKER_BRIDGE})
    return docker | frozenset(
        port.name
        for bridge in switch.bridges
        if bridge.datapath_type == NETDEV
        for port in bridge.ports
        if port.type == "" and port.name != bridge.name
    )

"""View → the bridge, its own ports, and what the node's network stack holds. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv4Network

from sdn.flow import mac_text
from sdn.observed import Bridge, Port, Switch, words
from sdn.pipeline import BRIDGE, GATEWAY_PORT, TABLES, TUN0, TUNNEL_PORT, VXLAN0
from sdn.view import Cluster, Node, mac_of

OWNER = ("podlane", "owner")
NETDEV = "netdev"


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the node's network stack holds: tun0's address, routes through it, and kernel settings (sysctl → value)."""

    device: str
    address: IPv4Interface
    routes: frozenset[IPv4Network]
    sysctls: tuple[tuple[str, str], ...]


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
    return Bridge(
        BRIDGE,
        datapath_type=datapath_type,
        fail_mode="secure",
        external_ids=(OWNER,),
        table_names=tuple((int(table), table.name.lower()) for table in TABLES),
        ports=(gateway, tunnel),
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


def desired_gateway(cluster: Cluster, node: Node) -> Gateway:
    """tun0 carries the gateway address; the cluster and the service network lie behind it.

    The address comes without the kernel's own route to the subnet, so that pods of this node are reached as all
    others are.
    """
    return Gateway(
        device=GATEWAY_PORT,
        address=IPv4Interface((node.gateway, node.subnet.prefixlen)),
        routes=frozenset({*cluster.networks, cluster.service_network}),
        sysctls=(("net.ipv4.ip_forward", "1"), (f"net.ipv4.conf.{GATEWAY_PORT}.forwarding", "1")),
    )


def guarded_devices(switch: Switch) -> frozenset[str]:
    """The kernel's devices that Open vSwitch reads in user space, where the kernel sees a copy of every frame."""
    return frozenset(
        port.name
        for bridge in switch.bridges
        if bridge.datapath_type == NETDEV
        for port in bridge.ports
        if port.type == "" and port.name != bridge.name
    )

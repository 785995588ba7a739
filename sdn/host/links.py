"""The bridge, its own ports, gateway routes and sysctls, and Docker's bridge, as they are desired. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Interface

from sdn.model.host import (
    ALIAS,
    BRIDGE,
    BRIDGE_END,
    DOCKER_BRIDGE,
    DOCKER_LINKS,
    DOCKER_PORT,
    GATEWAY_PORT,
    NETDEV,
    OWNER,
    TUNNEL_PORT,
    Bridge,
    ConntrackZone,
    DockerBridgeConfig,
    GatewayConfig,
    Link,
    Port,
    string_map,
)
from sdn.model.match import mac_text
from sdn.pipeline.tables import CT_ZONE_HAIRPIN, CT_ZONE_SERVICE, TABLES
from sdn.topology import TUN0, VOVSBR_MULTITENANT, VOVSBR_SUBNET, VXLAN0, Cluster, Node, mac_of

CLOSED_STATES = ("tcp_close", "tcp_last_ack", "tcp_time_wait")
CLOSED_SECONDS = 1


def desired_docker_bridge(cluster: Cluster, node: Node, datapath_type: str) -> DockerBridgeConfig | None:
    """None where Docker is to have no bridge of ours."""
    if node.docker_subnet is None:
        return None
    return DockerBridgeConfig(
        IPv4Interface((node.gateway, node.subnet.prefixlen)), cluster.mtu, tx_checksum_offload=datapath_type != NETDEV
    )


def is_docker_bridge(wish: DockerBridgeConfig, links: Mapping[str, Link]) -> bool:
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
        options=string_map({"remote_ip": "flow", "key": "flow", "dst_port": str(cluster.vxlan_port)}),
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


def bridge_changes(desired: Bridge, observed: Bridge | None) -> Bridge | None:
    """What to write so that the bridge becomes as desired; None when it is. Ports of pods are not its business."""
    if observed is None:
        return desired
    ports = tuple(port for port in desired.ports if _requested(observed.port(port.name)) != port)
    marks = set(observed.external_ids)
    same = replace(observed, ports=(), external_ids=()) == replace(desired, ports=(), external_ids=())
    if same and not ports and marks.issuperset(desired.external_ids):
        return None
    return replace(desired, ports=ports)


def _requested(port: Port | None) -> Port | None:
    return None if port is None else replace(port, ofport=None, external_ids=(), error="")


def desired_ct_timeouts(datapath_type: str) -> frozenset[ConntrackZone]:
    """The zones of services forget TCP connections soon after their end; by default it takes 45 s.

    Meanwhile a caller that uses its port again for a call to the backend's own address would be answered in the name
    of the service, and not understand it.
    """
    timeouts = tuple((state, CLOSED_SECONDS) for state in CLOSED_STATES)
    return frozenset(ConntrackZone(datapath_type, number, timeouts) for number in (CT_ZONE_SERVICE, CT_ZONE_HAIRPIN))


def desired_gateway(cluster: Cluster, node: Node) -> GatewayConfig:
    """tun0 carries the gateway address; the cluster and the service network lie behind it.

    The address comes without the kernel's own route to the subnet, so that pods of this node are reached as all
    others are. Whoever of the node calls, with whichever address of his, the kernel asks for a pod's MAC with the
    gateway's: no other is believed of the node (arp_announce, ip-sysctl of the Linux documentation).
    """
    own = f"net.ipv4.conf.{GATEWAY_PORT}"
    return GatewayConfig(
        device=GATEWAY_PORT,
        address=IPv4Interface((node.gateway, node.subnet.prefixlen)),
        routes=frozenset({*cluster.networks, cluster.service_network}),
        sysctls=(("net.ipv4.ip_forward", "1"), (f"{own}.forwarding", "1"), (f"{own}.arp_announce", "2")),
    )


def docker_options(cluster: Cluster, node: Node) -> str:
    """For dockerd: what it is to be started with, as a file of environment variables.

    That it leaves the firewall alone must stand in its daemon.json: it counts from its very first start, when there is
    no such file yet, and what it has once set stays.
    """
    options = f"--bridge={DOCKER_BRIDGE} --fixed-cidr={node.docker_subnet} --mtu={cluster.mtu}"
    return f"DOCKER_NETWORK_OPTIONS='{options}'\n"

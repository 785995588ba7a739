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
    DOCKER_PORT_NAME,
    GATEWAY_PORT_NAME,
    NETDEV,
    OWNER,
    VXLAN_PORT_NAME,
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
from sdn.topology import DOCKER_OFPORT, DOCKER_OFPORT_FLAT, GATEWAY_OFPORT, VXLAN_OFPORT, Cluster, Node, mac_of

CLOSED_STATES = ("tcp_close", "tcp_last_ack", "tcp_time_wait")
CLOSED_SECONDS = 1


def desired_docker_bridge(cluster: Cluster, node: Node, datapath_type: str) -> DockerBridgeConfig | None:
    """Return the configuration of Docker's bridge; None if Docker gets no bridge of ours."""
    if node.docker_subnet is None:
        return None
    return DockerBridgeConfig(
        IPv4Interface((node.gateway, node.subnet.prefixlen)), cluster.mtu, tx_checksum_offload=datapath_type != NETDEV
    )


def is_docker_bridge(config: DockerBridgeConfig, links: Mapping[str, Link]) -> bool:
    """Return True if the bridge and its veth pair are as configured."""
    ours = [link for name, link in links.items() if name in DOCKER_LINKS]
    if len(ours) < len(DOCKER_LINKS) or links[BRIDGE_END].master != DOCKER_BRIDGE:
        return False
    addresses = {(link.name, address) for link in ours for address in link.addresses}
    return addresses == {(DOCKER_BRIDGE, config.address)} and all(
        link.up and link.alias == ALIAS and link.mtu == config.mtu for link in ours
    )


def desired_bridge(cluster: Cluster, node: Node, datapath_type: str) -> Bridge:
    """Return br0 with its tunnel and gateway ports.

    Its fail mode is secure: it drops packets that match no flow, also while it has no flows.
    """
    tunnel = Port(
        VXLAN_PORT_NAME,
        type="vxlan",
        ofport_request=VXLAN_OFPORT,
        options=string_map({"remote_ip": "flow", "key": "flow", "dst_port": str(cluster.vxlan_port)}),
    )
    gateway = Port(
        GATEWAY_PORT_NAME,
        type="internal",
        ofport_request=GATEWAY_OFPORT,
        mac=mac_text(mac_of(node.gateway)),
        mtu_request=cluster.mtu,
    )
    docker = Port(DOCKER_PORT_NAME, ofport_request=DOCKER_OFPORT if cluster.multitenant else DOCKER_OFPORT_FLAT)
    return Bridge(
        BRIDGE,
        datapath_type=datapath_type,
        fail_mode="secure",
        external_ids=(OWNER,),
        table_names=tuple((int(table), table.name.lower()) for table in TABLES),
        ports=(gateway, tunnel) if node.docker_subnet is None else (gateway, tunnel, docker),
    )


def bridge_changes(desired: Bridge, observed: Bridge | None) -> Bridge | None:
    """Return the changes that make the bridge as desired; None if there are none. Ports of pods are ignored."""
    if observed is None:
        return desired
    ports = tuple(port for port in desired.ports if _requested(observed.port(port.name)) != port)
    has_columns = replace(observed, ports=(), external_ids=()) == replace(desired, ports=(), external_ids=())
    if has_columns and not ports and set(observed.external_ids).issuperset(desired.external_ids):
        return None
    return replace(desired, ports=ports)


def _requested(port: Port | None) -> Port | None:
    """Return the port without the columns that the switch fills in."""
    return None if port is None else replace(port, ofport=None, external_ids=(), error="")


def desired_ct_timeouts(datapath_type: str) -> frozenset[ConntrackZone]:
    """Return short timeouts for closed TCP connections to services; by default, such entries last 45 s.

    Until an entry is gone, replies to its client get the address of the service. A client that reuses the port for a
    connection to the endpoint's own address would not recognize them.
    """
    timeouts = tuple((state, CLOSED_SECONDS) for state in CLOSED_STATES)
    return frozenset(ConntrackZone(datapath_type, number, timeouts) for number in (CT_ZONE_SERVICE, CT_ZONE_HAIRPIN))


def desired_gateway(cluster: Cluster, node: Node) -> GatewayConfig:
    """Return the configuration of tun0: the gateway address, and routes to the cluster and service networks.

    The kernel gets no route of its own to the subnet, so that pods of this node are reached like all others. With
    arp_announce 2, the kernel sends ARP requests with the gateway address, because the switch accepts no other address
    of the node (ip-sysctl in the Linux documentation).

    With route_localnet, processes of the node reach host ports at loopback addresses: the kernel lets their packets out
    after DNAT, and the replies in. Other packets from tun0 with a loopback address must be dropped, so this sysctl is
    set after the firewall (`masquerade_table`).
    """
    conf = f"net.ipv4.conf.{GATEWAY_PORT_NAME}"
    return GatewayConfig(
        device=GATEWAY_PORT_NAME,
        address=IPv4Interface((node.gateway, node.subnet.prefixlen)),
        routes=frozenset({*cluster.networks, cluster.service_network}),
        sysctls=(("net.ipv4.ip_forward", "1"), (f"{conf}.forwarding", "1"), (f"{conf}.arp_announce", "2")),
        guarded_sysctls=((f"{conf}.route_localnet", "1"),),
    )


def docker_options(cluster: Cluster, node: Node) -> str:
    """Return the command-line options of dockerd as an environment file.

    The option that keeps dockerd from changing the firewall belongs into its daemon.json. It is needed from the very
    first start, before this file exists, and dockerd does not remove rules that it has once written.
    """
    options = f"--bridge={DOCKER_BRIDGE} --fixed-cidr={node.docker_subnet} --mtu={cluster.mtu}"
    return f"DOCKER_NETWORK_OPTIONS='{options}'\n"

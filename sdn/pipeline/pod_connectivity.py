"""Flows of pods, peers, the gateway and Docker's bridge: sender checks, ARP and forwarding. Pure."""

from __future__ import annotations

from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network

from sdn.model.flow import Action, Flow, Goto, Output, OutputInPort, RegLoad, RegMove, SetField
from sdn.model.ipv4 import LOOPBACK
from sdn.model.match import (
    ARP_OP,
    ARP_SHA,
    ARP_SPA,
    ARP_THA,
    ARP_TPA,
    ETH_DST,
    ETH_SRC,
    TUN_DST,
    TUN_ID,
    TUN_SRC,
    arp,
    dst_port,
    field_equals,
    in_port,
    ip,
    untagged,
)
from sdn.model.service_port import Protocol
from sdn.pipeline.cookies import DOCKER_COOKIE, peer_cookie, pod_cookie
from sdn.pipeline.drops import DropReason
from sdn.pipeline.flows import make_flow
from sdn.pipeline.tables import ARP_SCRATCH, NODE_ACCESS_MAC, SRC_VNID, Priority, Table
from sdn.topology import (
    GATEWAY_OFPORT,
    GLOBAL_VNID,
    MAC_PREFIX,
    VXLAN_OFPORT,
    AttachedPod,
    Cluster,
    DockerNetwork,
    Node,
    Peer,
    Pod,
    mac_of,
)

ARP_REQUEST, ARP_REPLY = 1, 2
MULTICAST = IPv4Network("224.0.0.0/4")
BROADCAST = IPv4Address("255.255.255.255")

DOCKER_MAC_PREFIX = 0x0242
"""The first two bytes of a container's MAC; the other four are its IP address (Docker before 28)."""


ARP_REPLY_ACTIONS: tuple[Action, ...] = (
    RegMove(ETH_SRC, ETH_DST, 48),
    RegMove(ARP_SHA, ARP_THA, 48),
    RegLoad(ARP_SHA, 32, 16, MAC_PREFIX),
    RegMove(ARP_TPA, ARP_SHA, 32),
    RegMove(ARP_SHA, ETH_SRC, 48),
    SetField(ARP_OP, ARP_REPLY),
    RegMove(ARP_SPA, ARP_SCRATCH, 32),
    RegMove(ARP_TPA, ARP_SPA, 32),
    RegMove(ARP_SCRATCH, ARP_TPA, 32),
    OutputInPort(),
)
"""Turns an ARP request into the reply that the owner of the address would send, and sends it back."""


@lru_cache(maxsize=1)
def gateway_flows(cluster: Cluster, node: Node) -> frozenset[Flow]:
    """Let the node send through tun0 with VNID 0, and receive at the gateway address.

    The gateway address receives from every pod and peer, with any protocol.
    Packets from tun0 are accepted from the gateway address to the cluster, and from external addresses to a pod of this
    node: these are replies to masqueraded packets, because the firewall lets no others through. A packet from tun0 with
    another source address of the cluster was routed back by the node, or has a false source address, and is dropped.
    """
    from_node = in_port(GATEWAY_OFPORT) & untagged()
    arp_request = arp(op=ARP_REQUEST, spa=node.gateway, sha=mac_of(node.gateway))
    flows = [
        make_flow(Table.CLASSIFIER, Priority.HIGH, from_node & arp_request, Goto(Table.ARP_RESPONDER)),
        make_flow(
            Table.CLASSIFIER,
            Priority.LOW,
            from_node & ip(dst=node.subnet),
            *set_source_vnid(GLOBAL_VNID),
            Goto(Table.ENDPOINT_LOOKUP),
        ),
        make_flow(
            Table.ARP_RESPONDER,
            Priority.TOP,
            arp(spa=node.gateway, tpa=node.gateway),
            drop=DropReason.ARP_ANNOUNCEMENT,
        ),
        make_flow(Table.ARP_RESPONDER, Priority.HIGH, arp(tpa=node.gateway), *ARP_REPLY_ACTIONS),
        make_flow(Table.L3_FORWARDING, Priority.HIGH, ip(dst=node.gateway), Goto(Table.POD_OUTPUT)),
        make_flow(Table.POD_OUTPUT, Priority.HIGH, ip(dst=node.gateway), *deliver_to_gateway(node)),
    ]
    for network in cluster.networks:
        match = from_node & ip(src=node.gateway, dst=network)
        flows += (
            make_flow(Table.CLASSIFIER, Priority.HIGH, match, *set_source_vnid(GLOBAL_VNID), Goto(Table.L3_FORWARDING)),
            make_flow(
                Table.CLASSIFIER,
                Priority.NORMAL,
                from_node & ip(src=network),
                drop=DropReason.INVALID_GATEWAY_PACKET,
            ),
        )
    return frozenset(flows)


@lru_cache(maxsize=1)
def l3_forwarding_flows(cluster: Cluster, node: Node) -> frozenset[Flow]:
    """Send packets for this node's subnet to POD_OUTPUT, and those that leave the cluster to EXTERNAL_OUTPUT.

    Packets to an address of the cluster or service network that belongs to no node are dropped, so that they do not
    leave the cluster. Broadcast and multicast are dropped as well, and packets to loopback addresses, which the node
    would take for its own. Flows to peers come from `peer_flows`.
    """
    flows = [
        make_flow(Table.L3_FORWARDING, Priority.NORMAL, ip(dst=node.subnet), Goto(Table.ENDPOINT_LOOKUP)),
        make_flow(Table.L3_FORWARDING, Priority.LOW, ip(dst=cluster.service_network), drop=DropReason.NO_SERVICE),
        make_flow(Table.L3_FORWARDING, Priority.LOW, ip(dst=MULTICAST), drop=DropReason.MULTICAST_DISABLED),
        make_flow(Table.L3_FORWARDING, Priority.LOW, ip(dst=BROADCAST), drop=DropReason.BROADCAST),
        make_flow(Table.L3_FORWARDING, Priority.LOW, ip(dst=LOOPBACK), drop=DropReason.LOOPBACK),
        make_flow(Table.L3_FORWARDING, Priority.MISS, ip(), Goto(Table.EXTERNAL_OUTPUT)),
    ]
    flows += (
        make_flow(Table.L3_FORWARDING, Priority.LOW, ip(dst=network), drop=DropReason.NO_ROUTE)
        for network in cluster.networks
    )
    return frozenset(flows)


@lru_cache(maxsize=1)
def remote_arp_flows(cluster: Cluster, node: Node) -> frozenset[Flow]:
    """Answer ARP requests for addresses of the cluster network that are on other nodes.

    Requests for an address of this node's subnet that has no flow of its own are dropped.
    """
    unknown = make_flow(Table.ARP_RESPONDER, Priority.NORMAL, arp(tpa=node.subnet), drop=DropReason.NO_ARP_ENTRY)
    remote = (
        make_flow(Table.ARP_RESPONDER, Priority.LOW, arp(tpa=network), *ARP_REPLY_ACTIONS)
        for network in cluster.networks
    )
    return frozenset({unknown, *remote})


@lru_cache(maxsize=1)
def unknown_peer_flows(_cluster: Cluster, _node: Node) -> frozenset[Flow]:
    """Drop and count tunnel packets that `peer_flows` of no peer accept."""
    match = in_port(VXLAN_OFPORT)
    return frozenset({make_flow(Table.CLASSIFIER, Priority.MISS, match, drop=DropReason.UNKNOWN_TUNNEL_PEER)})


@lru_cache(maxsize=1)
def external_flows(cluster: Cluster, node: Node) -> frozenset[Flow]:
    """Send packets to external addresses to the node's network stack.

    If projects are isolated, packets of VNID 0 get the source MAC with which the node's firewall lets them reach the
    addresses of nodes (`pods_to_nodes_rules`).

    VXLAN packets of pods are dropped. Masqueraded, they would reach a peer from this node's address, and the peer would
    accept them. Open vSwitch sees no ports in fragments; `masquerade_table` drops those.
    """
    flows = [
        make_flow(
            Table.EXTERNAL_OUTPUT,
            Priority.TOP,
            dst_port(Protocol.UDP, cluster.vxlan_port),
            drop=DropReason.VXLAN_FROM_POD,
        ),
        make_flow(Table.EXTERNAL_OUTPUT, Priority.MISS, ip(), *deliver_to_gateway(node)),
    ]
    if cluster.multitenant:
        from_global = ip() & field_equals(SRC_VNID, GLOBAL_VNID)
        actions = (*permit_node_access(), *deliver_to_gateway(node))
        flows.append(make_flow(Table.EXTERNAL_OUTPUT, Priority.NORMAL, from_global, *actions))
    return frozenset(flows)


def peer_flows(peer: Peer) -> frozenset[Flow]:
    """Accept tunnel packets from one peer for pods of this node, and send packets for its subnet to the peer.

    The tunnel key is the sender's VNID. The key proves nothing by itself: a packet is accepted only from the peer's
    tunnel address and with a source address in the peer's subnet. A packet from a tunnel is never sent into a tunnel.
    """
    cookie = peer_cookie(peer)
    from_peer = in_port(VXLAN_OFPORT) & field_equals(TUN_SRC, int(peer.address)) & untagged() & ip(src=peer.subnet)
    to_peer = (RegMove(SRC_VNID, TUN_ID, 32), SetField(TUN_DST, int(peer.address)), Output(VXLAN_OFPORT))
    return frozenset(
        {
            make_flow(
                Table.CLASSIFIER,
                Priority.NORMAL,
                from_peer,
                RegMove(TUN_ID, SRC_VNID, 32),
                Goto(Table.ENDPOINT_LOOKUP),
                cookie=cookie,
            ),
            make_flow(Table.L3_FORWARDING, Priority.NORMAL, ip(dst=peer.subnet), *to_peer, cookie=cookie),
        }
    )


def pod_flows(pod: Pod) -> frozenset[Flow]:
    """Let one pod send with its own addresses, and answer ARP requests for its address.

    Packets with another source MAC or address, with a VLAN tag, or that are neither IPv4 nor an ARP request, are
    dropped in CLASSIFIER by a flow of the pod's own, which counts them. The pod's ARP announcements are dropped: no
    other pod needs them, and an answer would look like a second owner.
    """
    cookie = pod_cookie(pod)
    from_pod = in_port(pod.ofport) & field_equals(ETH_SRC, pod.mac) & untagged()
    arp_request = arp(op=ARP_REQUEST, spa=pod.address, sha=pod.mac)
    flows = {
        make_flow(
            Table.CLASSIFIER,
            Priority.NORMAL,
            from_pod & ip(src=pod.address),
            *set_source_vnid(pod.vnid),
            Goto(Table.SERVICE_CONNTRACK),
            cookie=cookie,
        ),
        make_flow(Table.CLASSIFIER, Priority.NORMAL, from_pod & arp_request, Goto(Table.ARP_RESPONDER), cookie=cookie),
        make_flow(Table.CLASSIFIER, Priority.MISS, in_port(pod.ofport), cookie=cookie, drop=DropReason.SPOOFED),
        make_flow(
            Table.ARP_RESPONDER,
            Priority.TOP,
            arp(spa=pod.address, tpa=pod.address),
            cookie=cookie,
            drop=DropReason.ARP_ANNOUNCEMENT,
        ),
        make_flow(Table.ARP_RESPONDER, Priority.HIGH, arp(tpa=pod.address), *ARP_REPLY_ACTIONS, cookie=cookie),
    }
    return frozenset(flows)


def pod_without_vnid_flows(pod: AttachedPod) -> frozenset[Flow]:
    """Drop and count what a pod sends whose project has no VNID. Packets to it match no flow and are dropped."""
    cookie = pod_cookie(pod)
    return frozenset(
        {make_flow(Table.CLASSIFIER, Priority.MISS, in_port(pod.ofport), cookie=cookie, drop=DropReason.NO_VNID)}
    )


@lru_cache(maxsize=1)
def docker_flows(docker: DockerNetwork) -> frozenset[Flow]:
    """Let containers outside of any pod send from Docker's part of the subnet, and answer ARP requests for it.

    They share a port and a VNID, so a container can use the address of another one, but no address of a pod, node or
    peer, and not NODE_ACCESS_MAC. ARP requests between them are dropped, because the containers answer them themselves.
    """
    from_docker = in_port(docker.ofport) & untagged()
    arp_request = arp(op=ARP_REQUEST, spa=docker.subnet)
    docker_flow = partial(make_flow, cookie=DOCKER_COOKIE)
    flows = [
        docker_flow(
            Table.CLASSIFIER,
            Priority.HIGH,
            from_docker & arp(tpa=docker.subnet),
            drop=DropReason.ARP_BETWEEN_CONTAINERS,
        ),
        docker_flow(
            Table.CLASSIFIER,
            Priority.HIGH,
            from_docker & ip() & field_equals(ETH_SRC, NODE_ACCESS_MAC),
            drop=DropReason.SPOOFED,
        ),
        docker_flow(Table.CLASSIFIER, Priority.NORMAL, from_docker & arp_request, Goto(Table.ARP_RESPONDER)),
        docker_flow(
            Table.CLASSIFIER,
            Priority.NORMAL,
            from_docker & ip(src=docker.subnet),
            *set_source_vnid(docker.vnid),
            Goto(Table.SERVICE_CONNTRACK),
        ),
        docker_flow(Table.CLASSIFIER, Priority.MISS, in_port(docker.ofport), drop=DropReason.SPOOFED),
        docker_flow(Table.ARP_RESPONDER, Priority.HIGH, arp(tpa=docker.subnet), *ARP_REPLY_ACTIONS),
    ]
    return frozenset(flows)


def set_source_vnid(vnid: int) -> tuple[Action, ...]:
    """Return the actions that record the VNID of the sender."""
    return (SetField(SRC_VNID, vnid),)


def permit_node_access() -> tuple[Action, ...]:
    """Return the actions that let a packet of a pod pass the node's firewall to the address of a node."""
    return (SetField(ETH_SRC, NODE_ACCESS_MAC),)


def deliver_to_gateway(node: Node) -> tuple[Action, ...]:
    """Return the actions that send a packet to tun0, with its MAC as the destination."""
    return (SetField(ETH_DST, mac_of(node.gateway)), Output(GATEWAY_OFPORT))

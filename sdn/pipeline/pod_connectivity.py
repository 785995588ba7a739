"""Flows of pods, peers, the gateway and Docker's bridge: sender checks, ARP and forwarding. Pure."""

from __future__ import annotations

from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network

from sdn.model.flow import Action, Flow, Goto, Output, OutputInPort, RegLoad, RegMove, SetField
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
from sdn.pipeline.cookies import DOCKER_COOKIE, make_flow, peer_cookie, pod_cookie
from sdn.pipeline.tables import ARP_SCRATCH, SRC_VNID, Priority, Table
from sdn.topology import GLOBAL_VNID, MAC_PREFIX, TUN0, VXLAN0, Cluster, DockerNetwork, Node, Peer, Pod, mac_of

ARP_REQUEST, ARP_REPLY = 1, 2
MULTICAST = IPv4Network("224.0.0.0/4")
BROADCAST = IPv4Address("255.255.255.255")

DOCKER_MAC_PREFIX = 0x0242
"""Docker (before 28) makes a container's MAC of these two bytes and the four of its address."""


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
"""Turn the request into the reply that the owner of the address would give, and send it back."""


@lru_cache(maxsize=1)
def gateway_flows(cluster: Cluster, node: Node) -> frozenset[Flow]:
    """Let the node speak through tun0, with VNID 0, and be spoken to.

    Packets from tun0 are believed when they come from the gateway address to the cluster, or from outside the cluster
    to a pod of this node (answers to what was masqueraded; the firewall lets no others through). A packet from tun0
    that claims another address of the cluster is dropped: it has been around the bridge once.
    """
    from_node = in_port(TUN0) & untagged()
    asks = arp(op=ARP_REQUEST, spa=node.gateway, sha=mac_of(node.gateway))
    rows = [
        make_flow(Table.SOURCE, Priority.HOST, from_node & asks, Goto(Table.ARP)),
        make_flow(
            Table.SOURCE,
            Priority.CLUSTER,
            from_node & ip(dst=node.subnet),
            *set_source_vnid(GLOBAL_VNID),
            Goto(Table.ANSWER),
        ),
        make_flow(Table.ARP, Priority.HIGH, arp(spa=node.gateway, tpa=node.gateway)),
        make_flow(Table.ARP, Priority.HOST, arp(tpa=node.gateway), *ARP_REPLY_ACTIONS),
        make_flow(Table.ROUTE, Priority.HOST, ip(dst=node.gateway), Goto(Table.DELIVER)),
        make_flow(Table.DELIVER, Priority.HOST, ip(dst=node.gateway), *deliver_to_gateway(node)),
    ]
    for network in cluster.networks:
        match = from_node & ip(src=node.gateway, dst=network)
        rows += (
            make_flow(Table.SOURCE, Priority.HOST, match, *set_source_vnid(GLOBAL_VNID), Goto(Table.ROUTE)),
            make_flow(Table.SOURCE, Priority.SUBNET, from_node & ip(src=network)),
        )
    return frozenset(rows)


@lru_cache(maxsize=1)
def l3_forwarding_flows(cluster: Cluster, node: Node) -> frozenset[Flow]:
    """Send packets for this node's subnet to DELIVER and those that leave the cluster to OUTSIDE.

    What belongs to the cluster or service network but to no node is dropped rather than let out, and so are broadcast
    and multicast. Peers have rows of their own; what comes out of a tunnel and is no peer's is dropped and counted.
    """
    rows = [
        make_flow(Table.ARP, Priority.SUBNET, arp(tpa=node.subnet)),
        make_flow(Table.ROUTE, Priority.SUBNET, ip(dst=node.subnet), Goto(Table.ANSWER)),
        make_flow(Table.ROUTE, Priority.CLUSTER, ip(dst=cluster.service_network)),
        make_flow(Table.ROUTE, Priority.CLUSTER, ip(dst=MULTICAST)),
        make_flow(Table.ROUTE, Priority.CLUSTER, ip(dst=BROADCAST)),
        make_flow(Table.ROUTE, Priority.DEFAULT, ip(), Goto(Table.OUTSIDE)),
        make_flow(Table.SOURCE, Priority.DEFAULT, in_port(VXLAN0)),
    ]
    for network in cluster.networks:
        rows += (
            make_flow(Table.ARP, Priority.CLUSTER, arp(tpa=network), *ARP_REPLY_ACTIONS),
            make_flow(Table.ROUTE, Priority.CLUSTER, ip(dst=network)),
        )
    return frozenset(rows)


@lru_cache(maxsize=1)
def external_flows(cluster: Cluster, node: Node) -> frozenset[Flow]:
    """Hand packets for the outside to the node's network stack.

    VXLAN packets made by a pod are dropped: masqueraded, they would reach a peer from this node's address and be
    believed there. In fragments Open vSwitch sees no ports, not even in the first; those `nat_table` drops.
    """
    return frozenset(
        {
            make_flow(Table.OUTSIDE, Priority.HIGH, dst_port(Protocol.UDP, cluster.vxlan_port)),
            make_flow(Table.OUTSIDE, Priority.DEFAULT, ip(), *deliver_to_gateway(node)),
        }
    )


def peer_flows(peer: Peer) -> frozenset[Flow]:
    """Accept tunnelled packets from one peer for the pods of this node, and send it what its pods are owed.

    The sender's VNID rides in the tunnel key. A packet from an address that is nobody's, or from an address behind
    which another peer's subnet lies, matches nothing and is dropped: the key alone proves nothing. What came out of a
    tunnel never goes into one again.
    """
    cookie = peer_cookie(peer)
    arrives = in_port(VXLAN0) & field_equals(TUN_SRC, int(peer.address)) & untagged() & ip(src=peer.subnet)
    into_tunnel = (RegMove(SRC_VNID, TUN_ID, 32), SetField(TUN_DST, int(peer.address)), Output(VXLAN0))
    return frozenset(
        {
            make_flow(
                Table.SOURCE,
                Priority.SUBNET,
                arrives,
                RegMove(TUN_ID, SRC_VNID, 32),
                Goto(Table.ANSWER),
                cookie=cookie,
            ),
            make_flow(Table.ROUTE, Priority.SUBNET, ip(dst=peer.subnet), *into_tunnel, cookie=cookie),
        }
    )


def pod_flows(pod: Pod) -> frozenset[Flow]:
    """Let one pod send as itself, and be found.

    Packets that claim another MAC or address, carry a VLAN tag, or are neither IPv4 nor an ARP request are dropped in
    SOURCE by a row of the pod's own, which counts them. The pod's ARP announcements are dropped: no other pod needs
    them, and an answer would look like a second owner.
    """
    cookie = pod_cookie(pod)
    sender = in_port(pod.ofport) & field_equals(ETH_SRC, pod.mac) & untagged()
    asks = arp(op=ARP_REQUEST, spa=pod.address, sha=pod.mac)
    rows = {
        make_flow(
            Table.SOURCE,
            Priority.SUBNET,
            sender & ip(src=pod.address),
            *set_source_vnid(pod.vnid),
            Goto(Table.CALLED),
            cookie=cookie,
        ),
        make_flow(Table.SOURCE, Priority.SUBNET, sender & asks, Goto(Table.ARP), cookie=cookie),
        make_flow(Table.SOURCE, Priority.DEFAULT, in_port(pod.ofport), cookie=cookie),
        make_flow(Table.ARP, Priority.HIGH, arp(spa=pod.address, tpa=pod.address), cookie=cookie),
        make_flow(Table.ARP, Priority.HOST, arp(tpa=pod.address), *ARP_REPLY_ACTIONS, cookie=cookie),
    }
    return frozenset(rows)


@lru_cache(maxsize=1)
def docker_flows(docker: DockerNetwork) -> frozenset[Flow]:
    """Let containers outside of any pod send from Docker's part of the subnet, with its VNID, and be found.

    They come through one port and share a lane, so one may borrow another's address, but no pod's, node's or peer's.
    What one asks about another is theirs to answer and dropped here: an answer of ours would come beside it.
    """
    sender = in_port(docker.ofport) & untagged()
    asks = arp(op=ARP_REQUEST, spa=docker.subnet)
    mark = partial(make_flow, cookie=DOCKER_COOKIE)
    rows = [
        mark(Table.SOURCE, Priority.HOST, sender & arp(tpa=docker.subnet)),
        mark(Table.SOURCE, Priority.SUBNET, sender & asks, Goto(Table.ARP)),
        mark(
            Table.SOURCE,
            Priority.SUBNET,
            sender & ip(src=docker.subnet),
            *set_source_vnid(docker.vnid),
            Goto(Table.CALLED),
        ),
        mark(Table.SOURCE, Priority.DEFAULT, in_port(docker.ofport)),
        mark(Table.ARP, Priority.HOST, arp(tpa=docker.subnet), *ARP_REPLY_ACTIONS),
    ]
    return frozenset(rows)


def set_source_vnid(vnid: int) -> tuple[Action, ...]:
    """Note whose packet this is."""
    return (SetField(SRC_VNID, vnid),)


def deliver_to_gateway(node: Node) -> tuple[Action, ...]:
    """Out of tun0, addressed to it whatever MAC the sender had written."""
    return (SetField(ETH_DST, mac_of(node.gateway)), Output(TUN0))

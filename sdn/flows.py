"""View → every flow of the bridge. Pure; functions per object remember their answers for frozen inputs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network
from zlib import crc32

from sdn.flow import Action, Flow, Goto, Load, Move, Output, SetField, ToInPort, Track
from sdn.match import (
    ARP_OP,
    ARP_SHA,
    ARP_SPA,
    ARP_THA,
    ARP_TPA,
    ETH_DST,
    ETH_SRC,
    IP_DST,
    TUN_DST,
    TUN_ID,
    TUN_SRC,
    Match,
    arp,
    called,
    called_in_parts,
    exactly,
    icmp,
    in_port,
    ip,
    to_port,
    tracked,
    untagged,
)
from sdn.pipeline import (
    GLOBAL_VNID,
    HAIRPIN,
    ITSELF,
    KIND,
    PEERS_IN_A_ROW,
    SCRATCH,
    SERVICES,
    SOURCE_VNID,
    TUN0,
    VXLAN0,
    Kind,
    Priority,
    Table,
)
from sdn.services.served_port import Protocol
from sdn.view import MAC_PREFIX, Cluster, DockerLane, Node, Peer, Pod, View, mac_of

ARP_REQUEST, ARP_REPLY = 1, 2
MULTICAST = IPv4Network("224.0.0.0/4")
BROADCAST = IPv4Address("255.255.255.255")

BASE_COOKIE = 1 << 32
"""Owners in the upper half of a cookie: 1 the node itself, 2 a peer, 3 a pod, 4 Docker, 5 services; the lower half
tells which."""

POD_COOKIES, DOCKER_COOKIE = 3 << 32, 4 << 32
SERVICE_COOKIE = 5 << 32

DROPS = 1 << 40
"""Set in the cookie of every row that drops, so that the switch can be asked for the counters of these alone."""

DOCKER_MAC_PREFIX = 0x0242
"""Docker (before 28) makes a container's MAC of these two bytes and the four of its address."""


def is_of_services(row: Flow) -> bool:
    """Whether the row is one of `sdn.services.rows`."""
    return (row.cookie & ~DROPS) >> 32 == SERVICE_COOKIE >> 32


def cookie_of_peer(peer: Peer) -> int:
    """The mark on a peer's rows."""
    return 2 << 32 | crc32(peer.name.encode())


def cookie_of_pod(pod: Pod) -> int:
    """The mark on a pod's rows."""
    return POD_COOKIES | int(pod.address)


ANSWER_ARP: tuple[Action, ...] = (
    Move(ETH_SRC, ETH_DST, 48),
    Move(ARP_SHA, ARP_THA, 48),
    Load(ARP_SHA, 32, 16, MAC_PREFIX),
    Move(ARP_TPA, ARP_SHA, 32),
    Move(ARP_SHA, ETH_SRC, 48),
    SetField(ARP_OP, ARP_REPLY),
    Move(ARP_SPA, SCRATCH, 32),
    Move(ARP_TPA, ARP_SPA, 32),
    Move(SCRATCH, ARP_TPA, 32),
    ToInPort(),
)
"""Turn the request into the reply that the owner of the address would give, and send it back."""


CALLS_A_SERVICE = Track(SERVICES, Table.SERVICE)
"""Give a packet of a known call the address of its backend."""

ANSWERS = Track(SERVICES, Table.DELIVER)
"""Give a backend's answer the address that was called."""

ICMP_ERRORS = (3, 11)
"""Destination unreachable, time exceeded (RFC 792)."""

CALLS_A_NODE: tuple[Action, ...] = (SetField(KIND, Kind.NODE), CALLS_A_SERVICE)

CALLS_ITSELF: tuple[Action, ...] = (
    SetField(KIND, Kind.SENDER),
    Track(ITSELF, Table.DELIVER, commit=True, src=HAIRPIN),
)


def flow(table: Table, priority: Priority, match: Match, *actions: Action, cookie: int = BASE_COOKIE) -> Flow:
    """A row named by the words of the pipeline."""
    return Flow(int(table), int(priority), match, actions, cookie if actions else cookie | DROPS)


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
        flow(Table.SOURCE, Priority.EXACT, from_node & asks, Goto(Table.ARP)),
        flow(Table.SOURCE, Priority.CLUSTER, from_node & ip(dst=node.subnet), *says(GLOBAL_VNID), Goto(Table.ANSWER)),
        flow(Table.ARP, Priority.GUARD, arp(spa=node.gateway, tpa=node.gateway)),
        flow(Table.ARP, Priority.EXACT, arp(tpa=node.gateway), *ANSWER_ARP),
        flow(Table.ROUTE, Priority.EXACT, ip(dst=node.gateway), Goto(Table.DELIVER)),
        flow(Table.DELIVER, Priority.EXACT, ip(dst=node.gateway), *to_node(node)),
    ]
    for network in cluster.networks:
        match = from_node & ip(src=node.gateway, dst=network)
        rows += (
            flow(Table.SOURCE, Priority.EXACT, match, *says(GLOBAL_VNID), Goto(Table.ROUTE)),
            flow(Table.SOURCE, Priority.SUBNET, from_node & ip(src=network)),
        )
    return frozenset(rows)


@lru_cache(maxsize=1)
def route_flows(cluster: Cluster, node: Node) -> frozenset[Flow]:
    """Send packets for this node's subnet to DELIVER and those that leave the cluster to OUTSIDE.

    What belongs to the cluster or service network but to no node is dropped rather than let out, and so are broadcast
    and multicast. Peers have rows of their own; what comes out of a tunnel and is no peer's is dropped and counted.
    """
    rows = [
        flow(Table.ARP, Priority.SUBNET, arp(tpa=node.subnet)),
        flow(Table.ROUTE, Priority.SUBNET, ip(dst=node.subnet), Goto(Table.ANSWER)),
        flow(Table.ROUTE, Priority.CLUSTER, ip(dst=cluster.service_network)),
        flow(Table.ROUTE, Priority.CLUSTER, ip(dst=MULTICAST)),
        flow(Table.ROUTE, Priority.CLUSTER, ip(dst=BROADCAST)),
        flow(Table.ROUTE, Priority.REST, ip(), Goto(Table.OUTSIDE)),
        flow(Table.SOURCE, Priority.REST, in_port(VXLAN0)),
    ]
    for network in cluster.networks:
        rows += (
            flow(Table.ARP, Priority.CLUSTER, arp(tpa=network), *ANSWER_ARP),
            flow(Table.ROUTE, Priority.CLUSTER, ip(dst=network)),
        )
    return frozenset(rows)


@lru_cache(maxsize=1)
def service_flows(cluster: Cluster, node: Node) -> frozenset[Flow]:
    """Find what is addressed to services, and give answers the address that was called.

    Packets to the service network and to the addresses of nodes pass connection tracking; those of known calls go to
    their backend by way of ROUTE. New ones meet the rows of services (`sdn.services.rows`); what meets none is dropped
    if it is addressed to the service network or to a node's port in the range of node ports, which would otherwise
    come back in as the node's own, with VNID 0. Everything else goes on to ROUTE. What may come back from backends has
    rows in ANSWER, here for errors and otherwise in `sdn.services.rows`; what belongs to no call passes unchanged.
    """
    back = (Move(ETH_SRC, ETH_DST, 48), SetField(ETH_SRC, mac_of(node.gateway)), ToInPort())
    rows = [
        flow(Table.CALLED, Priority.SUBNET, ip(dst=cluster.service_network), CALLS_A_SERVICE),
        flow(Table.CALLED, Priority.EXACT, ip(dst=node.address), *CALLS_A_NODE),
        flow(Table.CALLED, Priority.EXACT, ip(dst=HAIRPIN), SetField(KIND, Kind.SENDER), Track(ITSELF, Table.ANSWER)),
        flow(Table.CALLED, Priority.REST, ip(), Goto(Table.ROUTE)),
        flow(Table.SERVICE, Priority.GUARD, ip() & tracked("est"), Goto(Table.ROUTE)),
        flow(Table.SERVICE, Priority.GUARD, ip() & tracked("rel"), Goto(Table.ROUTE)),
        flow(Table.SERVICE, Priority.CLUSTER, ip(dst=cluster.service_network)),
        flow(Table.SERVICE, Priority.REST, ip(), Goto(Table.ROUTE)),
        flow(Table.ANSWER, Priority.REST, ip(), Goto(Table.DELIVER)),
        *(flow(Table.ANSWER, Priority.EXACT, icmp(kind), ANSWERS) for kind in ICMP_ERRORS),
        flow(Table.DELIVER, Priority.GUARD, ip() & exactly(KIND, Kind.SENDER), *back),
    ]
    for protocol in Protocol:
        for port, mask in blocks(*cluster.node_ports):
            whole, in_parts = called(protocol, port, mask), called_in_parts(protocol, port, mask)
            at_node = (match & exactly(KIND, Kind.NODE) for match in (whole, in_parts))
            rows += (flow(Table.SERVICE, Priority.CLUSTER, match) for match in at_node)
    return frozenset(rows)


def blocks(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The ports from `first` to `last` as pairs of value and mask."""
    while first <= last:
        size = 1
        while first % (2 * size) == 0 and first + 2 * size - 1 <= last:
            size *= 2
        yield first, 0x10000 - size
        first += size


@lru_cache(maxsize=1)
def outside_flows(cluster: Cluster, node: Node) -> frozenset[Flow]:
    """Hand packets for the outside to the node's network stack.

    VXLAN packets made by a pod are dropped: masqueraded, they would reach a peer from this node's address and be
    believed there. In fragments Open vSwitch sees no ports, not even in the first; those `nat_table` drops.
    """
    return frozenset(
        {
            flow(Table.OUTSIDE, Priority.GUARD, to_port(Protocol.UDP, cluster.vxlan_port)),
            flow(Table.OUTSIDE, Priority.REST, ip(), *to_node(node)),
        }
    )


def peer_flows(peer: Peer) -> frozenset[Flow]:
    """Accept tunnelled packets from one peer for the pods of this node, and send it what its pods are owed.

    The sender's VNID rides in the tunnel key. A packet from an address that is nobody's, or from an address behind
    which another peer's subnet lies, matches nothing and is dropped: the key alone proves nothing. What came out of a
    tunnel never goes into one again.
    """
    cookie = cookie_of_peer(peer)
    arrives = in_port(VXLAN0) & exactly(TUN_SRC, int(peer.address)) & untagged() & ip(src=peer.subnet)
    into_tunnel = (Move(SOURCE_VNID, TUN_ID, 32), SetField(TUN_DST, int(peer.address)), Output(VXLAN0))
    return frozenset(
        {
            flow(
                Table.SOURCE,
                Priority.SUBNET,
                arrives,
                Move(TUN_ID, SOURCE_VNID, 32),
                Goto(Table.ANSWER),
                cookie=cookie,
            ),
            flow(Table.ROUTE, Priority.SUBNET, ip(dst=peer.subnet), *into_tunnel, cookie=cookie),
        }
    )


def pod_flows(pod: Pod) -> frozenset[Flow]:
    """Let one pod send as itself, and be found.

    Packets that claim another MAC or address, carry a VLAN tag, or are neither IPv4 nor an ARP request are dropped in
    SOURCE by a row of the pod's own, which counts them. The pod's ARP announcements are dropped: no other pod needs
    them, and an answer would look like a second owner.
    """
    cookie = cookie_of_pod(pod)
    sender = in_port(pod.ofport) & exactly(ETH_SRC, pod.mac) & untagged()
    asks = arp(op=ARP_REQUEST, spa=pod.address, sha=pod.mac)
    rows = {
        flow(
            Table.SOURCE,
            Priority.SUBNET,
            sender & ip(src=pod.address),
            *says(pod.vnid),
            Goto(Table.CALLED),
            cookie=cookie,
        ),
        flow(Table.SOURCE, Priority.SUBNET, sender & asks, Goto(Table.ARP), cookie=cookie),
        flow(Table.SOURCE, Priority.REST, in_port(pod.ofport), cookie=cookie),
        flow(Table.ARP, Priority.GUARD, arp(spa=pod.address, tpa=pod.address), cookie=cookie),
        flow(Table.ARP, Priority.EXACT, arp(tpa=pod.address), *ANSWER_ARP, cookie=cookie),
    }
    return frozenset(rows)


def hairpin_flows(pod: Pod) -> frozenset[Flow]:
    """Translate the source address of packets that a service sends back to the pod from which they came.

    With another source address, the reply comes back to the switch.
    """
    match = ip(src=pod.address, dst=pod.address)
    return frozenset({flow(Table.ROUTE, Priority.EXACT, match, *CALLS_ITSELF, cookie=cookie_of_pod(pod))})


def peer_node_port_flows(peer: Peer) -> frozenset[Flow]:
    """Look up packets to a peer's node address in connection tracking, because it has node ports."""
    return frozenset({flow(Table.CALLED, Priority.EXACT, ip(dst=peer.address), *CALLS_A_NODE)})


def pod_ingress_flows(pod: Pod) -> frozenset[Flow]:
    """Let a pod receive from its own project and from VNID 0.

    Packets from other projects are dropped in DELIVER by a flow of the pod's own, which counts them.
    """
    cookie = cookie_of_pod(pod)
    deliver = (SetField(ETH_DST, pod.mac), Output(pod.ofport))
    arrives = ip(dst=pod.address)
    rows = set()
    for sender in senders(pod.vnid):
        rows.add(flow(Table.DELIVER, Priority.SUBNET, arrives & sender, *deliver, cookie=cookie))
    if pod.vnid != GLOBAL_VNID:
        rows.add(flow(Table.DELIVER, Priority.CLUSTER, arrives, cookie=cookie))
    return frozenset(rows)


def senders(vnid: int) -> tuple[Match, ...]:
    """From whom this VNID may receive: from itself and from VNID 0; VNID 0 from all."""
    if vnid == GLOBAL_VNID:
        return (Match(),)
    return exactly(SOURCE_VNID, GLOBAL_VNID), exactly(SOURCE_VNID, vnid)


@lru_cache(maxsize=1)
def docker_flows(docker: DockerLane) -> frozenset[Flow]:
    """Let containers outside of any pod send from Docker's part of the subnet, with its VNID, and be found.

    They come through one port and share a lane, so one may borrow another's address, but no pod's, node's or peer's.
    What one asks about another is theirs to answer and dropped here: an answer of ours would come beside it.
    """
    sender = in_port(docker.ofport) & untagged()
    asks = arp(op=ARP_REQUEST, spa=docker.subnet)
    mark = partial(flow, cookie=DOCKER_COOKIE)
    rows = [
        mark(Table.SOURCE, Priority.EXACT, sender & arp(tpa=docker.subnet)),
        mark(Table.SOURCE, Priority.SUBNET, sender & asks, Goto(Table.ARP)),
        mark(Table.SOURCE, Priority.SUBNET, sender & ip(src=docker.subnet), *says(docker.vnid), Goto(Table.CALLED)),
        mark(Table.SOURCE, Priority.REST, in_port(docker.ofport)),
        mark(Table.ARP, Priority.EXACT, arp(tpa=docker.subnet), *ANSWER_ARP),
    ]
    return frozenset(rows)


def docker_ingress_flows(docker: DockerLane) -> frozenset[Flow]:
    """Let containers outside of any pod receive from the project of Docker's bridge and from VNID 0.

    The MAC of a container follows from its IP address.
    """
    arrives = ip(dst=docker.subnet)
    deliver = (Move(IP_DST, ETH_DST, 32), Load(ETH_DST, 32, 16, DOCKER_MAC_PREFIX), Output(docker.ofport))
    return frozenset(
        flow(Table.DELIVER, Priority.SUBNET, arrives & sender, *deliver, cookie=DOCKER_COOKIE)
        for sender in senders(docker.vnid)
    )


def multicast_flows(
    vnids: frozenset[int], peers: frozenset[Peer], pods: frozenset[Pod], docker: DockerLane | None = None
) -> frozenset[Flow]:
    """Let pods of these VNIDs send to many: to every peer, and to every pod of this node with the same VNID.

    What comes out of a tunnel goes to this node's pods only. The sender gets no copy. Multicast of all other VNIDs,
    and that of the node itself, is dropped; so is broadcast.
    """
    if not vnids:
        return frozenset()
    rows = set(flood_flows(peers))
    first = Table.FLOOD if peers else Table.DELIVER
    for vnid in vnids:
        theirs = ip(dst=MULTICAST) & exactly(SOURCE_VNID, vnid)
        ours = sorted(pod.ofport for pod in pods if pod.vnid == vnid)
        ours += [docker.ofport] if docker is not None and docker.vnid == vnid else []
        rows.add(flow(Table.ROUTE, Priority.EXACT, theirs, Move(SOURCE_VNID, TUN_ID, 32), Goto(first)))
        rows.add(flow(Table.DELIVER, Priority.SUBNET, theirs, *map(Output, ours)))
    return frozenset(rows)


@lru_cache(maxsize=2)
def flood_flows(peers: frozenset[Peer]) -> frozenset[Flow]:
    """One copy for every peer, the VNID in the tunnel key; in as many tables as it takes, as far as there are any."""
    addresses = [int(peer.address) for peer in sorted(peers)]
    chunks = [addresses[begin : begin + PEERS_IN_A_ROW] for begin in range(0, len(addresses), PEERS_IN_A_ROW)]
    rows = set()
    del chunks[Table.ANSWER - Table.FLOOD :]
    for number, chunk in enumerate(chunks):
        table = Table.FLOOD + number
        copies: list[Action] = []
        for address in chunk:
            copies += (SetField(TUN_DST, address), Output(VXLAN0))
        onward = table + 1 if number + 1 < len(chunks) else int(Table.DELIVER)
        rows.add(Flow(table, int(Priority.REST), Match(), (*copies, Goto(onward)), BASE_COOKIE))
    return frozenset(rows)


def says(vnid: int) -> tuple[Action, ...]:
    """Note whose packet this is."""
    return (SetField(SOURCE_VNID, vnid),)


def to_node(node: Node) -> tuple[Action, ...]:
    """Out of tun0, addressed to it whatever MAC the sender had written."""
    return (SetField(ETH_DST, mac_of(node.gateway)), Output(TUN0))


def compile_flows(view: View) -> frozenset[Flow]:
    """Every flow that the bridge of this node must hold, and no other."""
    return frozenset().union(
        gateway_flows(view.cluster, view.node),
        route_flows(view.cluster, view.node),
        service_flows(view.cluster, view.node),
        outside_flows(view.cluster, view.node),
        _all_peers_flows(view.peers),
        multicast_flows(view.multicast, view.peers, view.pods, view.docker),
        flows_of_docker(view.docker) if view.docker is not None else (),
        *map(flows_of_pod, view.pods),
    )


@lru_cache(maxsize=8192)
def flows_of_pod(pod: Pod) -> frozenset[Flow]:
    """Return every flow of one pod."""
    return pod_flows(pod) | pod_ingress_flows(pod) | hairpin_flows(pod)


@lru_cache(maxsize=65536)
def flows_of_peer(peer: Peer) -> frozenset[Flow]:
    """Return every flow of one peer."""
    return peer_flows(peer) | peer_node_port_flows(peer)


@lru_cache(maxsize=1)
def flows_of_docker(docker: DockerLane) -> frozenset[Flow]:
    """Return every flow of Docker's bridge."""
    return docker_flows(docker) | docker_ingress_flows(docker)


@lru_cache(maxsize=2)
def _all_peers_flows(peers: frozenset[Peer]) -> frozenset[Flow]:
    return frozenset().union(*map(flows_of_peer, peers))

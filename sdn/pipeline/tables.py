"""Names of the pipeline's tables, ports, registers, conntrack zones and priorities, with one sentence each. Pure.

`docs/pipeline.md` is generated from this module and the flow functions; `ovs-ofctl --names dump-flows` shows the
table names, which the daemon writes into OVSDB.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv4Address

from sdn.model.host import DOCKER_PORT_NAME, GATEWAY_PORT_NAME, VXLAN_PORT_NAME
from sdn.model.match import REG0, REG1, REG2, REG3, REG4, REG5, REG6
from sdn.topology import DOCKER_OFPORT, DOCKER_OFPORT_FLAT, GATEWAY_OFPORT, VXLAN_OFPORT

SRC_VNID = REG0
ARP_SCRATCH = REG1
DESTINATION = REG2
SERVICE_ID, ENDPOINT_IP, ENDPOINT_PORT = REG3, REG4, REG5
ENDPOINT_INDEX = ENDPOINT_IP
"""The same register: a selected endpoint has an index in ENDPOINT_DNAT, a remembered one has its address."""

FROM_ENDPOINT = REG6

CT_ZONE_SERVICE, CT_ZONE_HAIRPIN = 1, 2
"""Conntrack zones: of connections to services, and of connections of pods to themselves through a service."""

MAX_SENDERS, MAX_PORTS_WITH_SENDERS = 64, 1000
"""The most endpoint addresses and service ports of one VNID for which ENDPOINT_LOOKUP has a flow for each address."""

HAIRPIN_IP = IPv4Address("169.254.0.252")
"""The source address of connections of pods to themselves through a service (link-local, RFC 3927)."""

NODE_ACCESS_MAC = 0x0A58_0000_0000
"""The source MAC of packets from pods to nodes that services or VNID 0 permit: that of the address 0.0.0.0. The node's
firewall sees it; a pod has another MAC."""


class Destination(IntEnum):
    """Values of the register DESTINATION."""

    OTHER = 0
    NODE = 1
    HAIRPIN = 2


class Table(IntEnum):
    """The tables, in the order in which packets pass them. A packet that matches no flow of a table is dropped.

    Numbers with gaps between them are free. Reserved are 11 (NDP_RESPONDER), 30 (EGRESS_POLICY), 60 (INGRESS_POLICY),
    80 (EGRESS_NETWORK_POLICY) and 81 (EGRESS_IP). When a number changes, `sdn/pipeline/renumbering.py` has to change
    too. The switch shows a table by its name in lower case.
    """

    CLASSIFIER = 0
    ARP_RESPONDER = 10
    SERVICE_CONNTRACK = 20
    SERVICE_LB = 21
    SESSION_AFFINITY = 22
    AFFINITY_CHECK = 23
    ENDPOINT_DNAT = 24
    L3_FORWARDING = 40
    MULTICAST_TUNNEL = 41
    ENDPOINT_LOOKUP = 50
    USED_ENDPOINTS = 51
    SERVICE_UNDNAT = 52
    POD_OUTPUT = 70
    EXTERNAL_OUTPUT = 90


LEARNED_TABLES = frozenset({Table.SESSION_AFFINITY, Table.USED_ENDPOINTS})
"""Tables whose flows the switch itself adds and lets expire. Packets return from them to the table before."""

MULTICAST_TUNNEL_TABLES = 8
"""Number of tables, from MULTICAST_TUNNEL on, for multicast to peers."""

TABLES: dict[Table, str] = {
    Table.CLASSIFIER: "Identifies the sender and rejects spoofed packets: a pod by its port, MAC and address, a peer "
    "by its tunnel address and subnet, the node by its gateway address. Records the sender's VNID.",
    Table.ARP_RESPONDER: "Answers ARP requests with the MAC that follows from the address. No ARP packet is forwarded "
    "to another pod or into a tunnel.",
    Table.SERVICE_CONNTRACK: "Sends packets through connection tracking (zone 1) if they are for the service network, "
    "for an external IP of a service, or for a node, because nodes have node ports. Packets of established connections "
    "get the address of their endpoint. Replies of a pod to itself (hairpin) pass zone 2.",
    Table.SERVICE_LB: "Selects an endpoint for a new connection, if the client may use the service: clients have the "
    "VNID of the service, or VNID 0. A packet to a service without endpoints goes to tun0, and the node rejects "
    "it.",
    Table.SESSION_AFFINITY: "Finds the endpoint of a client with session affinity. The switch itself adds these flows, "
    "from ENDPOINT_DNAT, and lets them expire.",
    Table.AFFINITY_CHECK: "Checks that the remembered endpoint still exists. If it does not, another one is selected.",
    Table.ENDPOINT_DNAT: "Applies DNAT to the selected endpoint. With session affinity, also adds a flow to "
    "SESSION_AFFINITY.",
    Table.L3_FORWARDING: "Selects the next hop: this node, a peer through its tunnel, or an external address.",
    Table.MULTICAST_TUNNEL: "Sends multicast of projects that have it enabled to every peer. A flow has at most 1,500 "
    "peers, so that it fits into a message; further peers are in the following tables, up to 48: 12,000 peers in all.",
    Table.ENDPOINT_LOOKUP: "Finds packets whose sender may be an endpoint of a service, by its address. If a VNID has "
    f"more than {MAX_SENDERS} endpoints, each of its senders may be one. Nothing here depends on ports or connections.",
    Table.USED_ENDPOINTS: "Finds senders that were endpoints when a connection of this node's pods began. The switch "
    "itself adds these flows, from SERVICE_LB, and lets them expire.",
    Table.SERVICE_UNDNAT: "Restores the service's address in replies, by connection tracking (zone 1): in packets that "
    "an endpoint sends from the port of an endpoint, and in ICMP errors. Other packets continue at once.",
    Table.POD_OUTPUT: "Decides whether a pod may receive the packet. A pod receives from its own VNID and from VNID 0; "
    "a pod of VNID 0 receives from all.",
    Table.EXTERNAL_OUTPUT: "Sends packets that leave the cluster network to the node's network stack, which "
    "masquerades them. The source MAC tells the node's firewall which packets may go to the address of a node.",
}

MAX_PEERS_PER_FLOW = 1500

REGISTERS: dict[str, str] = {
    SRC_VNID.name: "VNID of the sender, from its port (a pod, Docker's bridge) or from the tunnel key; 0 for the node "
    "itself and for external addresses",
    ARP_SCRATCH.name: "holds an address while an ARP reply is written; has no meaning between tables",
    DESTINATION.name: "1: the packet is for a node, which has node ports; 2: a pod reaches itself through a service",
    SERVICE_ID.name: "id of a service port with session affinity, or of a UDP port with several endpoints",
    ENDPOINT_IP.name: "address of the remembered endpoint (AFFINITY_CHECK), or index of the selected one "
    "(ENDPOINT_DNAT)",
    ENDPOINT_PORT.name: "port of the remembered endpoint",
    FROM_ENDPOINT.name: "1: the packet may be a reply of an endpoint of a service",
}

PORTS: dict[int, str] = {
    VXLAN_OFPORT: f"{VXLAN_PORT_NAME}: the VXLAN tunnel to every peer; the flow sets address and key",
    GATEWAY_OFPORT: f"{GATEWAY_PORT_NAME}: the node itself, and external addresses through it; has the gateway address",
    DOCKER_OFPORT: f"{DOCKER_PORT_NAME}: the port to Docker's bridge lbr0, if there is one; with ovs-subnet its number "
    f"is {DOCKER_OFPORT_FLAT}",
}


class Priority(IntEnum):
    """Priorities of flows. No two flows with the same table and priority match the same packet.

    MISS is for the flow of a table, or of a port, that matches all packets that no other flow matches.
    """

    TOP = 300
    UPPER = 250
    HIGH = 200
    NORMAL = 100
    LOW = 50
    MISS = 0

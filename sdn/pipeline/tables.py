"""Names of the pipeline's tables, ports, registers, conntrack zones and priorities, with one sentence each. Pure.

`docs/pipeline.md` is generated from this module and the flow functions; `ovs-ofctl --names dump-flows` shows the
table names, which the daemon writes into OVSDB.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv4Address

from sdn.model.host import DOCKER_PORT, GATEWAY_PORT, TUNNEL_PORT
from sdn.model.match import REG0, REG1, REG2, REG3, REG4, REG5
from sdn.topology import TUN0, VOVSBR_MULTITENANT, VOVSBR_SUBNET, VXLAN0

SRC_VNID = REG0
ARP_SCRATCH = REG1
DESTINATION = REG2
SERVICE_ID, ENDPOINT_IP, ENDPOINT_PORT = REG3, REG4, REG5

CT_ZONE_SERVICE, CT_ZONE_HAIRPIN = 1, 2
"""Zones of connection tracking: of calls to services, and of pods that reach themselves by one."""

HAIRPIN_IP = IPv4Address("169.254.0.252")
"""From where a pod is called that reaches itself by a service (link-local, RFC 3927); no other pod can be called so."""


class Destination(IntEnum):
    """What a packet is addressed to, as far as that is noted."""

    OTHER = 0
    NODE_PORT = 1
    HAIRPIN = 2


class Table(IntEnum):
    """In the order in which a packet meets them; what no row of a table matches is dropped."""

    SOURCE = 0
    ARP = 10
    CALLED = 12
    SERVICE = 13
    AFFINITY = 14
    CHOSEN = 15
    BACKEND = 16
    ROUTE = 20
    FLOOD = 21
    ANSWER = 29
    DELIVER = 30
    OUTSIDE = 40


TABLES: dict[Table, str] = {
    Table.SOURCE: "Who sent this, and may he say so? Pins a pod to its port, MAC and address, a peer to its tunnel "
    "address and subnet, the node to its gateway address; notes the sender's VNID.",
    Table.ARP: "Who has this address? The switch answers with the MAC that follows from the address; no ARP packet "
    "ever reaches a pod or a tunnel.",
    Table.CALLED: "Is it addressed to a service: to the service network, to an outside address of a service, "
    "or to a node, which has node ports? Then connection tracking (zone 1) is asked and gives every packet of a known "
    "call the address of its backend.",
    Table.SERVICE: "Which service does a new call mean, and may the sender use it? Callers have the service's VNID or "
    "VNID 0. A service without backends is refused by the node: the packet goes to tun0.",
    Table.AFFINITY: "Which backend has a caller got who is to keep it? The switch writes these rows itself, from "
    "BACKEND; they go away by themselves.",
    Table.CHOSEN: "Is the backend that a caller is to keep still there? Otherwise one is picked.",
    Table.BACKEND: "Where is the backend that was picked? Written into AFFINITY.",
    Table.ROUTE: "Where does it go: to this node, to a peer through the tunnel, or to the outside?",
    Table.FLOOD: "Multicast of a project that has it switched on goes to every peer. A row names at most 1,500, "
    "so that it fits into a message; further peers stand in the tables behind, up to 28: 12,000 peers in all.",
    Table.ANSWER: "May it be a backend's answer? Then connection tracking is asked, and gives an answer the address "
    "that was called. Everything else goes on at once.",
    Table.DELIVER: "May it arrive? A pod receives from its own VNID and from VNID 0; a pod of VNID 0 from all.",
    Table.OUTSIDE: "What leaves the cluster network goes to the node's own network stack, which masquerades it.",
}

MAX_PEERS_PER_FLOW = 1500

REGISTERS: dict[str, str] = {
    SRC_VNID.name: "VNID of the sender, from the pod's port or from the tunnel key; 0 for the node itself",
    ARP_SCRATCH.name: "holds an address while an ARP answer is written; carries nothing between tables",
    DESTINATION.name: "1: addressed to a node, which has node ports; 2: a pod that reaches itself by a service",
    SERVICE_ID.name: "number of a service whose callers keep their backend",
    ENDPOINT_IP.name: "address of the backend that such a caller has; before that, which one was picked",
    ENDPOINT_PORT.name: "port of that backend",
}

PORTS: dict[int, str] = {
    VXLAN0: f"{TUNNEL_PORT}: the VXLAN tunnel to every peer; address and key are set by the flow",
    TUN0: f"{GATEWAY_PORT}: the node itself, and through it the outside; carries the gateway address",
    VOVSBR_MULTITENANT: f"{DOCKER_PORT}: Docker's own bridge lbr0, where there is one; {VOVSBR_SUBNET} with ovs-subnet",
}


class Priority(IntEnum):
    """Higher is asked first; within one level of one table no two rows match the same packet."""

    HIGH = 300
    HOST = 200
    SUBNET = 100
    CLUSTER = 50
    DEFAULT = 0

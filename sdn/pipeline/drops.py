"""Reasons of dropped packets, their place in the cookies of flows, and counters by reason and owner. Pure.

Every flow without actions has its reason in its cookie (`make_flow`). A packet that matches no flow of a table has the
reason of the table, `MISS_REASONS`. CONTRIBUTING.md says how to add a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import IntEnum
from ipaddress import IPv4Address
from typing import NamedTuple

from sdn.model.flow import Flow
from sdn.pipeline.cookies import DROP_BIT, CookieCategory, owner_of
from sdn.pipeline.tables import Table


class DropReason(IntEnum):
    """Reasons for which the switch drops packets. A number stays with its reason, because cookies carry it."""

    UNCLASSIFIED = 1
    SPOOFED = 2
    NO_VNID = 3
    UNKNOWN_TUNNEL_PEER = 4
    INVALID_GATEWAY_PACKET = 5
    NO_ARP_ENTRY = 6
    ARP_ANNOUNCEMENT = 7
    ARP_BETWEEN_CONTAINERS = 8
    NO_SERVICE = 9
    SERVICE_FRAGMENT = 10
    NO_ENDPOINT = 11
    NO_ROUTE = 12
    MULTICAST_DISABLED = 13
    NO_MULTICAST_RECEIVER = 14
    BROADCAST = 15
    NO_POD = 16
    OTHER_PROJECT = 17
    VXLAN_FROM_POD = 18
    LOOPBACK = 19

    @property
    def label(self) -> str:
        """The value of the metric's label `reason`."""
        return self.name.lower()


class DropDescription(NamedTuple):
    """Description of a reason for operators: whose packets are counted (the metric's label `owner`), and why."""

    owner: str
    meaning: str


DROP_DESCRIPTIONS: dict[DropReason, DropDescription] = {
    DropReason.UNCLASSIFIED: DropDescription(
        "node",
        "The packet entered at tun0 and is neither IPv4 to this node's subnet nor an ARP request from the gateway "
        "address (IPv6 of the node is an example), or it entered at a port without flows.",
    ),
    DropReason.SPOOFED: DropDescription(
        "the sending pod, or docker",
        "The sender may send only IPv4 packets and ARP requests, with its own MAC (pods) and IP address and without a "
        "VLAN tag. The packet is another one: a false sender address, IPv6, an ARP reply.",
    ),
    DropReason.NO_VNID: DropDescription("the sending pod", "The pod's project has no NetNamespace, and so no VNID."),
    DropReason.UNKNOWN_TUNNEL_PEER: DropDescription(
        "node",
        "A tunnel packet whose outer source address is no peer's, or whose inner source address is not in the subnet "
        "of that peer. VXLAN from a host without a HostSubnet is an example.",
    ),
    DropReason.INVALID_GATEWAY_PACKET: DropDescription(
        "node",
        "A packet from tun0 with a source address of the cluster network, but not from the gateway address to the "
        "cluster network. The node routed a packet back that came out of br0, or sent one with a false source "
        "address.",
    ),
    DropReason.NO_ARP_ENTRY: DropDescription(
        "node", "An ARP request for an address that no pod of this node has, or that is not of the cluster network."
    ),
    DropReason.ARP_ANNOUNCEMENT: DropDescription(
        "the sending pod, or node",
        "The sender announces its own address by ARP. No pod needs this, because the switch answers ARP requests.",
    ),
    DropReason.ARP_BETWEEN_CONTAINERS: DropDescription(
        "docker", "An ARP request for a container outside of any pod by another one. It gets its answer on lbr0."
    ),
    DropReason.NO_SERVICE: DropDescription(
        "node, or services for external IPs",
        "A packet to a service address or node port at which no service accepts connections of the sender: there is "
        "none, or it belongs to another project. A connection to a cluster IP that begins with a fragment counts here, "
        "not as service_fragment.",
    ),
    DropReason.SERVICE_FRAGMENT: DropDescription(
        "services, or node for node ports",
        "A connection to an external IP or a node port that begins with a fragment. Services do not take these.",
    ),
    DropReason.NO_ENDPOINT: DropDescription(
        "node", "The selected endpoint of a service was removed while the packet passed the tables."
    ),
    DropReason.NO_ROUTE: DropDescription(
        "node", "A packet to an address of the cluster network that is in no node's subnet."
    ),
    DropReason.MULTICAST_DISABLED: DropDescription("node", "Multicast of a project that has not enabled it."),
    DropReason.NO_MULTICAST_RECEIVER: DropDescription(
        "node", "Multicast of a project that has enabled it, but has no pod on this node. Other nodes get their copy."
    ),
    DropReason.BROADCAST: DropDescription("node", "A packet to 255.255.255.255, which is not supported."),
    DropReason.LOOPBACK: DropDescription(
        "node", "A packet to an address of 127.0.0.0/8. These addresses are for processes of one host."
    ),
    DropReason.NO_POD: DropDescription(
        "node", "No pod of this node has the destination address, or only a pod whose project has no VNID."
    ),
    DropReason.OTHER_PROJECT: DropDescription(
        "the receiving pod, or docker", "The sender may not reach the receiver: their VNIDs differ, and neither is 0."
    ),
    DropReason.VXLAN_FROM_POD: DropDescription(
        "node", "A pod sends VXLAN to an external address. A peer would accept it as a tunnel packet of this node."
    ),
}

MISS_REASONS: dict[Table, DropReason] = {
    Table.CLASSIFIER: DropReason.UNCLASSIFIED,
    Table.ARP_RESPONDER: DropReason.NO_ARP_ENTRY,
    Table.AFFINITY_CHECK: DropReason.NO_ENDPOINT,
    Table.ENDPOINT_DNAT: DropReason.NO_ENDPOINT,
    Table.POD_OUTPUT: DropReason.NO_POD,
}
"""Reasons for which tables drop packets that match none of their flows. The other tables have a flow for all IPv4
packets, except SESSION_AFFINITY and USED_ENDPOINTS, from which packets return."""

UNKNOWN = "unknown"
"""Label of drops by a flow whose cookie has no reason or owner of ours, such as a flow of an older daemon."""

_REASON_SHIFT = 48


def drop_cookie(cookie: int, reason: DropReason) -> int:
    """Return the cookie of an owner's flow that drops packets for this reason."""
    return reason << _REASON_SHIFT | DROP_BIT | cookie


def drop_reason(cookie: int) -> DropReason | None:
    """Return the reason for which the flow with this cookie drops packets; None if the cookie has none of ours."""
    number = cookie >> _REASON_SHIFT
    return DropReason(number) if cookie & DROP_BIT and number in _REASONS else None


_REASONS = frozenset(DropReason)


def drop_counters(
    flow_counts: Mapping[Flow, int], table_misses: Mapping[int, int], pod_names: Mapping[IPv4Address, str]
) -> Iterator[tuple[str, str, int]]:
    """Yield the labels of a reason and an owner with the packets, each pair of labels once.

    An owner is `pod PROJECT/NAME`, `docker`, `services`, `node` or `unknown`. `pod_names` has `PROJECT/NAME` of the
    pods by IP address. `table_misses` has the packets that matched no flow of a table.
    """
    packets_of: Counter[tuple[str, str]] = Counter()
    for flow, packets in flow_counts.items():
        reason = drop_reason(flow.cookie)
        packets_of[UNKNOWN if reason is None else reason.label, _owner_label(flow.cookie, pod_names)] += packets
    for table, reason in MISS_REASONS.items():
        packets_of[reason.label, "node"] += table_misses.get(int(table), 0)
    yield from ((reason, owner, packets) for (reason, owner), packets in sorted(packets_of.items()))


def _owner_label(cookie: int, pod_names: Mapping[IPv4Address, str]) -> str:
    owner = owner_of(cookie)
    if owner is None:
        return UNKNOWN
    match owner.category:
        case CookieCategory.POD:
            name = pod_names.get(IPv4Address(owner.key))
            return f"pod {name}" if name is not None else "a pod that is gone"
        case CookieCategory.DOCKER:
            return "docker"
        case CookieCategory.SERVICE:
            return "services"
        case CookieCategory.NODE | CookieCategory.PEER:
            return "node"

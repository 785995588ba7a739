"""Reasons and owners of dropped packets, from the counters of the flows that drop. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address

from sdn.model.flow import Flow
from sdn.model.match import IN_PORT
from sdn.pipeline.cookies import CookieCategory, owner_of
from sdn.pipeline.tables import Table
from sdn.topology import GATEWAY_OFPORT, VXLAN_OFPORT

MISS_REASONS: dict[Table, str] = {
    Table.CLASSIFIER: "unclassified",
    Table.ARP_RESPONDER: "no_arp_entry",
    Table.L3_FORWARDING: "no_route",
    Table.POD_OUTPUT: "no_pod",
}
"""Reasons for which a table drops packets that match none of its flows."""

FLOW_REASONS: dict[int, str] = {
    Table.ARP_RESPONDER: "no_arp_entry",
    Table.SERVICE_LB: "no_service",
    Table.L3_FORWARDING: "no_route",
    Table.POD_OUTPUT: "other_project",
    Table.EXTERNAL_OUTPUT: "vxlan_from_pod",
}
CLASSIFIER_REASONS = {VXLAN_OFPORT: "unknown_tunnel_peer", GATEWAY_OFPORT: "invalid_gateway_packet"}


def drop_reason(flow: Flow) -> str:
    """Return the reason for which this flow drops packets."""
    if flow.table != Table.CLASSIFIER:
        return FLOW_REASONS[flow.table]
    ports = [match.value for match in flow.match.fields if match.field == IN_PORT]
    return CLASSIFIER_REASONS.get(ports[0], "spoofed") if ports else "unclassified"


def drop_counters(
    flow_counts: Mapping[Flow, int], table_misses: Mapping[int, int], pod_names: Mapping[IPv4Address, str]
) -> Iterator[tuple[str, str, int]]:
    """Yield (reason, owner, packets), each reason and owner once.

    An owner is `pod PROJECT/NAME`, `docker`, `services` or `node`. `pod_names` has `PROJECT/NAME` of the pods by IP
    address. `table_misses` has the packets that matched no flow of a table.
    """
    packets_of: Counter[tuple[str, str]] = Counter()
    for flow, packets in flow_counts.items():
        packets_of[drop_reason(flow), _owner_name(flow.cookie, pod_names)] += packets
    for table, reason in MISS_REASONS.items():
        packets_of[reason, "node"] += table_misses.get(int(table), 0)
    yield from ((reason, owner, packets) for (reason, owner), packets in sorted(packets_of.items()))


def _owner_name(cookie: int, pod_names: Mapping[IPv4Address, str]) -> str:
    owner = owner_of(cookie)
    if owner is not None and owner.category is CookieCategory.POD:
        name = pod_names.get(IPv4Address(owner.key))
        return f"pod {name}" if name is not None else "a pod that is gone"
    if owner is not None and owner.category is CookieCategory.DOCKER:
        return "docker"
    if owner is not None and owner.category is CookieCategory.SERVICE:
        return "services"
    return "node"

"""Reasons and owners of dropped packets, from the counters of the flows that drop. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address

from sdn.cniserver.pod_ports import ADDRESS, NAMESPACE, POD, ports_by_sandbox
from sdn.model.flow import Flow
from sdn.model.host import Bridge
from sdn.model.match import IN_PORT
from sdn.pipeline.cookies import DOCKER_COOKIE, DROP_BIT, POD_COOKIES, SERVICE_COOKIE
from sdn.pipeline.tables import Table
from sdn.topology import TUN0, VXLAN0

MISSES: dict[Table, str] = {
    Table.SOURCE: "not believed",
    Table.ARP: "no such owner",
    Table.ROUTE: "no way",
    Table.DELIVER: "no such pod",
}
"""Why a packet is dropped that no row of a table matches."""

REASONS: dict[int, str] = {
    Table.ARP: "no such owner",
    Table.SERVICE: "no such service, or another project's",
    Table.ROUTE: "no way",
    Table.DELIVER: "other project",
    Table.OUTSIDE: "tunnel packet of a pod",
}
FROM_PORT = {VXLAN0: "unknown tunnel", TUN0: "not from outside"}


def drop_reason(row: Flow) -> str:
    """Why this row drops packets, in a few words."""
    if row.table != Table.SOURCE:
        return REASONS[row.table]
    ports = [match.value for match in row.match.fields if match.field == IN_PORT]
    return FROM_PORT.get(ports[0], "spoofed") if ports else "not believed"


def drop_counters(
    rows: Mapping[Flow, int], misses: Mapping[int, int], bridge: Bridge | None
) -> Iterator[tuple[str, str, int]]:
    """(reason, owner, packets), each pair once; owners are `pod PROJECT/NAME`, `docker`, `services`, `node`."""
    pods = {port.ids[ADDRESS]: port.ids for port in ports_by_sandbox(bridge).values()}
    names = {int(IPv4Address(address)): f"pod {marks[NAMESPACE]}/{marks[POD]}" for address, marks in pods.items()}
    sums: dict[tuple[str, str], int] = {}
    for row, packets in rows.items():
        key = (drop_reason(row), _owner_name(row.cookie & ~DROP_BIT, names))
        sums[key] = sums.get(key, 0) + packets
    for table, reason in MISSES.items():
        sums[(reason, "node")] = sums.get((reason, "node"), 0) + misses.get(int(table), 0)
    yield from ((reason, owner, packets) for (reason, owner), packets in sorted(sums.items()))


def _owner_name(cookie: int, pods: Mapping[int, str]) -> str:
    if cookie == DOCKER_COOKIE:
        return "docker"
    if cookie >> 32 == SERVICE_COOKIE >> 32:
        return "services"
    return pods.get(cookie - POD_COOKIES, "a pod that is gone") if cookie >= POD_COOKIES else "node"

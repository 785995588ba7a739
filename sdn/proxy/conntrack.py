"""Decides which conntrack entries of UDP are stale, because they lead to removed endpoints. Pure.

TCP entries stay: a connection ends by itself when its endpoint is gone, and may complete on an endpoint that takes no
new connections. A client of UDP never ends a connection, and every packet that it sends keeps its entry alive.

An entry whose endpoint still serves is not stale after a change of externalTrafficPolicy: as with kube-proxy and as
with TCP, the policy applies to new connections only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address

from sdn.model.flow import Ct, Flow, SetField
from sdn.model.host import ConntrackEntry, ConntrackFilter
from sdn.model.match import IP_DST, UDP_DST
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo
from sdn.pipeline.tables import CT_ZONE_SERVICE, SERVICE_ID, Table
from sdn.proxy.service_ports import ProxyConfig

AddressPort = tuple[IPv4Address, int]
"""An address and a port."""

UdpFrontends = Mapping[AddressPort, frozenset[AddressPort]]
"""Endpoints by frontend."""


def conntrack_filters_to_flush(change: ServicePortChange) -> frozenset[ConntrackFilter]:
    """Return the filters for entries of endpoints that a frontend had before the change and has no longer."""
    return conntrack_filters(change.removed) - conntrack_filters(change.added)


def conntrack_filters(ports: Iterable[ServicePortInfo]) -> frozenset[ConntrackFilter]:
    """Return the filters for all entries of UDP that the switch can have of these ports."""
    udp_ports = (port for port in ports if port.key.protocol is Protocol.UDP)
    return frozenset(conntrack_filter for port in udp_ports for conntrack_filter in _filters_of_port(port))


def conntrack_filters_of_flows(flows: Iterable[Flow]) -> frozenset[ConntrackFilter]:
    """Return the filters for all entries of UDP that flows of service ports have made.

    The flow of a frontend has its only endpoint, or the id of the service port, under which other flows have the
    endpoints.
    """
    frontends: list[tuple[IPv4Address | None, int, Flow]] = []
    endpoints_by_id: defaultdict[int, set[AddressPort]] = defaultdict(set)
    for flow in flows:
        fields = {match.field: match.value for match in flow.match.fields}
        if SERVICE_ID in fields:
            endpoints_by_id[fields[SERVICE_ID]] |= _dnat_destinations(flow)
        elif flow.table == Table.SERVICE_LB and UDP_DST in fields:
            frontends.append((IPv4Address(fields[IP_DST]) if IP_DST in fields else None, fields[UDP_DST], flow))
    filters: set[ConntrackFilter] = set()
    for address, port, flow in frontends:
        endpoints = _dnat_destinations(flow)
        for action in flow.actions:
            if isinstance(action, SetField) and action.field == SERVICE_ID:
                endpoints |= endpoints_by_id[action.value]
        filters |= {_udp_filter(address, port, endpoint) for endpoint in endpoints}
    return frozenset(filters)


def _dnat_destinations(flow: Flow) -> set[AddressPort]:
    return {
        (action.dst, action.port)
        for action in flow.actions
        if isinstance(action, Ct) and action.zone == CT_ZONE_SERVICE and action.dst is not None
    }


def _filters_of_port(port: ServicePortInfo) -> set[ConntrackFilter]:
    frontends: list[tuple[IPv4Address | None, int]] = [(ip, port.port) for ip in port.external_ips]
    if port.cluster_ip is not None:
        frontends.append((port.cluster_ip, port.port))
    if port.node_port:
        frontends.append((None, port.node_port))
    endpoints = _address_ports(port.internal_endpoints) | _external_address_ports(port)
    return {_udp_filter(address, number, endpoint) for address, number in frontends for endpoint in endpoints}


def _udp_filter(address: IPv4Address | None, port: int, endpoint: AddressPort) -> ConntrackFilter:
    return ConntrackFilter(
        zone=CT_ZONE_SERVICE,
        protocol=Protocol.UDP,
        address=address,
        port=port,
        endpoint=endpoint[0],
        endpoint_port=endpoint[1],
    )


def udp_frontends(node_ip: IPv4Address, ports: Iterable[ServicePortInfo]) -> UdpFrontends:
    """Return the UDP frontends of these ports on a node, with the endpoints of each."""
    endpoints_of: dict[AddressPort, frozenset[AddressPort]] = {}
    for port in ports:
        if port.key.protocol is not Protocol.UDP:
            continue
        if port.cluster_ip is not None:
            endpoints_of[port.cluster_ip, port.port] = _address_ports(port.internal_endpoints)
        external_frontends = [(ip, port.port) for ip in port.external_ips]
        if port.node_port:
            external_frontends.append((node_ip, port.node_port))
        if external_frontends:
            endpoints_of.update(dict.fromkeys(external_frontends, _external_address_ports(port)))
    return endpoints_of


def changed_udp_frontends(node_ip: IPv4Address, change: ServicePortChange) -> UdpFrontends:
    """Return the UDP frontends that a change concerns, with their endpoints afterwards.

    A removed frontend has no endpoints.
    """
    removed = dict.fromkeys(udp_frontends(node_ip, change.removed), frozenset[AddressPort]())
    return {**removed, **udp_frontends(node_ip, change.added)}


def stale_entries(frontends: UdpFrontends, entries: Iterable[ConntrackEntry]) -> list[ConntrackEntry]:
    """Return the entries of these frontends that lead to other addresses than the frontend's endpoints.

    This includes entries without DNAT, which began before the frontend existed.
    """
    stale: list[ConntrackEntry] = []
    for entry in entries:
        endpoints = frontends.get((entry.frontend, entry.frontend_port))
        if endpoints is not None and (entry.endpoint, entry.endpoint_port) not in endpoints:
            stale.append(entry)
    return stale


def entries_without_frontend(
    config: ProxyConfig, frontends: UdpFrontends, entries: Iterable[ConntrackEntry]
) -> list[ConntrackEntry]:
    """Return the entries with DNAT whose cluster IP or node port no service has any more.

    They are left if the daemon stops after it removed a service and before it deleted the entries. Entries of external
    IPs are not found, because nothing tells such an address from that of another NAT.
    """
    first, last = config.node_port_range
    return [
        entry
        for entry in entries
        if (entry.frontend, entry.frontend_port) not in frontends
        and (entry.endpoint, entry.endpoint_port) != (entry.frontend, entry.frontend_port)
        and (
            entry.frontend in config.service_network
            or (entry.frontend == config.node.address and first <= entry.frontend_port <= last)
        )
    ]


def _external_address_ports(port: ServicePortInfo) -> frozenset[AddressPort]:
    """Return the endpoints of all frontends but the cluster IP, for clients of any kind and either traffic policy."""
    return _address_ports(port.cluster_endpoints) | _address_ports(port.external_endpoints)


def _address_ports(endpoints: Iterable[EndpointInfo]) -> frozenset[AddressPort]:
    return frozenset((endpoint.address, endpoint.port) for endpoint in endpoints)

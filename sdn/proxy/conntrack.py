"""Conntrack entries of UDP that lead to removed endpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address

from sdn.model.host import ConntrackEntry, ConntrackFilter
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo
from sdn.pipeline.tables import CT_ZONE_SERVICE
from sdn.proxy.nftables import Host


def conntrack_filters_to_flush(change: ServicePortChange) -> frozenset[ConntrackFilter]:
    """What connection tracking is to forget, so that callers get a backend which is there.

    UDP only: a caller in UDP never says that it has ended. Who speaks TCP to a backend that takes no new connections
    may end what it has begun.
    """
    return _filters(change.removed) - _filters(change.added)


def _filters(ports: Iterable[ServicePortInfo]) -> frozenset[ConntrackFilter]:
    return frozenset(call for port in ports if port.key.protocol is Protocol.UDP for call in _filters_of(port))


def _filters_of(port: ServicePortInfo) -> Iterator[ConntrackFilter]:
    fronts = [(address, port.port) for address in (port.cluster_ip, *port.external_ips) if address is not None]
    if port.node_port:
        yield from (_filter(port, None, port.node_port, backend) for backend in _all_endpoints(port))
    for address, number in fronts:
        yield from (_filter(port, address, number, backend) for backend in _all_endpoints(port))


def _all_endpoints(port: ServicePortInfo) -> Iterable[tuple[IPv4Address, int]]:
    return {
        (one.address, one.port) for one in (*port.internal_endpoints, *port.cluster_endpoints, *port.external_endpoints)
    }


def _filter(
    port: ServicePortInfo, address: IPv4Address | None, number: int, backend: tuple[IPv4Address, int]
) -> ConntrackFilter:
    ip, port_number = backend
    return ConntrackFilter(
        zone=CT_ZONE_SERVICE,
        protocol=port.key.protocol,
        address=address,
        port=number,
        endpoint=ip,
        endpoint_port=port_number,
    )


AddressPort = tuple[IPv4Address, int]
"""An address and a port."""


def udp_frontends(host: Host, ports: Iterable[ServicePortInfo]) -> Mapping[AddressPort, frozenset[AddressPort]]:
    """Where these ports are called over UDP on this node, and to which backends that leads."""
    found: dict[AddressPort, frozenset[AddressPort]] = {}
    for port in ports:
        if port.key.protocol is not Protocol.UDP:
            continue
        if port.cluster_ip is not None:
            found[port.cluster_ip, port.port] = _address_ports(port.internal_endpoints)
        elsewhere = [(address, port.port) for address in port.external_ips]
        elsewhere += [(host.address, port.node_port)] if port.node_port else []
        found.update(
            {
                front: _address_ports(port.cluster_endpoints) | _address_ports(port.external_endpoints)
                for front in elsewhere
            }
        )
    return found


def changed_udp_frontends(host: Host, change: ServicePortChange) -> Mapping[AddressPort, frozenset[AddressPort]]:
    """The same after a change, for fronts that it concerns: one that has gone leads nowhere."""
    return {**dict.fromkeys(udp_frontends(host, change.removed), frozenset()), **udp_frontends(host, change.added)}


def stale_entries(
    fronts: Mapping[AddressPort, frozenset[AddressPort]], connections: Iterable[ConntrackEntry]
) -> list[ConntrackEntry]:
    """Those to one of these fronts that were led to what is not a backend of it, or were not translated at all.

    TCP ends by itself when its peer is gone; a client of UDP would send into the void for as long as it goes on
    sending, for every packet keeps the connection alive.
    """
    found = []
    for one in connections:
        backends = fronts.get((one.frontend, one.frontend_port))
        if backends is not None and (one.endpoint, one.endpoint_port) not in backends:
            found.append(one)
    return found


def _address_ports(backends: Iterable[EndpointInfo]) -> frozenset[AddressPort]:
    return frozenset((backend.address, backend.port) for backend in backends)

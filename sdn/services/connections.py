"""Which connections of the kernel lead to where no service leads any more. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from sdn.services.maps import Host
from sdn.services.served_port import Backend, PortChange, Protocol, ServedPort

Place = tuple[IPv4Address, int]
"""An address and a port."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Packets over UDP that a client sends to a front, and the backend that answers them.

    The backend is the front itself where nothing was translated.
    """

    client: IPv4Address
    client_port: int
    front: IPv4Address
    front_port: int
    backend: IPv4Address
    backend_port: int


def datagram_fronts(host: Host, ports: Iterable[ServedPort]) -> Mapping[Place, frozenset[Place]]:
    """Where these ports are called over UDP on this node, and to which backends that leads."""
    found: dict[Place, frozenset[Place]] = {}
    for port in ports:
        if port.key.protocol is not Protocol.UDP:
            continue
        if port.cluster_ip is not None:
            found[port.cluster_ip, port.port] = _places(port.inside)
        elsewhere = [(address, port.port) for address in port.outside_ips]
        elsewhere += [(host.address, port.node_port)] if port.node_port else []
        found.update({front: _places(port.everywhere) | _places(port.outside) for front in elsewhere})
    return found


def changed_fronts(host: Host, change: PortChange) -> Mapping[Place, frozenset[Place]]:
    """The same after a change, for fronts that it concerns: one that has gone leads nowhere."""
    return {**dict.fromkeys(datagram_fronts(host, change.gone), frozenset()), **datagram_fronts(host, change.come)}


def stale(fronts: Mapping[Place, frozenset[Place]], connections: Iterable[Connection]) -> list[Connection]:
    """Those to one of these fronts that were led to what is not a backend of it, or were not translated at all.

    TCP ends by itself when its peer is gone; a client of UDP would send into the void for as long as it goes on
    sending, for every packet keeps the connection alive.
    """
    found = []
    for one in connections:
        backends = fronts.get((one.front, one.front_port))
        if backends is not None and (one.backend, one.backend_port) not in backends:
            found.append(one)
    return found


def _places(backends: Iterable[Backend]) -> frozenset[Place]:
    return frozenset((backend.address, backend.port) for backend in backends)

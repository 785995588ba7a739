"""Which connections of services without connections (UDP) have lost their backend. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from sdn.services.served_port import PortChange, Protocol, ServedPort


@dataclass(frozen=True, slots=True, order=True)
class Call:
    """Packets that were addressed to `port` of `address` (None: of any node) and went to this backend."""

    protocol: Protocol
    address: IPv4Address | None
    port: int
    backend: IPv4Address
    backend_port: int


def ended_calls(change: PortChange) -> frozenset[Call]:
    """What connection tracking is to forget, so that callers get a backend which is there.

    UDP only: a caller in UDP never says that it has ended. Who speaks TCP to a backend that takes no new connections
    may end what it has begun.
    """
    return _calls(change.gone) - _calls(change.come)


def _calls(ports: Iterable[ServedPort]) -> frozenset[Call]:
    return frozenset(call for port in ports if port.key.protocol is Protocol.UDP for call in _calls_of(port))


def _calls_of(port: ServedPort) -> Iterator[Call]:
    fronts = [(address, port.port) for address in (port.cluster_ip, *port.outside_ips) if address is not None]
    if port.node_port:
        yield from (_call(port, None, port.node_port, backend) for backend in _all_backends(port))
    for address, number in fronts:
        yield from (_call(port, address, number, backend) for backend in _all_backends(port))


def _all_backends(port: ServedPort) -> Iterable[tuple[IPv4Address, int]]:
    return {(one.address, one.port) for one in (*port.inside, *port.everywhere, *port.outside)}


def _call(port: ServedPort, address: IPv4Address | None, number: int, backend: tuple[IPv4Address, int]) -> Call:
    return Call(port.key.protocol, address, number, *backend)

"""Which port of which service a packet is meant for, and who may answer it. Pure, with a memory of what is served."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address

from sdn.services.served_port import Backend, PortChange, PortKey, Protocol, ServedPort

Front = tuple[IPv4Address, Protocol, int]
"""An address, a protocol and a port at which callers find a service."""


@dataclass(frozen=True, slots=True)
class Call:
    """Somebody at `client` calls a front; `is_own` tells that it is a process of this node."""

    front: Front
    client: IPv4Address
    is_own: bool


class Directory:
    """`is_cluster` tells the addresses of pods and gateways, `is_node` those of nodes under the tunnels."""

    def __init__(self, is_cluster: Callable[[IPv4Address], bool], is_node: Callable[[IPv4Address], bool]) -> None:
        self.ports: dict[PortKey, ServedPort] = {}
        self._is_cluster = is_cluster
        self._is_node = is_node
        self._fronts: dict[Front, PortKey] = {}
        self._node_ports: dict[tuple[Protocol, int], PortKey] = {}

    def difference(self, ports: Iterable[ServedPort]) -> PortChange:
        """What has to change so that exactly these are served."""
        wished = {port.key: port for port in ports}
        return PortChange(
            gone=tuple(port for key, port in self.ports.items() if wished.get(key) != port),
            come=tuple(port for key, port in wished.items() if self.ports.get(key) != port),
        )

    def edit(self, change: PortChange) -> None:
        """Forget what has gone, then learn what has come."""
        for port in change.gone:
            self.ports.pop(port.key, None)
            for front in _fronts(port):
                if self._fronts.get(front) == port.key:
                    del self._fronts[front]
            if self._node_ports.get((port.key.protocol, port.node_port)) == port.key:
                del self._node_ports[port.key.protocol, port.node_port]
        for port in change.come:
            self.ports[port.key] = port
            self._fronts.update(dict.fromkeys(_fronts(port), port.key))
            if port.node_port:
                self._node_ports[port.key.protocol, port.node_port] = port.key

    def find(self, front: Front) -> ServedPort | None:
        """The port that is served there."""
        address, protocol, number = front
        key = self._fronts.get(front)
        if key is None and self._is_node(address):
            key = self._node_ports.get((protocol, number))
        return None if key is None else self.ports[key]

    def backends(self, call: Call) -> tuple[Backend, ...]:
        """Those that may answer; none where nothing is served.

        An endpoint that is itself a front is left out: connections could go round between nodes for ever.
        """
        port = self.find(call.front)
        if port is None:
            return ()
        if call.front[0] == port.cluster_ip:
            found = port.inside
        elif call.is_own or self._is_cluster(call.client):
            found = port.everywhere
        else:
            found = port.outside
        protocol = port.key.protocol
        return tuple(one for one in found if self.find((one.address, protocol, one.port)) is None)


def _fronts(port: ServedPort) -> tuple[Front, ...]:
    addresses = port.outside_ips if port.cluster_ip is None else (port.cluster_ip, *port.outside_ips)
    return tuple((address, port.key.protocol, port.port) for address in addresses)

"""Selects endpoints in turn, or the endpoint that a client used before; callers pass the time. Pure."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv4Address

from sdn.model.service_port import EndpointInfo, ServicePortInfo, ServicePortName

MAX_CLIENTS = 1 << 16
"""Maximum number of clients of one port whose endpoint is remembered; the least recently used is forgotten first."""

Affinity = tuple[EndpointInfo, float]
"""The endpoint of a client, and the time at which it is forgotten."""


class RoundRobin:
    """Load balancer of the userspace proxy. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._next_index: dict[ServicePortName, int] = {}
        self._affinities: dict[ServicePortName, OrderedDict[IPv4Address, Affinity]] = {}

    def candidates(
        self, port: ServicePortInfo, endpoints: tuple[EndpointInfo, ...], client: IPv4Address, now: float
    ) -> list[EndpointInfo]:
        """Return all endpoints in the order in which to try them, and advance the turn.

        With session affinity, the first endpoint is remembered at once, because the client may connect again before
        this connection is established.
        """
        if not endpoints:
            return []
        index = self._next_index.get(port.key, 0) % len(endpoints)
        order = [*endpoints[index:], *endpoints[:index]]
        clients = self._affinities.get(port.key)
        if clients is not None and client in clients:
            endpoint, expires_at = clients[client]
            if expires_at > now and endpoint in order and port.affinity_timeout_seconds:
                order.remove(endpoint)
                return [endpoint, *order]
        self._next_index[port.key] = index + 1
        self.record(port, client, order[0], now)
        return order

    def record(self, port: ServicePortInfo, client: IPv4Address, endpoint: EndpointInfo, now: float) -> None:
        """Remember which endpoint a client got. Does nothing without session affinity."""
        if not port.affinity_timeout_seconds:
            return
        affinities = self._affinities.setdefault(port.key, OrderedDict())
        affinities[client] = (endpoint, now + port.affinity_timeout_seconds)
        affinities.move_to_end(client)
        while len(affinities) > MAX_CLIENTS or next(iter(affinities.values()))[1] <= now:
            affinities.popitem(last=False)

    def forget(self, key: ServicePortName) -> None:
        """Forget the turn and the clients of a port that was removed."""
        self._next_index.pop(key, None)
        self._affinities.pop(key, None)

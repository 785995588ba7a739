"""Selects an endpoint in turn, or the endpoint that a client used before; the caller passes the time. Pure."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv4Address

from sdn.model.service_port import EndpointInfo, ServicePortInfo, ServicePortName

MAX_CLIENTS = 1 << 16
"""Of one port that are remembered for session affinity; who called least lately is forgotten first."""

Client = tuple[EndpointInfo, float]


class RoundRobin:
    """Times are seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._turns: dict[ServicePortName, int] = {}
        self._clients: dict[ServicePortName, OrderedDict[IPv4Address, Client]] = {}

    def candidates(
        self, port: ServicePortInfo, backends: tuple[EndpointInfo, ...], client: IPv4Address, now: float
    ) -> list[EndpointInfo]:
        """All backends, in the order in which to try them; the turn passes on.

        With session affinity the first one is remembered at once: a client may call again before anyone has taken it.
        """
        if not backends:
            return []
        turn = self._turns.get(port.key, 0) % len(backends)
        order = [*backends[turn:], *backends[:turn]]
        clients = self._clients.get(port.key)
        known = None if clients is None else clients.get(client)
        if port.affinity_timeout_seconds and known is not None and known[1] > now and known[0] in order:
            order.remove(known[0])
            return [known[0], *order]
        self._turns[port.key] = turn + 1
        self.took(port, client, order[0], now)
        return order

    def took(self, port: ServicePortInfo, client: IPv4Address, backend: EndpointInfo, now: float) -> None:
        """Remember who took a client; with session affinity it will be asked first next time."""
        if not port.affinity_timeout_seconds:
            return
        clients = self._clients.setdefault(port.key, OrderedDict())
        clients[client] = (backend, now + port.affinity_timeout_seconds)
        clients.move_to_end(client)
        while len(clients) > MAX_CLIENTS or next(iter(clients.values()))[1] <= now:
            clients.popitem(last=False)

    def forget(self, key: ServicePortName) -> None:
        """A port that is no longer served."""
        self._turns.pop(key, None)
        self._clients.pop(key, None)

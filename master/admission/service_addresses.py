"""Which cluster IP and which ports of the nodes a service gets. Pure. Raises `answers.Failure`.

They are handed out in sequence, from a cursor on, so that a freed one rests before it is used again. A service may ask
for one that is free. A port of the nodes belongs to one service, for all protocols: within it, the same port in two
protocols has one number. What an update leaves as it was is not looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network

from msgspec.structs import replace

from api.core.services import (
    LOAD_BALANCER,
    NODE_PORT,
    Service,
    ServicePort,
    has_address,
    has_health_port,
    has_node_ports,
)
from api.meta.schema import FieldError, quoted
from master.admission.allocators import next_numbers
from master.admission.external_addresses import NO_NETWORKS, ExternalNetworks
from master.kinds.service import SERVICE
from master.wire import answers

NODE_PORTS = range(30000, 32768)


@dataclass(frozen=True, slots=True)
class ServiceWish:
    """What the settings let services have beside their cluster IPs: ports of the nodes, external addresses that users
    choose, and ingress addresses (None: no such) that services of the type LoadBalancer are given.
    """

    node_ports: range = NODE_PORTS
    external: ExternalNetworks = NO_NETWORKS
    ingress: IPv4Network | None = None


USUAL = ServiceWish()
"""Where nothing is said."""


@dataclass(frozen=True, slots=True)
class Cursors:
    """Where to go on; both count from the first."""

    address: int = 0
    node_port: int = 0


def assigned(
    service: Service,
    old: Service | None,
    others: Sequence[Service],
    network: IPv4Network,
    node_ports: range,
    cursors: Cursors,
) -> tuple[Service, Cursors]:
    """The service with all that it is to have, and the cursors for the next one. `others` are all other services."""
    service, address = _with_address(_suited(service), old, others, network, cursors.address)
    numbers = _Numbers(service, old, others, node_ports, cursors.node_port)
    service = _with_health_port(_with_node_ports(service, numbers), numbers)
    return service, Cursors(address, numbers.cursor)


def _suited(service: Service) -> Service:
    """Without the ports of the nodes that a service of its type does not have."""
    spec = service.spec
    if spec.type not in (NODE_PORT, LOAD_BALANCER):
        spec = replace(spec, ports=tuple(replace(port, node_port=0) for port in spec.ports))
    if not has_health_port(spec):
        spec = replace(spec, health_check_node_port=0)
    return replace(service, spec=spec)


def _with_address(
    service: Service, old: Service | None, others: Sequence[Service], network: IPv4Network, cursor: int
) -> tuple[Service, int]:
    text = service.spec.cluster_ip
    if not has_address(service) or (text and old is not None and old.spec.cluster_ip == text):
        return service, cursor
    used = {one.spec.cluster_ip for one in others if has_address(one)}
    if text:
        _check_wish(service, network, used)
        return service, cursor
    span = _span(network)
    inside = {number - span.start for each in used if each and (number := _number(each)) in span}
    numbers, cursor = next_numbers(1, len(span), inside, cursor)
    if not numbers:
        raise answers.failure(500, "InternalError", f"the service network {network} has no free address left")
    text = str(IPv4Address(span[numbers[0]]))
    return replace(service, spec=replace(service.spec, cluster_ip=text, cluster_ips=(text,))), cursor


@lru_cache(maxsize=65536)
def _number(address: str) -> int:
    return int(IPv4Address(address))


def _span(network: IPv4Network) -> range:
    """The numbers of the addresses that services may have."""
    return range(int(network.network_address) + 1, int(network.broadcast_address))


def _check_wish(service: Service, network: IPv4Network, used: set[str]) -> None:
    text, why = service.spec.cluster_ip, ""
    if _number(text) not in _span(network):
        why = f"failed to allocate IP {text}: the provided network does not match the current range"
    elif text in used:
        why = f"failed to allocate IP {text}: provided IP is already allocated"
    if why:
        raise answers.invalid(SERVICE, service.metadata.name, [FieldError("spec.clusterIPs", quoted([text]), why)])


class _Numbers:
    """Ports of the nodes for one service. Others are looked at when there is something to hand out."""

    def __init__(
        self, service: Service, old: Service | None, others: Sequence[Service], accepted: range, cursor: int
    ) -> None:
        self.cursor = cursor
        self._name = service.metadata.name
        self._own = set(_held(old)) if old is not None else set()
        self._mine = set(_held(service))
        self._others = others
        self._accepted = accepted
        self._taken: set[int] | None = None

    def next(self) -> int:
        """A port that nobody has."""
        base = self._accepted.start
        taken = {number - base for number in (*self._of_others(), *self._mine) if number in self._accepted}
        numbers, self.cursor = next_numbers(1, len(self._accepted), taken, self.cursor)
        if not numbers:
            raise answers.failure(500, "InternalError", "no node port is left")
        self._mine.add(self._accepted[numbers[0]])
        return self._accepted[numbers[0]]

    def check(self, path: str, number: int) -> None:
        """Whether this one can be had."""
        if number in self._own:
            return
        first, last = self._accepted[0], self._accepted[-1]
        why = ""
        if number not in self._accepted:
            why = f"provided port is not in the valid range. The range of valid ports is {first}-{last}"
        elif number in self._of_others():
            why = "provided port is already allocated"
        if why:
            raise answers.invalid(SERVICE, self._name, [FieldError(path, quoted(number), why)])

    def _of_others(self) -> set[int]:
        if self._taken is None:
            self._taken = {number for one in self._others for number in _held(one)}
        return self._taken


def _held(service: Service) -> Iterator[int]:
    """Every port of the nodes that a service has."""
    yield from (port.node_port for port in service.spec.ports if port.node_port)
    if service.spec.health_check_node_port:
        yield service.spec.health_check_node_port


def _with_node_ports(service: Service, numbers: _Numbers) -> Service:
    ports = service.spec.ports
    for place, port in enumerate(ports):
        if port.node_port:
            numbers.check(f"spec.ports[{place}].nodePort", port.node_port)
    if not has_node_ports(service):
        return service
    given = {port.port: port.node_port for port in reversed(ports) if port.node_port}
    done: list[ServicePort] = []
    for port in ports:
        if not port.node_port:
            number = given.get(port.port) or numbers.next()
            given[port.port] = number
            done.append(replace(port, node_port=number))
        else:
            done.append(port)
    return replace(service, spec=replace(service.spec, ports=tuple(done)))


def _with_health_port(service: Service, numbers: _Numbers) -> Service:
    port = service.spec.health_check_node_port
    if port:
        numbers.check("spec.healthCheckNodePort", port)
        if port in (row.node_port for row in service.spec.ports):
            why = "provided port is already allocated"
            problem = FieldError("spec.healthCheckNodePort", quoted(port), why)
            raise answers.invalid(SERVICE, service.metadata.name, [problem])
        return service
    if not has_health_port(service.spec):
        return service
    return replace(service, spec=replace(service.spec, health_check_node_port=numbers.next()))

"""Cluster IPs, node ports and external IPs of services. Pure.

Allocation is round-robin, so a released number rests before it is used again. A service may request a free number. A
node port belongs to one service for all protocols: one port of it in two protocols has one number. External IPs must
lie in the configured networks, and outside those of pods, services, ingress IPs and nodes. Values that an update does
not change are not checked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from msgspec.structs import replace

from api.core.services import (
    LOAD_BALANCER,
    NODE_PORT,
    Service,
    ServicePort,
    has_node_ports,
    needs_cluster_ip,
    needs_health_check_node_port,
)
from api.meta.schema import DUPLICATE, FORBIDDEN, FieldError, quoted
from api.meta.types import ObjectMeta
from api.network.types import ClusterNetwork, HostSubnet
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest
from master.allocators import ALLOCATOR_CURSORS, AllocatorCursor, next_numbers
from master.config import ExternalNetworks, ServiceConfig
from master.resources.scheme import group_resource
from master.resources.services import SERVICES
from master.storage.interface import Key, Transaction


class ServiceIPs(AdmissionPlugin):
    """Allocates cluster IPs, node ports and health check ports of services; checks their external IPs."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config

    def reserve(self, request: AdmissionRequest, item: Any, objects: Transaction) -> Any:
        return allocate_service_ips(item, request.old, objects, self._config)


def check_external_ips(
    service: Service,
    old: Service | None,
    others: Sequence[Service],
    networks: ExternalNetworks,
    reserved: Mapping[IPv4Network, str],
) -> None:
    """`others` are all other services; `reserved` says of networks that are not to be had whose they are."""
    known = set(old.spec.external_ips) if old is not None else set()
    problems = [
        FieldError(f"spec.externalIPs[{place}]", quoted(text), f"externalIP is not allowed: {why}", FORBIDDEN)
        for place, text in enumerate(service.spec.external_ips)
        if text not in known and (why := _external_ip_denial(IPv4Address(text), networks, reserved))
    ]
    problems += _conflicting_service(service, old, others)
    if problems:
        raise errors.invalid(SERVICES, service.metadata.name, problems)


def _external_ip_denial(address: IPv4Address, networks: ExternalNetworks, reserved: Mapping[IPv4Network, str]) -> str:
    """Empty if the address is to be had."""
    whose = next((text for network, text in reserved.items() if address in network), "")
    if whose:
        return f"it is {whose}"
    return "" if networks.admits(address) else str(networks)


def _conflicting_service(service: Service, old: Service | None, others: Sequence[Service]) -> Iterator[FieldError]:
    wanted = _frontends(service)
    for front in _frontends(old) if old is not None else ():
        wanted.pop(front, None)
    if not wanted:
        return
    for other in others:
        for front in wanted.keys() & _frontends(other).keys():
            address, port, protocol = front
            why = f"service {other.metadata.namespace}/{other.metadata.name} has port {port}/{protocol} of it"
            yield FieldError(f"spec.externalIPs[{wanted[front]}]", quoted(address), why, DUPLICATE)


def _frontends(service: Service) -> dict[tuple[str, int, str], int]:
    """Each external address with each port → the place of the address."""
    spec = service.spec
    return {
        (text, port.port, port.protocol): place for place, text in enumerate(spec.external_ips) for port in spec.ports
    }


@dataclass(frozen=True, slots=True)
class AllocatorCursors:
    """Where to go on; both count from the first."""

    address: int = 0
    node_port: int = 0


def allocate(
    service: Service,
    old: Service | None,
    others: Sequence[Service],
    network: IPv4Network,
    node_ports: range,
    cursors: AllocatorCursors,
) -> tuple[Service, AllocatorCursors]:
    """The service with all that it is to have, and the cursors for the next one. `others` are all other services."""
    service, address = _with_address(_without_unused_ports(service), old, others, network, cursors.address)
    numbers = _NodePorts(service, old, others, node_ports, cursors.node_port)
    service = _with_health_port(_with_node_ports(service, numbers), numbers)
    return service, AllocatorCursors(address, numbers.cursor)


def _without_unused_ports(service: Service) -> Service:
    """Without the ports of the nodes that a service of its type does not have."""
    spec = service.spec
    if spec.type not in (NODE_PORT, LOAD_BALANCER):
        spec = replace(spec, ports=tuple(replace(port, node_port=0) for port in spec.ports))
    if not needs_health_check_node_port(spec):
        spec = replace(spec, health_check_node_port=0)
    return replace(service, spec=spec)


def _with_address(
    service: Service, old: Service | None, others: Sequence[Service], network: IPv4Network, cursor: int
) -> tuple[Service, int]:
    text = service.spec.cluster_ip
    if not needs_cluster_ip(service) or (text and old is not None and old.spec.cluster_ip == text):
        return service, cursor
    used = {one.spec.cluster_ip for one in others if needs_cluster_ip(one)}
    if text:
        _check_requested_ip(service, network, used)
        return service, cursor
    span = _network_span(network)
    inside = {number - span.start for each in used if each and (number := _cluster_ip_offset(each)) in span}
    numbers, cursor = next_numbers(1, len(span), inside, cursor)
    if not numbers:
        raise errors.status_error(500, "InternalError", f"the service network {network} has no free address left")
    text = str(IPv4Address(span[numbers[0]]))
    return replace(service, spec=replace(service.spec, cluster_ip=text, cluster_ips=(text,))), cursor


@lru_cache(maxsize=65536)
def _cluster_ip_offset(address: str) -> int:
    return int(IPv4Address(address))


def _network_span(network: IPv4Network) -> range:
    """The numbers of the addresses that services may have."""
    return range(int(network.network_address) + 1, int(network.broadcast_address))


def _check_requested_ip(service: Service, network: IPv4Network, used: set[str]) -> None:
    text, why = service.spec.cluster_ip, ""
    if _cluster_ip_offset(text) not in _network_span(network):
        why = f"failed to allocate IP {text}: the provided network does not match the current range"
    elif text in used:
        why = f"failed to allocate IP {text}: provided IP is already allocated"
    if why:
        raise errors.invalid(SERVICES, service.metadata.name, [FieldError("spec.clusterIPs", quoted([text]), why)])


class _NodePorts:
    """Ports of the nodes for one service. Others are looked at when there is something to hand out."""

    def __init__(
        self, service: Service, old: Service | None, others: Sequence[Service], accepted: range, cursor: int
    ) -> None:
        self.cursor = cursor
        self._name = service.metadata.name
        self._own = set(_held_node_ports(old)) if old is not None else set()
        self._mine = set(_held_node_ports(service))
        self._others = others
        self._accepted = accepted
        self._taken: set[int] | None = None

    def next(self) -> int:
        """A port that nobody has."""
        base = self._accepted.start
        taken = {number - base for number in (*self._of_others(), *self._mine) if number in self._accepted}
        numbers, self.cursor = next_numbers(1, len(self._accepted), taken, self.cursor)
        if not numbers:
            raise errors.status_error(500, "InternalError", "no node port is left")
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
            raise errors.invalid(SERVICES, self._name, [FieldError(path, quoted(number), why)])

    def _of_others(self) -> set[int]:
        if self._taken is None:
            self._taken = {number for one in self._others for number in _held_node_ports(one)}
        return self._taken


def _held_node_ports(service: Service) -> Iterator[int]:
    """Every port of the nodes that a service has."""
    yield from (port.node_port for port in service.spec.ports if port.node_port)
    if service.spec.health_check_node_port:
        yield service.spec.health_check_node_port


def _with_node_ports(service: Service, numbers: _NodePorts) -> Service:
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


def _with_health_port(service: Service, numbers: _NodePorts) -> Service:
    port = service.spec.health_check_node_port
    if port:
        numbers.check("spec.healthCheckNodePort", port)
        if port in (row.node_port for row in service.spec.ports):
            why = "provided port is already allocated"
            problem = FieldError("spec.healthCheckNodePort", quoted(port), why)
            raise errors.invalid(SERVICES, service.metadata.name, [problem])
        return service
    if not needs_health_check_node_port(service.spec):
        return service
    return replace(service, spec=replace(service.spec, health_check_node_port=numbers.next()))


def allocate_service_ips(new: Any, old: Any, transaction: Transaction, wish: ServiceConfig) -> Any:
    """The service with what the master hands out; the cursors move with it."""
    cluster = transaction.get(Key(group_resource(ClusterNetwork), "", "default"))
    if not isinstance(new, Service) or new.metadata.deletion_timestamp or cluster is None:
        return new
    others = [one for one in transaction.list(group_resource(Service)) if one.metadata.uid != new.metadata.uid]
    if new.spec.external_ips:
        hosts = transaction.list(group_resource(HostSubnet))
        check_external_ips(new, old, others, wish.external, _reserved_networks(cluster, wish, hosts))
    known = [_stored_cursor(name, transaction) for name in ("service-addresses", "node-ports")]
    network = IPv4Network(cluster.service_network)
    done, after = allocate(
        new, old, others, network, wish.node_ports, AllocatorCursors(*(cursor.next for cursor in known))
    )
    for cursor, number in zip(known, (after.address, after.node_port), strict=True):
        if cursor.next != number:
            transaction.put(ALLOCATOR_CURSORS, replace(cursor, next=number))
    return done


def _reserved_networks(
    cluster: ClusterNetwork, wish: ServiceConfig, hosts: Iterable[HostSubnet]
) -> dict[IPv4Network, str]:
    """What no external address may be."""
    entries = [entry.cidr for entry in cluster.cluster_networks] or [cluster.network]
    return {
        **{IPv4Network(cidr): f"in the cluster network {cidr}" for cidr in entries},
        IPv4Network(cluster.service_network): f"in the service network {cluster.service_network}",
        **({wish.ingress: f"in the network of ingress addresses {wish.ingress}"} if wish.ingress else {}),
        **{IPv4Network(host.host_ip): f"the address of {host.metadata.name}" for host in hosts if host.host_ip},
    }


def _stored_cursor(name: str, transaction: Transaction) -> AllocatorCursor:
    found: AllocatorCursor | None = transaction.get(Key(ALLOCATOR_CURSORS, "", name))
    return found or AllocatorCursor(metadata=ObjectMeta(name=name))

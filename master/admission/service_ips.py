"""Cluster IPs, node ports and external IPs of services. Pure.

Allocation is round-robin, so a released number is not reused at once. A service may request a free number. A node port
belongs to one service for all protocols: a port of it in two protocols has one node port. External IPs must be in the
configured networks, and outside those of pods, services, ingress IPs and nodes. Values that an update does not change
are not checked again.
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
from api.network.types import ClusterNetwork, HostSubnet
from master import errors
from master.admission.cursors import move_cursor, read_cursor
from master.admission.plugin import AdmissionPlugin, AdmissionRequest
from master.allocators import next_numbers
from master.config import ExternalNetworks, ServiceConfig
from master.resources.scheme import group_resource
from master.resources.services import SERVICES
from master.storage.interface import Key, Transaction


class ServiceIPs(AdmissionPlugin):
    """Allocates cluster IPs, node ports and health check ports of services; checks their external IPs."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config

    def reserve(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        return allocate_service_ips(obj, request.old, objects, self._config)


def check_external_ips(
    service: Service,
    old: Service | None,
    others: Sequence[Service],
    networks: ExternalNetworks,
    reserved: Mapping[IPv4Network, str],
) -> None:
    """Require that a service may have its external IPs. Raises Invalid.

    `others` are all other services. `reserved` are networks with a description of their use.
    """
    unchanged = set(old.spec.external_ips) if old is not None else set()
    problems = [
        FieldError(f"spec.externalIPs[{number}]", quoted(text), f"externalIP is not allowed: {denial}", FORBIDDEN)
        for number, text in enumerate(service.spec.external_ips)
        if text not in unchanged and (denial := _external_ip_denial(IPv4Address(text), networks, reserved))
    ]
    problems += _conflicting_service(service, old, others)
    if problems:
        raise errors.invalid(SERVICES, service.metadata.name, problems)


def _external_ip_denial(address: IPv4Address, networks: ExternalNetworks, reserved: Mapping[IPv4Network, str]) -> str:
    """Return why an external IP is not accepted; empty if it is."""
    reserved_for = next((text for network, text in reserved.items() if address in network), "")
    if reserved_for:
        return f"it is {reserved_for}"
    return "" if networks.admits(address) else str(networks)


def _conflicting_service(service: Service, old: Service | None, others: Sequence[Service]) -> Iterator[FieldError]:
    frontends = _frontends(service)
    for frontend in _frontends(old) if old is not None else ():
        frontends.pop(frontend, None)
    if not frontends:
        return
    for other in others:
        for frontend in frontends.keys() & _frontends(other).keys():
            address, port, protocol = frontend
            detail = f"service {other.metadata.namespace}/{other.metadata.name} has port {port}/{protocol} of it"
            yield FieldError(f"spec.externalIPs[{frontends[frontend]}]", quoted(address), detail, DUPLICATE)


def _frontends(service: Service) -> dict[tuple[str, int, str], int]:
    """Return (external IP, port, protocol) → index of the external IP."""
    spec = service.spec
    return {
        (text, port.port, port.protocol): number for number, text in enumerate(spec.external_ips) for port in spec.ports
    }


@dataclass(frozen=True, slots=True)
class AllocatorCursors:
    """The offsets of the next cluster IP and the next node port to try."""

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
    """Return the service with its cluster IP and node ports, and the next cursors. `others` are all other services.

    Raises StatusError if a requested number is not free, or none is left.
    """
    service, address = _with_address(_without_unused_ports(service), old, others, network, cursors.address)
    numbers = _NodePorts(service, old, others, node_ports, cursors.node_port)
    service = _with_health_port(_with_node_ports(service, numbers), numbers)
    return service, AllocatorCursors(address, numbers.cursor)


def _without_unused_ports(service: Service) -> Service:
    """Return the service without node ports that its type does not have."""
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
    used = {other.spec.cluster_ip for other in others if needs_cluster_ip(other)}
    if text:
        _check_requested_ip(service, network, used)
        return service, cursor
    span = _network_span(network)
    used_numbers = {number - span.start for ip in used if ip and (number := _address_number(ip)) in span}
    numbers, cursor = next_numbers(1, len(span), used_numbers, cursor)
    if not numbers:
        raise errors.status_error(500, "InternalError", f"the service network {network} has no free address left")
    text = str(IPv4Address(span[numbers[0]]))
    return replace(service, spec=replace(service.spec, cluster_ip=text, cluster_ips=(text,))), cursor


@lru_cache(maxsize=65536)
def _address_number(address: str) -> int:
    """Return an address as a number. One that cannot be read is in no network: -1."""
    try:
        return int(IPv4Address(address))
    except ValueError:
        return -1


def _network_span(network: IPv4Network) -> range:
    """Return the addresses that services may have, as numbers."""
    return range(int(network.network_address) + 1, int(network.broadcast_address))


def _check_requested_ip(service: Service, network: IPv4Network, used: set[str]) -> None:
    text, problem = service.spec.cluster_ip, ""
    if _address_number(text) not in _network_span(network):
        problem = f"failed to allocate IP {text}: the provided network does not match the current range"
    elif text in used:
        problem = f"failed to allocate IP {text}: provided IP is already allocated"
    if problem:
        raise errors.invalid(SERVICES, service.metadata.name, [FieldError("spec.clusterIPs", quoted([text]), problem)])


class _NodePorts:
    """The node ports of one service. Those of other services are read only if they are needed."""

    def __init__(
        self, service: Service, old: Service | None, others: Sequence[Service], accepted: range, cursor: int
    ) -> None:
        self.cursor = cursor
        self._name = service.metadata.name
        self._own = set(_node_ports_of(old)) if old is not None else set()
        self._assigned = set(_node_ports_of(service))
        self._others = others
        self._accepted = accepted
        self._used_by_others: set[int] | None = None

    def next(self) -> int:
        """Allocate a free node port. Raises StatusError if none is left."""
        base = self._accepted.start
        used_numbers = {number - base for number in (*self._other_ports(), *self._assigned) if number in self._accepted}
        numbers, self.cursor = next_numbers(1, len(self._accepted), used_numbers, self.cursor)
        if not numbers:
            raise errors.status_error(500, "InternalError", "no node port is left")
        self._assigned.add(self._accepted[numbers[0]])
        return self._accepted[numbers[0]]

    def check(self, path: str, number: int) -> None:
        """Require that a requested node port is free. Raises Invalid."""
        if number in self._own:
            return
        first, last = self._accepted[0], self._accepted[-1]
        problem = ""
        if number not in self._accepted:
            problem = f"provided port is not in the valid range. The range of valid ports is {first}-{last}"
        elif number in self._other_ports():
            problem = "provided port is already allocated"
        if problem:
            raise errors.invalid(SERVICES, self._name, [FieldError(path, quoted(number), problem)])

    def _other_ports(self) -> set[int]:
        if self._used_by_others is None:
            self._used_by_others = {number for service in self._others for number in _node_ports_of(service)}
        return self._used_by_others


def _node_ports_of(service: Service) -> Iterator[int]:
    """Yield the node ports of a service."""
    yield from (port.node_port for port in service.spec.ports if port.node_port)
    if service.spec.health_check_node_port:
        yield service.spec.health_check_node_port


def _with_node_ports(service: Service, numbers: _NodePorts) -> Service:
    ports = service.spec.ports
    for index, port in enumerate(ports):
        if port.node_port:
            numbers.check(f"spec.ports[{index}].nodePort", port.node_port)
    if not has_node_ports(service):
        return service
    node_port_by_port = {port.port: port.node_port for port in reversed(ports) if port.node_port}
    new_ports: list[ServicePort] = []
    for port in ports:
        if not port.node_port:
            number = node_port_by_port.get(port.port) or numbers.next()
            node_port_by_port[port.port] = number
            new_ports.append(replace(port, node_port=number))
        else:
            new_ports.append(port)
    return replace(service, spec=replace(service.spec, ports=tuple(new_ports)))


def _with_health_port(service: Service, numbers: _NodePorts) -> Service:
    port = service.spec.health_check_node_port
    if port:
        numbers.check("spec.healthCheckNodePort", port)
        if port in (service_port.node_port for service_port in service.spec.ports):
            detail = "provided port is already allocated"
            problem = FieldError("spec.healthCheckNodePort", quoted(port), detail)
            raise errors.invalid(SERVICES, service.metadata.name, [problem])
        return service
    if not needs_health_check_node_port(service.spec):
        return service
    return replace(service, spec=replace(service.spec, health_check_node_port=numbers.next()))


def allocate_service_ips(new: Any, old: Any, transaction: Transaction, config: ServiceConfig) -> Any:
    """Return the service with its cluster IP and node ports, and store the cursors. Raises StatusError."""
    cluster = transaction.get(Key(group_resource(ClusterNetwork), "", "default"))
    if not isinstance(new, Service) or new.metadata.deletion_timestamp or cluster is None:
        return new
    others = [
        service for service in transaction.list(group_resource(Service)) if service.metadata.uid != new.metadata.uid
    ]
    if new.spec.external_ips:
        hosts = transaction.list(group_resource(HostSubnet))
        check_external_ips(new, old, others, config.external, _reserved_networks(cluster, config, hosts))
    stored_cursors = [read_cursor(name, transaction.get) for name in ("service-addresses", "node-ports")]
    network = IPv4Network(cluster.service_network)
    allocated, after = allocate(
        new, old, others, network, config.node_ports, AllocatorCursors(*(cursor.next for cursor in stored_cursors))
    )
    for cursor, number in zip(stored_cursors, (after.address, after.node_port), strict=True):
        move_cursor(cursor, number, transaction)
    return allocated


def _reserved_networks(
    cluster: ClusterNetwork, config: ServiceConfig, hosts: Iterable[HostSubnet]
) -> dict[IPv4Network, str]:
    """Return the networks that external IPs must not be in, each with the reason."""
    entries = [entry.cidr for entry in cluster.cluster_networks] or [cluster.network]
    return {
        **{IPv4Network(cidr): f"in the cluster network {cidr}" for cidr in entries},
        IPv4Network(cluster.service_network): f"in the service network {cluster.service_network}",
        **({config.ingress: f"in the network of ingress addresses {config.ingress}"} if config.ingress else {}),
        **{IPv4Network(host.host_ip): f"the address of {host.metadata.name}" for host in hosts if host.host_ip},
    }

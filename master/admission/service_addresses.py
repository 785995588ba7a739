"""Which cluster IP and which node ports a service gets. Pure. Raises `answers.Failure`.

Addresses are handed out in sequence, from a cursor on, so that a freed one rests before it is used again. A service may
ask for one that is free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from msgspec.structs import replace

from api.schema import Problem, shown
from api.services import Service, has_address, has_node_ports
from master.admission.allocators import next_numbers
from master.kinds.service import SERVICE
from master.wire import answers

NODE_PORTS = range(30000, 32768)


@dataclass(frozen=True, slots=True)
class Assigned:
    """The service with all that it is to have, and the cursors for the next one."""

    service: Service
    address_cursor: int
    port_cursor: int


def assigned(
    service: Service, others: Iterable[Service], network: IPv4Network, address_cursor: int, port_cursor: int
) -> Assigned:
    """`others` are all other services; cursors count from the first address, and from the first node port."""
    others = tuple(others)
    service, address_cursor = _with_address(service, others, network, address_cursor)
    service, port_cursor = _with_node_ports(service, others, port_cursor)
    return Assigned(service, address_cursor, port_cursor)


def _with_address(
    service: Service, others: tuple[Service, ...], network: IPv4Network, cursor: int
) -> tuple[Service, int]:
    if not has_address(service):
        return service, cursor
    used = {IPv4Address(one.spec.cluster_ip) for one in others if has_address(one) and one.spec.cluster_ip}
    if service.spec.cluster_ip:
        _check_wish(service, network, used)
        return service, cursor
    first = int(network.network_address) + 1
    inside = {int(address) - first for address in used if address in network}
    numbers, cursor = next_numbers(1, network.num_addresses - 2, inside, cursor)
    if not numbers:
        raise answers.failure(500, "InternalError", f"the service network {network} has no free address left")
    text = str(IPv4Address(first + numbers[0]))
    return replace(service, spec=replace(service.spec, cluster_ip=text, cluster_ips=(text,))), cursor


def _check_wish(service: Service, network: IPv4Network, used: set[IPv4Address]) -> None:
    text = service.spec.cluster_ip
    address, why = IPv4Address(text), ""
    if address not in network or address in (network.network_address, network.broadcast_address):
        why = f"failed to allocate IP {text}: the provided network does not match the current range"
    elif address in used:
        why = f"failed to allocate IP {text}: provided IP is already allocated"
    if why:
        raise answers.invalid(SERVICE, service.metadata.name, [Problem("spec.clusterIPs", shown([text]), why)])


def _with_node_ports(service: Service, others: tuple[Service, ...], cursor: int) -> tuple[Service, int]:
    if not has_node_ports(service):
        ports = tuple(replace(port, node_port=0) for port in service.spec.ports)
        return replace(service, spec=replace(service.spec, ports=ports)), cursor
    used = {(port.node_port, port.protocol) for one in others for port in one.spec.ports if port.node_port}
    done = []
    for number, port in enumerate(service.spec.ports):
        wanted = port.node_port
        if wanted:
            _check_node_port(service, number, (wanted, port.protocol), used)
        else:
            taken = {each - NODE_PORTS.start for each, protocol in used if protocol == port.protocol}
            numbers, cursor = next_numbers(1, len(NODE_PORTS), taken, cursor)
            if not numbers:
                raise answers.failure(500, "InternalError", "no node port is left")
            wanted = NODE_PORTS[numbers[0]]
        used.add((wanted, port.protocol))
        done.append(replace(port, node_port=wanted))
    return replace(service, spec=replace(service.spec, ports=tuple(done))), cursor


def _check_node_port(service: Service, number: int, wish: tuple[int, str], used: set[tuple[int, str]]) -> None:
    why = ""
    if wish[0] not in NODE_PORTS:
        why = f"provided port is not in the valid range. The range of valid ports is {NODE_PORTS[0]}-{NODE_PORTS[-1]}"
    elif wish in used:
        why = "provided port is already allocated"
    if why:
        problem = Problem(f"spec.ports[{number}].nodePort", shown(wish[0]), why)
        raise answers.invalid(SERVICE, service.metadata.name, [problem])

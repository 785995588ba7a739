"""Ingress IPs of services of the type LoadBalancer, written to their status. Pure.

Services are reachable where the ingress network is routed to any node. A service with a loadBalancerClass is left to
its implementation. Allocation is round-robin, so a released address is assigned again last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network

from msgspec.structs import replace

from api.core.services import LOAD_BALANCER, LoadBalancerIngress, LoadBalancerStatus, Service
from master.allocators import AllocatorCursor, next_numbers
from master.controllers.actions import Action, Update, Warn, advance_cursor
from master.controllers.context import Lister


def reconcile(network: IPv4Network | None, services: Iterable[Service], cursor: AllocatorCursor) -> Iterator[Action]:
    """Yield the status updates of LoadBalancer services. Without an ingress network there are none."""
    if network is None:
        return
    load_balancers = sorted((service for service in services if _is_managed(service)), key=_creation_order)
    numbers_by_uid = _assigned_numbers(load_balancers, network)
    pending = [
        service
        for service in load_balancers
        if service.metadata.uid not in numbers_by_uid and not service.metadata.deletion_timestamp
    ]
    size = network.num_addresses - 2
    numbers, after = next_numbers(len(pending), size, frozenset(numbers_by_uid.values()), cursor.next)
    numbers_by_uid |= {service.metadata.uid: number for service, number in zip(pending, numbers, strict=False)}
    for service in load_balancers:
        if (number := numbers_by_uid.get(service.metadata.uid)) is not None:
            yield from _set_status(service, str(network.network_address + 1 + number))
    for service in pending[len(numbers) :]:
        name = f"{service.metadata.namespace}/{service.metadata.name}"
        yield Warn(f"all addresses of the ingress network {network} are in use", f"service {name}")
    if after != cursor.next:
        yield advance_cursor(cursor, after)


def _assigned_numbers(services: Iterable[Service], network: IPv4Network) -> dict[str, int]:
    """Return by uid of a service the address that it has, or requests and is free. The older service wins."""
    numbers_by_uid: dict[str, int] = {}
    taken: set[int] = set()
    services = tuple(services)
    for address_of in (_status_ip, lambda service: service.spec.load_balancer_ip):
        for service in services:
            number = _number(address_of(service), network)
            if number is not None and number not in taken and service.metadata.uid not in numbers_by_uid:
                taken.add(number)
                numbers_by_uid[service.metadata.uid] = number
    return numbers_by_uid


def _is_managed(service: Service) -> bool:
    return service.spec.type == LOAD_BALANCER and service.spec.load_balancer_class is None


def _creation_order(service: Service) -> tuple[str, str, str]:
    meta = service.metadata
    return meta.creation_timestamp or "", meta.namespace, meta.name


def _status_ip(service: Service) -> str:
    return next((ingress.ip for ingress in service.status.load_balancer.ingress), "")


def _number(text: str, network: IPv4Network) -> int | None:
    """Return the position of an address in the network; None if it cannot be assigned."""
    try:
        number = int(IPv4Address(text)) - int(network.network_address) - 1
    except ValueError:
        return None
    return number if 0 <= number < network.num_addresses - 2 else None


def _set_status(service: Service, address: str) -> Iterator[Update]:
    status = LoadBalancerStatus(ingress=(LoadBalancerIngress(ip=address, ip_mode="VIP"),))
    if service.status.load_balancer != status:
        yield Update(replace(service, status=replace(service.status, load_balancer=status)), service)


def sync_ingress_ips(lister: Lister) -> Iterable[Action]:
    """Assign addresses of the ingress network to LoadBalancer services."""
    return reconcile(lister.context.network.services.ingress, lister.list(Service), lister.cursor("ingress-addresses"))

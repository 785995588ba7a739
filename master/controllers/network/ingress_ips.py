"""Ingress IPs of services of the type LoadBalancer, written to their status. Pure.

Services are reachable where the ingress network is routed to any node. A service with a loadBalancerClass is left to
its implementation. Allocation is round-robin, so a released address rests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network

from msgspec.structs import replace

from api.core.services import LOAD_BALANCER, LoadBalancerIngress, LoadBalancerStatus, Service
from master.allocators import AllocatorCursor, next_numbers
from master.controllers.actions import Action, Update, Warn, advance_cursor


def reconcile(network: IPv4Network | None, services: Iterable[Service], cursor: AllocatorCursor) -> Iterator[Action]:
    """Everything that is to be written. Without a network nothing: then somebody else gives them theirs."""
    if network is None:
        return
    mine = sorted((one for one in services if _is_ours(one)), key=_age)
    given = _given(mine, network)
    waiting = [one for one in mine if one.metadata.uid not in given and not one.metadata.deletion_timestamp]
    size = network.num_addresses - 2
    numbers, after = next_numbers(len(waiting), size, frozenset(given.values()), cursor.next)
    given |= {one.metadata.uid: number for one, number in zip(waiting, numbers, strict=False)}
    for service in mine:
        if (number := given.get(service.metadata.uid)) is not None:
            yield from _kept(service, str(network.network_address + 1 + number))
    for service in waiting[len(numbers) :]:
        name = f"{service.metadata.namespace}/{service.metadata.name}"
        yield Warn(f"all addresses of the ingress network {network} are in use", f"service {name}")
    if after != cursor.next:
        yield advance_cursor(cursor, after)


def _given(services: Iterable[Service], network: IPv4Network) -> dict[str, int]:
    """By the uid of a service: the address that it has, or that it asks for and nobody has. The older one wins."""
    found: dict[str, int] = {}
    taken: set[int] = set()
    services = tuple(services)
    for asked in (_told, lambda one: one.spec.load_balancer_ip):
        for service in services:
            number = _number(asked(service), network)
            if number is not None and number not in taken and service.metadata.uid not in found:
                taken.add(number)
                found[service.metadata.uid] = number
    return found


def _is_ours(service: Service) -> bool:
    return service.spec.type == LOAD_BALANCER and service.spec.load_balancer_class is None


def _age(service: Service) -> tuple[str, str, str]:
    meta = service.metadata
    return meta.creation_timestamp or "", meta.namespace, meta.name


def _told(service: Service) -> str:
    return next((row.ip for row in service.status.load_balancer.ingress), "")


def _number(text: str, network: IPv4Network) -> int | None:
    """Which of the addresses that may be given; None if it is none."""
    try:
        number = int(IPv4Address(text)) - int(network.network_address) - 1
    except ValueError:
        return None
    return number if 0 <= number < network.num_addresses - 2 else None


def _kept(service: Service, address: str) -> Iterator[Update]:
    status = LoadBalancerStatus(ingress=(LoadBalancerIngress(ip=address, ip_mode="VIP"),))
    if service.status.load_balancer != status:
        yield Update(replace(service, status=replace(service.status, load_balancer=status)), service)

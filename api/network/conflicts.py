"""Conflicting VNIDs and subnets on an API server that does not check them. All readers of the same objects reach the
same decision. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Network
from typing import TypeVar

from api.meta.schema import FieldError
from api.meta.types import Object
from api.network.types import HostSubnet, NetNamespace, vnid_owner

O = TypeVar("O", bound=Object)

CURSORS_ANNOTATION = "network.podlane.io/next"
"""Annotation of the ClusterNetwork with the allocator cursors: where the search for a free subnet and VNID begins.
Only used on an API server that is not ours.
"""


def split_valid(items: Iterable[O], check: Callable[[O], Iterable[FieldError]]) -> tuple[tuple[O, ...], dict[str, str]]:
    """Return the valid items, and the errors of each other item by its name."""
    valid: list[O] = []
    errors: dict[str, str] = {}
    for obj in items:
        if text := "; ".join(map(str, check(obj))):
            errors[obj.metadata.name] = text
        else:
            valid.append(obj)
    return tuple(valid), errors


def conflicting_vnids(net_namespaces: Iterable[NetNamespace]) -> dict[str, str]:
    """Return the NetNamespaces whose VNID belongs to another one to which they are not joined, and that owner.

    A VNID belongs to the oldest NetNamespace that has it. VNID 0 belongs to none.
    """
    by_vnid: dict[int, list[NetNamespace]] = defaultdict(list)
    for net_namespace in net_namespaces:
        if net_namespace.netid:
            by_vnid[net_namespace.netid].append(net_namespace)
    conflicts: dict[str, str] = {}
    for sharing in by_vnid.values():
        if len({vnid_owner(net_namespace) for net_namespace in sharing}) > 1:
            oldest = min(sharing, key=_age)
            for net_namespace in sharing:
                if vnid_owner(net_namespace) != vnid_owner(oldest):
                    conflicts[net_namespace.metadata.name] = oldest.metadata.name
    return conflicts


def conflicting_subnets(host_subnets: Iterable[HostSubnet]) -> dict[str, str]:
    """Return the HostSubnets whose subnet or address belongs to an older HostSubnet, and that older one."""
    by_age = sorted(host_subnets, key=_age)
    overlapping = {name for pair in _overlapping_pairs(by_age) for name in pair}
    addresses: dict[str, str] = {}
    networks: list[tuple[IPv4Network, str]] = []
    conflicts: dict[str, str] = {}
    for host_subnet in by_age:
        name = host_subnet.metadata.name
        owner = addresses.get(host_subnet.host_ip, name)
        if name in overlapping and owner == name:
            network = IPv4Network(host_subnet.subnet)
            owner = next((older for taken, older in networks if taken.overlaps(network)), name)
        if owner != name:
            conflicts[name] = owner
            continue
        addresses[host_subnet.host_ip] = name
        if name in overlapping:
            networks.append((IPv4Network(host_subnet.subnet), name))
    return conflicts


def _overlapping_pairs(host_subnets: Iterable[HostSubnet]) -> Iterator[tuple[str, str]]:
    """Yield pairs of names whose subnets overlap. Each HostSubnet that overlaps another is in at least one pair."""
    furthest: tuple[IPv4Network, str] | None = None
    for network, name in sorted(
        (IPv4Network(host_subnet.subnet), host_subnet.metadata.name)
        for host_subnet in host_subnets
        if host_subnet.subnet
    ):
        if furthest is not None and furthest[0].overlaps(network):
            yield furthest[1], name
        if furthest is None or network.broadcast_address > furthest[0].broadcast_address:
            furthest = network, name


def _age(obj: Object) -> tuple[str, str]:
    return obj.metadata.creation_timestamp or "", obj.metadata.name

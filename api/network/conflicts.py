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

CURSORS = "network.podlane.io/next"
"""Annotation of the ClusterNetwork: where the next subnet and the next VNID are looked for. It stands there on an API
server that is not ours, and only there.
"""


def split_valid(items: Iterable[O], check: Callable[[O], Iterable[FieldError]]) -> tuple[tuple[O, ...], dict[str, str]]:
    """Those without a problem, and by name what is wrong with each of the others."""
    good: list[O] = []
    wrong: dict[str, str] = {}
    for item in items:
        if text := "; ".join(map(str, check(item))):
            wrong[item.metadata.name] = text
        else:
            good.append(item)
    return tuple(good), wrong


def conflicting_vnids(lanes: Iterable[NetNamespace]) -> dict[str, str]:
    """Who has the VNID of another lane without having been joined to it, and to whom it belongs: to the oldest.

    VNID 0 is for everybody.
    """
    sharing: dict[int, list[NetNamespace]] = defaultdict(list)
    for lane in lanes:
        if lane.netid:
            sharing[lane.netid].append(lane)
    found: dict[str, str] = {}
    for group in sharing.values():
        if len({vnid_owner(lane) for lane in group}) > 1:
            oldest = min(group, key=_age)
            strangers = [lane for lane in group if vnid_owner(lane) != vnid_owner(oldest)]
            found |= {lane.metadata.name: oldest.metadata.name for lane in strangers}
    return found


def conflicting_subnets(subnets: Iterable[HostSubnet]) -> dict[str, str]:
    """Whose subnet or address is that of another HostSubnet, and to whom it belongs: to the older one."""
    by_age = sorted(subnets, key=_age)
    crowded = _overlapping(by_age)
    addresses: dict[str, str] = {}
    networks: list[tuple[IPv4Network, str]] = []
    found: dict[str, str] = {}
    for one in by_age:
        name = one.metadata.name
        holder = addresses.get(one.host_ip, name)
        if name in crowded and holder == name:
            network = IPv4Network(one.subnet)
            holder = next((other for taken, other in networks if taken.overlaps(network)), name)
        if holder != name:
            found[name] = holder
            continue
        addresses[one.host_ip] = name
        if name in crowded:
            networks.append((IPv4Network(one.subnet), name))
    return found


def _overlapping(subnets: Iterable[HostSubnet]) -> set[str]:
    """Those whose subnet overlaps another one; there are hardly ever any."""
    return {name for pair in _overlapping_pairs(subnets) for name in pair}


def _overlapping_pairs(subnets: Iterable[HostSubnet]) -> Iterator[tuple[str, str]]:
    last: tuple[IPv4Network, str] | None = None
    for network, name in sorted((IPv4Network(one.subnet), one.metadata.name) for one in subnets if one.subnet):
        if last is not None and last[0].overlaps(network):
            yield last[1], name
        if last is None or network.broadcast_address > last[0].broadcast_address:
            last = network, name


def _age(item: Object) -> tuple[str, str]:
    return item.metadata.creation_timestamp or "", item.metadata.name

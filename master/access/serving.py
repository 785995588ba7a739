"""For which places the server of a node gets a certificate without anybody's word. Pure.

The authority is the one by which clients recognise the master, and a node writes the addresses in its Node itself: so
these count only where the connection on which the node asked says the same.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from api.core.node import Node
from api.meta.schema import quoted
from api.pki.pem import Subject

ADDRESS = "authentication.podlane.io/address"
"""Under this key `spec.extra` of a request has the address from which it came; only the server writes it."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """What is no node's: the networks of pods and services; and the master's, where the node is not the master's host.

    `address` and `names` are the master's own.
    """

    networks: tuple[IPv4Network, ...] = ()
    address: str = ""
    names: frozenset[str] = frozenset()


def written(address: str) -> str:
    """The address of a connection as requests have it; empty if it is none."""
    found = _ip(address)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found or "")


def refusal(subject: Subject, node: str, came_from: str, nodes: Collection[Node], reserved: Reserved) -> str:
    """Why the server of `node` does not get these places by itself; empty if it does."""
    return next(_refusals(subject, node, came_from, nodes, reserved), "")


def _refusals(
    subject: Subject, node: str, came_from: str, nodes: Collection[Node], reserved: Reserved
) -> Iterator[str]:
    own = next((one for one in nodes if one.metadata.name == node), None)
    if own is None:
        yield f"there is no Node {node}"
        return
    if len(subject.names) > 1 or len(subject.addresses) > 1:
        yield "it is for more than one name and one address"
    for name in subject.names:
        if name != node:
            yield f"{quoted(name)} is not the name of the node"
        if _is_taken(name, reserved, came_from):
            yield f"{quoted(name)} is a name of the master or of the cluster"
    others = [one for one in nodes if one.metadata.name != node]
    for text in subject.addresses:
        yield from _address_refusals(text, came_from, own, others, reserved)


def _is_taken(name: str, reserved: Reserved, came_from: str) -> bool:
    if name in reserved.names and not (came_from and came_from == reserved.address):
        return True
    first, last = name.partition(".")[0], name.rpartition(".")[2]
    special = first in ("kubernetes", "localhost") or last == "localhost"
    return special or "*" in name or ".svc" in name or _ip(name) is not None


def _address_refusals(
    text: str, came_from: str, own: Node, others: Iterable[Node], reserved: Reserved
) -> Iterator[str]:
    address = _ip(text)
    if address is None or address != _ip(came_from):
        # The address of the master itself is among these, unless the node is on the master's host.
        where = came_from or "an address that is not known"
        yield f"{text} is not the address of the connection on which it was asked for, which came from {where}"
        return
    special = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    if special or (isinstance(address, IPv6Address) and address.ipv4_mapped):
        yield f"{text} is no address of one host alone"
    for network in reserved.networks:
        if address in network:
            yield f"{text} is in {network}, which is for pods or services"
    if address not in {_ip(row.address) for row in own.status.addresses if row.type == "InternalIP"}:
        yield f"{text} is no InternalIP of the Node"
    for one in others:
        if address in {_ip(row.address) for row in one.status.addresses}:
            yield f"the Node {one.metadata.name} says that it has {text}, too"


def _ip(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None

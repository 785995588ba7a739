"""Why a switch drops a packet: who, what and why, by the table that was the last one. Pure.

Each function yields every reason that holds; the first is the one to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Network

from api.validation.network import WITH_PORTS
from cli.disbelief import not_believed
from cli.walk import Drop, End, Hop, Map

BROADCAST = IPv4Address("255.255.255.255")
GENERIC = "lets it through"
"""How a reason ends that knows no better: the switch does otherwise than its pipeline."""


def reason(source: End, target: End, last: Hop, known: Map) -> str:
    """What follows `dropped because`."""
    table = last.answer.steps[-1].table if last.answer.steps else "source"
    reasons = _BY_TABLE[table](Drop(source, target, last, known)) if table in _BY_TABLE else iter(())
    return next(reasons, f"no row of the table {table} {GENERIC}")


def _not_answered(drop: Drop) -> Iterator[str]:
    target = drop.target.address
    if drop.claimed == target:
        yield f"nobody needs to be told that {drop.source} has the address {target}: the switch knows"
    if not drop.known.is_inside(target):
        yield f"{target} is no address of the cluster: the switch answers for no other"
    yield f"nobody on {drop.last.node} has the address {target}"


def _no_way(drop: Drop) -> Iterator[str]:
    target, known = drop.target, drop.known
    host = known.behind(target.address)
    if target.address in known.services:
        yield f"{target.address} is a service address, and no service has it"
    if target.address.is_multicast:
        yield f"multicast is switched off for {drop.lane}"
    if target.address == BROADCAST:
        yield "nothing may be sent to everybody"
    if target.node and target.node not in known.subnets:
        yield f"{target.node} has no subnet"
    if host:
        yield f"{drop.last.node} does not know yet that {known.subnets[host]} lies behind {host}"
    yield f"{target} belongs to no node's subnet"


def _not_served(drop: Drop) -> Iterator[str]:
    asked, known, address = drop.last.asked, drop.known, drop.target.address
    if address in known.services and known.front(address) is None:
        yield f"{address} is a service address, and no service has it"
    if asked.protocol not in WITH_PORTS:
        yield f"services take tcp and udp, not {asked.protocol}"
    if asked.fragment == "later":
        yield "only the first fragment carries the port: the switch puts fragments together, a trace cannot"
    what = f"port {asked.port}/{asked.protocol.upper()}"
    if address in known.addresses.values():
        yield f"{what} is in the range of node ports, and no service has it"
    yield f"{drop.last.node} serves no {what} of {drop.target}"


def _not_delivered(drop: Drop) -> Iterator[str]:
    target, node, step = drop.target, drop.last.node, drop.last.answer.steps[-1]
    if any(action.startswith(">>") for action in step.actions) and not target.address.is_multicast:
        yield f"it would go back to where it comes from, and the switch of {node} sends nothing back"
    if target.address.is_multicast and step.row:
        yield f"nobody else hears what {drop.lane} sends to many"
    if target.address.is_multicast:
        yield f"multicast is switched off for {drop.lane}"
    yield from _not_here(drop)
    yield from _not_together(drop)
    if target.project and drop.known.vnids and target.project not in drop.known.vnids:
        yield f"{target} is cut off: {target.project} has no VNID"
    if target.project:
        yield f"{target} is not attached to the switch of {node}"
    yield f"nobody on {node} has the address {target.address}"


def _not_here(drop: Drop) -> Iterator[str]:
    """What came through a tunnel is for this node's own subnet."""
    target, node, own = drop.target, drop.last.node, drop.known.subnets.get(drop.last.node)
    if drop.last.asked.enters == "tunnel" and own is not None and target.address not in own:
        behind = drop.known.behind(target.address)
        where = f"lies behind {behind}" if behind else f"is not in {own}"
        yield f"{target} {where}, and {node} sends nothing on that came through a tunnel"


def _not_together(drop: Drop) -> Iterator[str]:
    target, ours, docker = drop.target, drop.last.answer.vnid, drop.last.answer.docker
    theirs = drop.known.vnids.get(target.project)
    if docker is not None and target.address in IPv4Network(docker.subnet):
        theirs = docker.vnid
    if theirs is not None and theirs != ours and 0 not in {theirs, ours}:
        yield f"{drop.lane} may not reach {drop.known.lane(target, theirs)}"


def _not_let_out(drop: Drop) -> Iterator[str]:
    yield f"{drop.source} may not send VXLAN to the outside: it would be believed as a node's"


_BY_TABLE: dict[str, Callable[[Drop], Iterator[str]]] = {
    "source": not_believed,
    "arp": _not_answered,
    "service": _not_served,
    "route": _no_way,
    "deliver": _not_delivered,
    "outside": _not_let_out,
}

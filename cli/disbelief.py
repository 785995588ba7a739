"""Why a switch does not believe who sent a packet: the drops of the table SOURCE. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import IPv4Address

from cli.walk import Drop


def not_believed(drop: Drop) -> Iterator[str]:
    """Every reason that holds; the first is the one to tell."""
    asked, node = drop.last.asked, drop.last.node
    if asked.vlan is not None:
        whose = {"tunnel": "frames in a tunnel", "node": f"{node}'s frames"}.get(
            asked.enters, f"{drop.source}'s frames"
        )
        yield f"{whose} may carry no VLAN tag"
    if asked.protocol == "ipv6":
        yield "it is IPv6, which the pod network does not carry"
    if asked.protocol == "arp-reply":
        yield "only the switch answers ARP questions: no ARP packet reaches another pod"
    yield from _BY_ENTRANCE[asked.enters](drop)


def _not_itself(drop: Drop) -> Iterator[str]:
    """A pod is pinned to its MAC and its address."""
    asked = drop.last.asked
    if asked.source_mac and asked.source_mac.lower() != _mac(drop.source.address):
        yield f"{asked.source_mac} is not {drop.source}'s MAC"
    if drop.claimed != drop.source.address:
        yield f"{drop.claimed} is not {drop.source}'s address"


def _not_dockers(drop: Drop) -> Iterator[str]:
    """A container outside of any pod is pinned to Docker's part of the subnet, and asks its like without the switch."""
    docker = drop.docker
    if docker is not None and drop.claimed not in docker:
        yield f"{drop.claimed} is not in {docker}, from which Docker gives addresses on {drop.last.node}"
    if docker is not None and drop.target.address in docker:
        yield f"{drop.target} is a container outside of any pod as well: such ask one another, not the switch"


def _no_peer(drop: Drop) -> Iterator[str]:
    """The outer address of a packet in a tunnel must be a node's, the inner one must lie behind that node."""
    asked, node, known = drop.last.asked, drop.last.node, drop.known
    host, owner = known.host_at(IPv4Address(asked.tunnel_source)), known.behind(drop.claimed)
    if asked.protocol == "arp":
        yield "no ARP packet goes through a tunnel: the switch of each node answers by itself"
    if not host:
        yield f"{node} does not believe {asked.tunnel_source}: it is the address of no node"
    elif host == node:
        yield f"{node} does not believe {asked.tunnel_source}: it is its own address"
    elif not owner:
        yield f"{node} does not believe {asked.tunnel_source}: {drop.claimed} lies behind no node"
    elif owner != host:
        yield f"{node} does not believe {asked.tunnel_source}: {known.subnets[owner]} lies behind {owner}"
    else:
        yield f"{node} does not know yet that {known.subnets[owner]} lies behind {owner}"


def _not_from_node(drop: Drop) -> Iterator[str]:
    """What comes from tun0 is the node's own, or an answer from outside."""
    asked, node, claimed = drop.last.asked, drop.last.node, drop.claimed
    is_own = claimed == drop.known.gateway(node)
    if not is_own and (asked.protocol == "arp" or (drop.source.node == node and drop.source.enters == "node")):
        yield f"{claimed} is not {node}'s address"
    if not is_own and drop.known.is_inside(claimed):
        yield f"{claimed} is an address of the cluster, and does not come from outside"
    if asked.protocol == "arp":
        yield f"{asked.source_mac} is not {node}'s MAC"
    if is_own:
        yield f"{node} sends to {drop.target} by its other links: only addresses of the cluster lie behind br0"
    yield f"{drop.target} is not in {drop.known.subnets.get(node)}: what comes from outside is for {node} only"


def _mac(address: IPv4Address) -> str:
    """A pod's MAC, which follows from its address."""
    return (b"\x0a\x58" + address.packed).hex(":")


_BY_ENTRANCE: dict[str, Callable[[Drop], Iterator[str]]] = {
    "pod": _not_itself,
    "docker": _not_dockers,
    "tunnel": _no_peer,
    "node": _not_from_node,
}

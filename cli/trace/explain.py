"""Explains in one sentence what became of a traced packet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from api.network.queries import ServicePortReport
from api.validation.network import PORT_PROTOCOLS
from cli.trace.topology import ClusterTopology, Drop, Hop, Host


@dataclass(frozen=True, slots=True)
class ServiceOutcome:
    """What becomes of a call: `end` says it all, or it goes on to the endpoint `target` as `by` says."""

    end: str = ""
    target: Host | None = None
    by: str = ""


def service_outcome(source: Host, first: Hop, known: ClusterTopology) -> ServiceOutcome:
    """Of a packet that calls a service."""
    answer, service = first.answer, first.answer.service
    if service is None:
        return ServiceOutcome()
    if not answer.endpoint:
        return ServiceOutcome(_stopped(source, first, service, known))
    address = IPv4Address(answer.endpoint.partition(":")[0])
    if not answer.steps:
        where = f"{answer.endpoint}, an endpoint of {_name(service)} outside of the cluster network"
        return ServiceOutcome(f"sent on: {first.node} calls {where}")
    return ServiceOutcome(target=known.end(str(address)) or Host(address), by=f", an endpoint of {_name(service)}")


def _stopped(source: Host, first: Hop, service: ServicePortReport, known: ClusterTopology) -> str:
    """Why a call gets no endpoint from the switch."""
    answer, node, name = first.answer, first.node, _name(service)
    if answer.steps and not answer.outputs:
        return f"dropped because {known.lane(source, answer.vnid)} may not call {name} (VNID {service.vnid})"
    if answer.endpoints:
        return f"delivered: {source} reaches the proxy of {node}, which calls an endpoint of {name}"
    if not service.cluster_endpoints:
        return f"refused by {node}: {name} has no endpoint that takes calls"
    none_here = f"{name} may be answered by endpoints on {node} only, and there is none"
    is_from_outside = not answer.steps and source.address not in {known.gateway(node), known.addresses.get(node)}
    return f"dropped because {none_here}" if is_from_outside else f"refused by {node}: {none_here}"


def _name(service: ServicePortReport) -> str:
    return f"the service {service.service}"


def endpoint_lines(first: Hop, known: ClusterTopology) -> Iterator[str]:
    """All endpoints that the packet may get, and what is left out of the service, and why."""
    answer = first.answer
    if answer.service is None:
        return
    shown = [_shown(one, known) + " (traced)" * (one == answer.endpoint) for one in answer.endpoints]
    keeps = answer.service.affinity_seconds
    sticks = f"; a client keeps its endpoint for {keeps} s" if keeps else ""
    called = f"{answer.service.service} {answer.service.port} on {first.node}"
    yield f"{called}: {', '.join(shown) or 'no endpoints'}{sticks}"
    for one in answer.rejected:
        yield f"left out: {one.subject} {one.reason}"


def _shown(endpoint: str, known: ClusterTopology) -> str:
    found = known.end(endpoint.partition(":")[0])
    return f"{found} ({endpoint})" if found is not None and found.name else endpoint


def classifier_drops(drop: Drop) -> Iterator[str]:
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


def _spoofed_pod(drop: Drop) -> Iterator[str]:
    """A pod is pinned to its MAC and its address."""
    asked = drop.last.asked
    if asked.source_mac and asked.source_mac.lower() != _mac(drop.source.address):
        yield f"{asked.source_mac} is not {drop.source}'s MAC"
    if drop.claimed != drop.source.address:
        yield f"{drop.claimed} is not {drop.source}'s address"


def _spoofed_docker_container(drop: Drop) -> Iterator[str]:
    """A container outside of any pod is pinned to Docker's part of the subnet, and asks its like without the switch."""
    docker = drop.docker
    if docker is not None and drop.claimed not in docker:
        yield f"{drop.claimed} is not in {docker}, from which Docker gives addresses on {drop.last.node}"
    if docker is not None and drop.target.address in docker:
        yield f"{drop.target} is a container outside of any pod as well: such ask one another, not the switch"


def _invalid_tunnel(drop: Drop) -> Iterator[str]:
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


def _invalid_gateway_packet(drop: Drop) -> Iterator[str]:
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
    "pod": _spoofed_pod,
    "docker": _spoofed_docker_container,
    "tunnel": _invalid_tunnel,
    "node": _invalid_gateway_packet,
}

BROADCAST = IPv4Address("255.255.255.255")
GENERIC = "lets it through"
"""How a reason ends that knows no better: the switch does otherwise than its pipeline."""


def drop_reason(source: Host, target: Host, last: Hop, known: ClusterTopology) -> str:
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


def _no_route(drop: Drop) -> Iterator[str]:
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


def _no_service(drop: Drop) -> Iterator[str]:
    asked, known, address = drop.last.asked, drop.known, drop.target.address
    if address in known.services and known.front(address) is None:
        yield f"{address} is a service address, and no service has it"
    if asked.protocol not in PORT_PROTOCOLS:
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
    if target.address.is_multicast and step.flow:
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


def _vxlan_from_pod(drop: Drop) -> Iterator[str]:
    yield f"{drop.source} may not send VXLAN to the outside: it would be believed as a node's"


_BY_TABLE: dict[str, Callable[[Drop], Iterator[str]]] = {
    "source": classifier_drops,
    "arp": _not_answered,
    "service": _no_service,
    "route": _no_route,
    "deliver": _not_delivered,
    "outside": _vxlan_from_pod,
}


def explain(source: Host, target: Host, hops: list[Hop], known: ClusterTopology) -> str:
    """Delivered, answered, sent on, refused, or dropped and why."""
    last = hops[-1]
    call = service_outcome(source, hops[0], known)
    if call.end:
        return call.end
    target = call.target or target
    outputs = [(hop.node, output) for hop in hops for output in hop.answer.outputs]
    for output in last.answer.outputs:
        if output.startswith("sender "):
            return f"answered: the switch of {last.node} gives {source} the MAC of {target}, {output.split()[1]}"
    if _is_caught(target, last, known):
        caught = f"the firewall of {last.node} puts the fragments together and drops them"
        return f"dropped because {source} may not send VXLAN to the outside: {caught}"
    if target.address.is_multicast:
        arrived = [words for node, output in outputs if (words := _heard(output, node, known))]
    else:
        arrived = [words for node, output in outputs if (words := _reached(output, node, target, known))]
    if arrived:
        return f"delivered: {source} reaches {', '.join(arrived)}{call.by}{_if_answer(hops[0], known)}"
    lost = [output.partition(" ")[2] for output in last.answer.outputs if output.startswith("tunnel ")]
    if lost:
        return f"sent on: {', '.join(_unasked(IPv4Address(one), known) for one in lost)}"
    return f"dropped because {drop_reason(source, target, last, known)}"


def _reached(output: str, node: str, target: Host, known: ClusterTopology) -> str:
    """Who gets the packet at this output; nobody yet, where it is a tunnel."""
    if output == "docker":
        return f"Docker's bridge on {node}, where a container may have {target.address}"
    if output == "node":
        return f"{node} itself" if _is_own(target, node, known) else f"the outside, with the address of {node}"
    return f"{target} on {node}" if output == f"pod {target.address}" else ""


def _is_own(target: Host, node: str, known: ClusterTopology) -> bool:
    return target.address in {known.gateway(node), known.addresses.get(node)}


def _is_caught(target: Host, last: Hop, known: ClusterTopology) -> bool:
    """VXLAN that the switch lets out because it looks at no ports of fragments; the firewall behind it does."""
    asked = last.asked
    is_vxlan = asked.protocol == "udp" and asked.port == known.vxlan_port and asked.fragment == "first"
    return is_vxlan and "node" in last.answer.outputs and not _is_own(target, last.node, known)


def _heard(output: str, node: str, known: ClusterTopology) -> str:
    """Who gets one copy of a multicast packet."""
    kind, _, address = output.partition(" ")
    if kind == "pod":
        return f"{known.end(address) or address} on {node}"
    return f"Docker's bridge on {node}" if kind == "docker" else ""


def _if_answer(first: Hop, known: ClusterTopology) -> str:
    """The switch takes what the firewall before it lets through."""
    is_call = first.answer.service is not None
    is_outside = not is_call and first.asked.enters == "node" and not known.is_inside(IPv4Address(first.asked.source))
    if not is_outside:
        return ""
    return f", if it is an answer or for a host port: else the firewall of {first.node} lets nothing in from outside"


def _unasked(address: IPv4Address, known: ClusterTopology) -> str:
    host = known.host_at(address)
    return (
        f"to {host} ({address}), which is no node that can be asked" if host else f"to {address}, which is nobody's now"
    )

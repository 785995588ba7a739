"""A packet to a service: whom it calls, which endpoints may take it, and what comes of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from api.network.queries import PortReport
from cli.walk import End, Hop, Map


@dataclass(frozen=True, slots=True)
class Way:
    """What becomes of a call: `end` says it all, or it goes on to the endpoint `target` as `by` says."""

    end: str = ""
    target: End | None = None
    by: str = ""


def way(source: End, first: Hop, known: Map) -> Way:
    """Of a packet that calls a service."""
    answer, service = first.answer, first.answer.service
    if service is None:
        return Way()
    if not answer.endpoint:
        return Way(_stopped(source, first, service, known))
    address = IPv4Address(answer.endpoint.partition(":")[0])
    if not answer.steps:
        where = f"{answer.endpoint}, an endpoint of {_name(service)} outside of the cluster network"
        return Way(f"sent on: {first.node} calls {where}")
    return Way(target=known.end(str(address)) or End(address), by=f", an endpoint of {_name(service)}")


def _stopped(source: End, first: Hop, service: PortReport, known: Map) -> str:
    """Why a call gets no endpoint from the switch."""
    answer, node, name = first.answer, first.node, _name(service)
    if answer.steps and not answer.outputs:
        return f"dropped because {known.lane(source, answer.vnid)} may not call {name} (VNID {service.vnid})"
    if answer.endpoints:
        return f"delivered: {source} reaches the proxy of {node}, which calls an endpoint of {name}"
    if not service.everywhere:
        return f"refused by {node}: {name} has no endpoint that takes calls"
    none_here = f"{name} may be answered by endpoints on {node} only, and there is none"
    is_from_outside = not answer.steps and source.address not in {known.gateway(node), known.addresses.get(node)}
    return f"dropped because {none_here}" if is_from_outside else f"refused by {node}: {none_here}"


def _name(service: PortReport) -> str:
    return f"the service {service.service}"


def lines(first: Hop, known: Map) -> Iterator[str]:
    """All endpoints that the packet may get, and what is left out of the service, and why."""
    answer = first.answer
    if answer.service is None:
        return
    shown = [_shown(one, known) + " (traced)" * (one == answer.endpoint) for one in answer.endpoints]
    keeps = answer.service.affinity_seconds
    sticks = f"; a client keeps its endpoint for {keeps} s" if keeps else ""
    called = f"{answer.service.service} {answer.service.port} on {first.node}"
    yield f"{called}: {', '.join(shown) or 'no endpoints'}{sticks}"
    for one in answer.left_out:
        yield f"left out: {one.what} {one.why}"


def _shown(endpoint: str, known: Map) -> str:
    found = known.end(endpoint.partition(":")[0])
    return f"{found} ({endpoint})" if found is not None and found.name else endpoint

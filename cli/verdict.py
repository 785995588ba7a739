"""What the switches said of a packet, in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from api.queries import TraceAnswer, TraceQuestion


@dataclass(frozen=True, slots=True)
class End:
    """Who sends or receives: a pod with its project and node, or nothing but an address."""

    address: IPv4Address
    name: str = ""
    project: str = ""
    node: str = ""

    def __str__(self) -> str:
        return self.name or str(self.address)


@dataclass(frozen=True, slots=True)
class Hop:
    """One switch: what it was asked and what it said."""

    node: str
    asked: TraceQuestion
    answer: TraceAnswer


@dataclass(frozen=True, slots=True)
class Map:
    """What the API says: VNIDs by project, subnets by node, and the networks of cluster and services."""

    vnids: Mapping[str, int]
    subnets: Mapping[str, IPv4Network]
    networks: tuple[IPv4Network, ...]
    services: IPv4Network

    def lane(self, project: str) -> str:
        """A project with its VNID."""
        return f"{project} (VNID {self.vnids[project]})" if project in self.vnids else project


def sentence(source: End, target: End, hops: list[Hop], known: Map) -> str:
    """Delivered, or dropped and why."""
    last = hops[-1]
    outputs = last.answer.outputs
    if f"pod {target.address}" in outputs:
        return f"delivered: {source} reaches {target} on {last.node}"
    if "node" in outputs:
        inside = any(target.address in network for network in known.networks)
        where = f"{last.node} itself" if inside else f"the outside, with the address of {last.node}"
        return f"delivered: {source} reaches {where}"
    if outputs:
        return f"sent on: {', '.join(outputs)}, behind which no node answers"
    return f"dropped because {_why(source, target, last, known)}"


def _why(source: End, target: End, last: Hop, known: Map) -> str:
    table = last.answer.steps[-1].table if last.answer.steps else ""
    if table == "source":
        return _not_believed(source, last)
    if table == "route":
        return _no_way(source, target, known)
    if table == "deliver":
        return _not_delivered(source, target, last, known)
    if table == "outside":
        return "pods may not send VXLAN to the outside: it would be believed as a node's"
    return f"no row of the table {table or 'source'} lets it through"


def _not_believed(source: End, last: Hop) -> str:
    if last.asked.enters == "tunnel":
        return f"{last.node} does not believe {last.asked.source} from a tunnel of {last.asked.tunnel_source}"
    if last.asked.enters == "node":
        return f"{last.asked.source} is an address of the cluster, and does not come from outside"
    if last.asked.source != str(source.address):
        return f"{last.asked.source} is not {source}'s address"
    return f"{source} may not send this"


def _no_way(source: End, target: End, known: Map) -> str:
    if target.address in known.services:
        return f"{target} is a service address, and there are no services"
    if target.address.is_multicast:
        return f"multicast is switched off for {source.project}"
    if target.address == IPv4Address("255.255.255.255"):
        return "nothing is sent to everybody"
    if target.node and target.node not in known.subnets:
        return f"{target.node} has no subnet"
    return f"{target} belongs to no node's subnet"


def _not_delivered(source: End, target: End, last: Hop, known: Map) -> str:
    if target.project and source.project != target.project:
        ours, theirs = known.vnids.get(source.project), known.vnids.get(target.project)
        if ours != theirs and 0 not in {ours, theirs}:
            return f"{known.lane(source.project)} may not reach {known.lane(target.project)}"
    return f"no pod of {last.node} that may be reached has the address {target.address}"

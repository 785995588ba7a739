"""What of a traced packet services have to do with: whom it calls, and where that leads. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from msgspec.structs import replace

from api.queries import TraceAnswer, TraceQuestion
from sdn.services.directory import Call, Directory
from sdn.services.report import left_out_report, port_report, texts
from sdn.services.served_port import Backend, PortChange, Protocol, ServedPort
from sdn.services.serving import Key, Served, Vantage
from sdn.view import Node, View

_BY_FIREWALL, _BY_SWITCH = ("node",), ("pod", "docker")
_GROUP = "group:"


@dataclass(frozen=True, slots=True)
class Called:
    """A port of a service that a packet is addressed to, and the backends that its sender gets here."""

    port: ServedPort
    served: Served
    backends: tuple[Backend, ...]


def called(
    asked: TraceQuestion, node: Node, vantage: Vantage, ports: Iterable[ServedPort], served: Mapping[Key, Served]
) -> Called | None:
    """Whom the packet calls; None where that is no service, or where services are not asked.

    From outside, cluster IPs and the node ports of other nodes are none of this node's.
    """
    if asked.enters not in _BY_FIREWALL + _BY_SWITCH or asked.protocol.upper() not in Protocol.__members__:
        return None
    front = (IPv4Address(asked.target), Protocol[asked.protocol.upper()], asked.port)
    caller = IPv4Address(asked.source)
    is_own = asked.enters in _BY_FIREWALL and caller in {node.gateway, node.address}
    directory = Directory(vantage.is_cluster, vantage.nodes.__contains__)
    directory.edit(PortChange(come=tuple(ports)))
    port = directory.find(front)
    if port is None or (asked.enters in _BY_FIREWALL and not _is_for_firewall(front[0], port, node, is_own)):
        return None
    backends = directory.backends(Call(front, caller, is_own))
    return Called(port, served[port.key.namespace, port.key.service], backends)


def _is_for_firewall(address: IPv4Address, port: ServedPort, node: Node, is_own: bool) -> bool:
    if address == port.cluster_ip:
        return is_own
    return address == node.address or address in port.outside_ips


def is_for_switch(asked: TraceQuestion) -> bool:
    """Whether the switch leads the packet to its endpoint, and not the firewall before it."""
    return asked.enters in _BY_SWITCH


def dealt(asked: TraceQuestion, answer: TraceAnswer, found: Called) -> Backend | None:
    """The endpoint to go on with where calls are dealt out by chance, of which a trace knows nothing: the first."""
    acts = answer.steps[-1].actions if answer.steps else ()
    is_dealt_out = not is_for_switch(asked) or any(action.startswith(_GROUP) for action in acts)
    return next(iter(found.backends), None) if is_dealt_out else None


def is_for_bridge(asked: TraceQuestion, backend: Backend, view: View) -> bool:
    """Whether the packet to this endpoint meets the switch: what the firewall leads to other networks does not."""
    return is_for_switch(asked) or any(backend.address in network for network in view.cluster.networks)


def to_backend(asked: TraceQuestion, backend: Backend, node: Node) -> TraceQuestion:
    """The packet when it has got this endpoint. The firewall masquerades what goes to pods of other nodes."""
    source = asked.source
    if asked.enters in _BY_FIREWALL and not backend.is_here:
        source = str(node.gateway)
    return replace(asked, source=source, target=str(backend.address), port=backend.port)


def joined(first: TraceAnswer, onward: TraceAnswer) -> TraceAnswer:
    """The way of one packet: to where calls are dealt out, and from there to the endpoint."""
    tables = [step.table for step in onward.steps]
    begin = tables.index("route") if "route" in tables else 0
    return replace(onward, steps=(*first.steps, *onward.steps[begin:]))


def told(answer: TraceAnswer, found: Called, backend: Backend | None) -> TraceAnswer:
    """The answer with what the asker wants to know of the service."""
    key = found.port.key.namespace, found.port.key.service
    return replace(
        answer,
        service=port_report(found.port),
        endpoints=texts(found.backends),
        endpoint=answer.endpoint if backend is None else next(iter(texts((backend,)))),
        left_out=tuple(left_out_report(key, found.served)),
    )

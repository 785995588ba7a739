"""What of a traced packet services have to do with: whom it calls, and where that leads. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from msgspec.structs import replace

from api.network.queries import TraceAnswer, TraceQuestion
from sdn.services.directory import Call, Directory
from sdn.services.report import left_out_report, port_report, texts
from sdn.services.served_port import Backend, PortChange, Protocol, ServedPort
from sdn.services.serving import Key, Served, Vantage
from sdn.trace import SERVICES
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


async def follow(
    asked: TraceQuestion, view: View, found: Called, ask: Callable[[TraceQuestion], Awaitable[TraceAnswer]]
) -> TraceAnswer:
    """The way of a packet that calls a service, by the answers of the switch.

    Pods' calls are translated by the switch, others by the firewall before it. Where calls are dealt out by chance, of
    which a trace knows nothing, it goes on to the first endpoint.
    """
    is_for_switch = asked.enters in _BY_SWITCH
    answer = await ask(asked) if is_for_switch else TraceAnswer()
    if is_for_switch and not _is_dealt_out(answer):
        return _told(answer, found, answer.endpoint)
    if not found.backends:
        return _told(answer, found, "")
    backend = found.backends[0]
    if is_for_switch or any(backend.address in network for network in view.cluster.networks):
        onward = await ask(_to_backend(asked, backend, view.node))
        answer = _joined(answer, onward)
    return _told(answer, found, *texts((backend,)))


def _is_dealt_out(answer: TraceAnswer) -> bool:
    acts = answer.steps[-1].actions if answer.steps else ()
    return any(action.startswith(_GROUP) for action in acts)


def _to_backend(asked: TraceQuestion, backend: Backend, node: Node) -> TraceQuestion:
    """The packet when it has got this endpoint. The firewall masquerades what goes to pods of other nodes."""
    source = asked.source
    if asked.enters in _BY_FIREWALL and not backend.is_here:
        source = str(node.gateway)
    return replace(asked, source=source, target=str(backend.address), port=backend.port)


def _joined(first: TraceAnswer, onward: TraceAnswer) -> TraceAnswer:
    """The way of one packet: to where calls are dealt out, and from there to the endpoint."""
    if not first.steps:
        return onward
    rest = itertools.dropwhile(lambda step: step.table != "route", onward.steps)
    return replace(onward, steps=(*first.steps, *rest))


def _told(answer: TraceAnswer, found: Called, endpoint: str) -> TraceAnswer:
    """With what the asker wants to know of the service."""
    key = found.port.key.namespace, found.port.key.service
    owner = f"service {'/'.join(key)}"
    steps = (replace(step, owner=owner) if step.owner == SERVICES else step for step in answer.steps)
    return replace(
        answer,
        steps=tuple(steps),
        service=port_report(found.port),
        endpoints=texts(found.backends),
        endpoint=endpoint,
        left_out=tuple(left_out_report(key, found.served)),
    )

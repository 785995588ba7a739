"""What the catalogue has → the answer to who asks for services. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from api.network.queries import LeftOutReport, PortReport, ServicesAnswer, ServicesQuestion
from sdn.services.served_port import Backend, ServedPort
from sdn.services.serving import Key, Served

MOST_PORTS = 500
"""In one answer."""


def answer(asked: ServicesQuestion, served: Mapping[Key, Served]) -> ServicesAnswer:
    """The ports of the services that are asked for, by name, and what is left out of them."""
    keys = sorted(key for key in served if _is_asked(asked, key))
    ports = [port for key in keys for port in served[key].ports.values()]
    return ServicesAnswer(
        ports=tuple(map(port_report, ports[:MOST_PORTS])),
        left_out=tuple(one for key in keys for one in left_out_report(key, served[key]))[:MOST_PORTS],
        more=max(len(ports) - MOST_PORTS, 0),
    )


def _is_asked(asked: ServicesQuestion, key: Key) -> bool:
    return asked.namespace in ("", key[0]) and asked.name in ("", key[1])


def left_out_report(key: Key, served: Served) -> Iterator[LeftOutReport]:
    """What of one service is not programmed."""
    return (LeftOutReport(service="/".join(key), what=one.what, why=one.why) for one in served.left_out)


def port_report(port: ServedPort) -> PortReport:
    """One port, for people."""
    addresses = [*([port.cluster_ip] if port.cluster_ip is not None else []), *port.outside_ips]
    fronts = [f"{address}:{port.port}" for address in addresses] + [f"*:{port.node_port}"] * bool(port.node_port)
    return PortReport(
        service=f"{port.key.namespace}/{port.key.service}",
        port=f"{port.port}/{port.key.protocol.name}",
        name=port.key.port_name,
        vnid=port.vnid,
        fronts=tuple(fronts),
        inside=texts(port.inside),
        everywhere=texts(port.everywhere),
        outside=texts(port.outside),
        affinity_seconds=port.affinity_seconds,
    )


def texts(backends: Iterable[Backend]) -> tuple[str, ...]:
    """`ADDRESS:PORT` of each."""
    return tuple(f"{one.address}:{one.port}" for one in backends)

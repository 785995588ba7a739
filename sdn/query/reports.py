"""Reports for administrators: the network of the node and its service ports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from api.network.queries import NetworkReport, RejectionReport, ServicePortReport, ServicesRequest, ServicesResult
from sdn.model.service_port import EndpointInfo, ServicePortInfo
from sdn.network_state import NetworkState
from sdn.proxy.service_ports import Key, ServiceState

MAX_PORTS = 500
"""In one answer."""


def network_report(state: NetworkState, attached_pods: int, drift: int) -> NetworkReport:
    """Return the network report of this node; only the problem while the network is not set up."""
    if state.network is None:
        return NetworkReport(error=state.not_ready_reason)
    node = state.network.node
    return NetworkReport(
        subnet=str(node.subnet),
        pods=attached_pods,
        free_addresses=int(node.last_pod) - int(node.first_pod) + 1 - attached_pods,
        flows=state.flow_count,
        drift=drift,
        pass_milliseconds=round(state.reconcile_milliseconds, 2),
        error=state.not_ready_reason or state.docker_bridge_problem,
    )


def services_report(asked: ServicesRequest, served: Mapping[Key, ServiceState]) -> ServicesResult:
    """The ports of the services that are asked for, by name, and what is left out of them."""
    keys = sorted(key for key in served if _is_asked(asked, key))
    ports = [port for key in keys for port in served[key].ports.values()]
    return ServicesResult(
        ports=tuple(map(port_report, ports[:MAX_PORTS])),
        rejected=tuple(one for key in keys for one in rejection_reports(key, served[key]))[:MAX_PORTS],
        omitted_ports=max(len(ports) - MAX_PORTS, 0),
    )


def _is_asked(asked: ServicesRequest, key: Key) -> bool:
    return asked.namespace in ("", key[0]) and asked.name in ("", key[1])


def rejection_reports(key: Key, served: ServiceState) -> Iterator[RejectionReport]:
    """What of one service is not programmed."""
    return (RejectionReport(service="/".join(key), subject=one.what, reason=one.why) for one in served.left_out)


def port_report(port: ServicePortInfo) -> ServicePortReport:
    """One port, for people."""
    addresses = [*([port.cluster_ip] if port.cluster_ip is not None else []), *port.external_ips]
    fronts = [f"{address}:{port.port}" for address in addresses] + [f"*:{port.node_port}"] * bool(port.node_port)
    return ServicePortReport(
        service=f"{port.key.namespace}/{port.key.service}",
        port=f"{port.port}/{port.key.protocol.name}",
        name=port.key.port_name,
        vnid=port.vnid,
        frontends=tuple(fronts),
        internal_endpoints=endpoint_texts(port.internal_endpoints),
        cluster_endpoints=endpoint_texts(port.cluster_endpoints),
        external_endpoints=endpoint_texts(port.external_endpoints),
        affinity_seconds=port.affinity_timeout_seconds,
    )


def endpoint_texts(backends: Iterable[EndpointInfo]) -> tuple[str, ...]:
    """`ADDRESS:PORT` of each."""
    return tuple(f"{one.address}:{one.port}" for one in backends)

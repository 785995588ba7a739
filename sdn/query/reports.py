"""Reports for administrators: the network of the node and its service ports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from api.network.attach import lost_peers_sentence
from api.network.queries import NetworkReport, RejectionReport, ServicePortReport, ServicesRequest, ServicesResult
from sdn.model.service_port import EndpointInfo, ServicePortInfo
from sdn.network_state import NetworkState
from sdn.proxy.service_ports import Key, ServiceState

MAX_PORTS = 500
"""Maximum number of ports, and of rejections, in one report."""


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
        error="; ".join(filter(None, _problems(state))),
    )


def _problems(state: NetworkState) -> tuple[str, ...]:
    """Return what is wrong with the network of this node: why it is not ready, or all that may drop packets."""
    if state.not_ready_reason:
        return (state.not_ready_reason,)
    return lost_peers_sentence(state.lost_peers or ()), state.docker_bridge_problem, state.firewall_problem


def services_report(request: ServicesRequest, states: Mapping[Key, ServiceState]) -> ServicesResult:
    """Return the ports and the rejections of the requested services, sorted by service."""
    keys = sorted(key for key in states if request.namespace in ("", key[0]) and request.name in ("", key[1]))
    ports = [port for key in keys for port in states[key].ports.values()]
    rejections = [report for key in keys for report in rejection_reports(key, states[key])]
    return ServicesResult(
        ports=tuple(map(port_report, ports[:MAX_PORTS])),
        rejected=tuple(rejections[:MAX_PORTS]),
        omitted_ports=max(len(ports) - MAX_PORTS, 0),
    )


def rejection_reports(key: Key, state: ServiceState) -> Iterator[RejectionReport]:
    """Yield the rejections of one service."""
    for rejection in state.rejected:
        yield RejectionReport(service="/".join(key), subject=rejection.subject, reason=rejection.reason)


def port_report(port: ServicePortInfo) -> ServicePortReport:
    """Return the report of one port. `*` as the address of a frontend stands for all nodes."""
    addresses = port.external_ips if port.cluster_ip is None else (port.cluster_ip, *port.external_ips)
    frontends = [f"{address}:{port.port}" for address in addresses]
    if port.node_port:
        frontends.append(f"*:{port.node_port}")
    return ServicePortReport(
        service=f"{port.key.namespace}/{port.key.service}",
        port=f"{port.port}/{port.key.protocol.name}",
        name=port.key.port_name,
        vnid=port.vnid,
        frontends=tuple(frontends),
        internal_endpoints=endpoint_texts(port.internal_endpoints),
        cluster_endpoints=endpoint_texts(port.cluster_endpoints),
        external_endpoints=endpoint_texts(port.external_endpoints),
        affinity_seconds=port.affinity_timeout_seconds,
    )


def endpoint_texts(endpoints: Iterable[EndpointInfo]) -> tuple[str, ...]:
    """Return endpoints as `ADDRESS:PORT`."""
    return tuple(f"{endpoint.address}:{endpoint.port}" for endpoint in endpoints)

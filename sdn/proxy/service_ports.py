"""Computes the ports of one Service, from the Service and its EndpointSlices. Pure.

Frontends that belong to an older service, and endpoints of other projects, are rejected: traffic to a service must not
become a way around the isolation of projects, and one project must not take over the addresses of another.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from api.core.endpoints import Endpoint, EndpointSlice
from api.core.services import DEFAULT_AFFINITY_SECONDS, EXTERNAL_NAME, HEADLESS, Service, ServicePort, has_node_ports
from sdn.model.ipv4 import parse_ipv4
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.topology import GLOBAL_VNID, Node, NodeNetworkConfig

Key = tuple[str, str]
"""Namespace and name."""

IGNORED_LABELS = frozenset(("service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"))
"""A service with one of these labels is not proxied, as with kube-proxy."""

DEFAULT_PROJECT = "default"
"""The project of the service `kubernetes`, whose endpoints are the API servers."""

LOCAL = "Local"
"""The traffic policy that selects endpoints of the same node only."""

MAX_ENDPOINTS = 1000
"""Maximum number of endpoints of one port: a group of so many buckets fits into an OpenFlow message (65,535 bytes)."""


class FrontendKind(StrEnum):
    """Kinds of frontends.

    They are different keys: a service that claims a future cluster IP as its external IP does not keep it from the
    service that gets the cluster IP.
    """

    CLUSTER_IP = "cluster IP"
    EXTERNAL_IP = "external IP"
    NODE_PORT = "node port"


class Frontend(NamedTuple):
    """A place at which clients reach a service; a node port has no address, because it is open on every node."""

    kind: FrontendKind
    ip: IPv4Address | None
    protocol: Protocol
    port: int


class AddressRanges(NamedTuple):
    """First and last addresses of networks, as numbers: comparing numbers takes a fifth of the time of `in network`."""

    cluster_networks: tuple[tuple[int, int], ...]
    service_network: tuple[int, int]
    node_subnet: tuple[int, int]


def _range(network: IPv4Network) -> tuple[int, int]:
    return int(network.network_address), int(network.broadcast_address)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """The configuration of the network, as far as services depend on it.

    `vnids` has the VNID of each project, and is None with the flat network. `node_ips` are the underlay addresses of
    all nodes. `node_port_range` is the first and the last node port. `vxlan_port` is the UDP port of tunnels.
    """

    node: Node
    cluster_networks: tuple[IPv4Network, ...]
    service_network: IPv4Network
    node_port_range: tuple[int, int]
    vnids: Mapping[str, int] | None
    node_ips: frozenset[IPv4Address]
    vxlan_port: int
    ranges: AddressRanges = field(init=False, repr=False, compare=False)
    """The ranges of `cluster_networks`, of `service_network` and of the node's subnet."""

    def __post_init__(self) -> None:
        cluster = tuple(map(_range, self.cluster_networks))
        ranges = AddressRanges(cluster, _range(self.service_network), _range(self.node.subnet))
        object.__setattr__(self, "ranges", ranges)

    @classmethod
    def from_network(cls, network: NodeNetworkConfig) -> Self:
        """Return the part of a network configuration on which services depend."""
        return cls(
            node=network.node,
            cluster_networks=network.cluster.networks,
            service_network=network.cluster.service_network,
            node_port_range=network.cluster.node_ports,
            vnids=network.vnids,
            node_ips=frozenset(peer.address for peer in network.peers) | {network.node.address},
            vxlan_port=network.cluster.vxlan_port,
        )

    def vnid(self, project: str) -> int | None:
        """Return the VNID of a project, or None for a project without one."""
        return GLOBAL_VNID if self.vnids is None else self.vnids.get(project)

    def differs_in_vnids_and_nodes_only(self, other: Self) -> bool:
        """Return True if both are of the same node and networks, and both or neither isolate projects."""
        same = dataclasses.replace(other, vnids=self.vnids, node_ips=self.node_ips) == self
        return same and (self.vnids is None) == (other.vnids is None)

    def projects_with_another_vnid(self, other: Self) -> frozenset[str]:
        """Return the projects whose VNID differs, including those that have a VNID in only one of the two."""
        mine, others = self.vnids or {}, other.vnids or {}
        return frozenset(name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name))

    def is_in_cluster_network(self, ip: IPv4Address) -> bool:
        """Return True for addresses of pods and of the nodes' gateways."""
        return any(ip in network for network in self.cluster_networks)

    def reserved_for(self, ip: IPv4Address) -> str:
        """Return why an address cannot be an external IP of a service; empty if it can."""
        if ip in self.service_network:
            return f"in the service network {self.service_network}"
        if self.is_in_cluster_network(ip):
            return "in the cluster network"
        return "the address of a node" if ip in self.node_ips else ""


class ServiceIndex(typing.Protocol):
    """Lookups among all services and pods that the ports of one service depend on.

    Addresses are passed as text, because dictionaries find text faster. Every address has only one textual form.
    """

    def projects_with_ip(self, ip: str) -> Sequence[str]:
        """Return the projects of the pods with this address of the cluster network that have not ended, sorted."""

    def host_network_projects(self, ip: str) -> Set[str]:
        """Return the projects that have a pod in the network of the node with this address."""

    def owner_of_frontend(self, frontend: Frontend) -> Key:
        """Return the oldest service that claims a frontend."""

    def is_external_ip(self, ip: str) -> bool:
        """Return True if a service has this external IP."""


@dataclass(frozen=True, slots=True, order=True)
class Rejection:
    """An endpoint or a frontend of a service that this node does not program.

    `subject` and `reason` together are a sentence.
    """

    subject: str
    reason: str

    def __str__(self) -> str:
        return f"{self.subject} {self.reason}"


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The ports of a service, and its rejected endpoints and frontends.

    `health_port` is its healthCheckNodePort, 0 if it has none or if the port belongs to an older service.
    `local_endpoint_count` counts the endpoints on this node that external clients reach.
    """

    ports: Mapping[ServicePortName, ServicePortInfo] = field(default_factory=dict)
    rejected: tuple[Rejection, ...] = ()
    health_port: int = 0
    local_endpoint_count: int = 0


EMPTY = ServiceState()


class _CandidateEndpoint(Struct, frozen=True, gc=False):
    """An address of an endpoint in a slice with one of its ports, and the endpoint's conditions.

    `number` is the address as a number. A draining endpoint terminates, but still serves. `is_on_node` is set when the
    endpoint is accepted.
    """

    text: str
    ip: IPv4Address
    number: int
    port: int
    is_in_cluster_network: bool
    is_local: bool
    is_ready: bool
    is_draining: bool
    is_on_node: bool = False

    @property
    def endpoint(self) -> EndpointInfo:
        """The endpoint as a service port has it."""
        return EndpointInfo(self.ip, self.port, self.is_local, self.is_on_node)


Candidates = Mapping[tuple[str, Protocol], list[_CandidateEndpoint]]
"""Candidate endpoints by name and protocol of the port."""


def is_proxied(service: Service) -> bool:
    """Return True if a service has a cluster IP and no label that leaves it to another proxy."""
    if not IGNORED_LABELS.isdisjoint(service.metadata.labels):
        return False
    return service.spec.type != EXTERNAL_NAME and service.spec.cluster_ip not in ("", HEADLESS)


def external_ips(service: Service) -> tuple[IPv4Address, ...]:
    """Return the external IPs of a proxied service and those of its ingress, sorted."""
    if not is_proxied(service):
        return ()
    ingresses = service.status.load_balancer.ingress
    texts = [*service.spec.external_ips]
    texts += [ingress.ip for ingress in ingresses if (ingress.ip_mode or "VIP") == "VIP"]
    return tuple(sorted({ip for ip in map(parse_ipv4, texts) if ip is not None}))


def frontends(service: Service) -> frozenset[Frontend]:
    """Return all frontends that a service claims, including those that belong to an older service."""
    if not is_proxied(service):
        return frozenset()
    claimed: set[Frontend] = set()
    cluster_ip = parse_ipv4(service.spec.cluster_ip)
    external = external_ips(service)
    for port in service.spec.ports:
        protocol = protocol_of(port.protocol)
        claimed.add(Frontend(FrontendKind.CLUSTER_IP, cluster_ip, protocol, port.port))
        claimed.update(Frontend(FrontendKind.EXTERNAL_IP, ip, protocol, port.port) for ip in external)
        if has_node_ports(service) and port.node_port:
            claimed.add(Frontend(FrontendKind.NODE_PORT, None, protocol, port.node_port))
    if service.spec.health_check_node_port:
        claimed.add(_health_frontend(service))
    return frozenset(claimed)


def _health_frontend(service: Service) -> Frontend:
    """Return the frontend of a healthCheckNodePort. Nodes themselves answer there, so no service may have it."""
    return Frontend(FrontendKind.NODE_PORT, None, Protocol.TCP, service.spec.health_check_node_port)


def protocol_of(text: str) -> Protocol:
    """Return the protocol with this name; the default is TCP."""
    return Protocol[text or "TCP"]


def service_ports(
    service: Service, slices: Iterable[EndpointSlice], config: ProxyConfig, index: ServiceIndex
) -> ServiceState:
    """Compute the ports of one Service.

    Frontends that belong to an older service and endpoints that the service may not use are rejected; each rejection
    names its subject and reason.
    """
    if not is_proxied(service):
        return EMPTY
    namespace, name = service.metadata.namespace, service.metadata.name
    vnid = config.vnid(namespace)
    if vnid is None:
        return ServiceState(rejected=(Rejection("the service", f"has no VNID: there is no NetNamespace {namespace}"),))
    port_names = frozenset((port.name, protocol_of(port.protocol)) for port in service.spec.ports)
    candidates = _candidates(slices, config, port_names)
    endpoint_filter = _EndpointFilter(config, index, namespace, vnid)
    ports: dict[ServicePortName, ServicePortInfo] = {}
    rejected: set[Rejection] = set()
    health_port = service.spec.health_check_node_port
    if health_port and index.owner_of_frontend(_health_frontend(service)) != (namespace, name):
        rejected.add(Rejection(f"healthCheckNodePort {health_port}", "belongs to an older service"))
        health_port = 0
    first, last = config.node_port_range
    for port in service.spec.ports:
        key = ServicePortName(namespace, name, port.name, protocol_of(port.protocol))
        accepted, rejected_endpoints = endpoint_filter.select(candidates.get((key.port_name, key.protocol), ()))
        owned, rejected_frontends = _port_frontends(service, port, key, config, index)
        rejected.update(rejected_endpoints, rejected_frontends)
        cluster_endpoints = _usable_endpoints(accepted)
        local_endpoints = _usable_endpoints([candidate for candidate in accepted if candidate.is_local])
        if max(len(cluster_endpoints), len(local_endpoints)) > MAX_ENDPOINTS:
            subject = f"every endpoint after the first {MAX_ENDPOINTS} of port {port.port}/{key.protocol.name}"
            rejected.add(Rejection(subject, "exceeds the maximum"))
        ports[key] = _service_port(
            service,
            port,
            key,
            vnid=vnid,
            frontends=owned,
            cluster_endpoints=cluster_endpoints[:MAX_ENDPOINTS],
            local_endpoints=local_endpoints[:MAX_ENDPOINTS],
            endpoint_ports=frozenset(candidate.port for candidate in accepted),
            health_port=health_port if first <= health_port <= last else 0,
        )
    local = {endpoint.address for port in ports.values() for endpoint in port.external_endpoints if endpoint.is_local}
    return ServiceState(ports, tuple(sorted(rejected)), health_port, len(local))


class _PortFrontends(NamedTuple):
    """The frontends of one port that belong to its service."""

    cluster_ip: IPv4Address | None
    external_ips: tuple[IPv4Address, ...]
    node_port: int


def _port_frontends(
    service: Service, port: ServicePort, key: ServicePortName, config: ProxyConfig, index: ServiceIndex
) -> tuple[_PortFrontends, list[Rejection]]:
    """Return the frontends that a port gets, and rejections of the others that its service claims."""
    rejected: list[Rejection] = []

    def is_owner(kind: FrontendKind, ip: IPv4Address | None, number: int) -> bool:
        if index.owner_of_frontend(Frontend(kind, ip, key.protocol, number)) == (key.namespace, key.service):
            return True
        subject = f"node port {number}" if ip is None else f"{ip}:{number}"
        rejected.append(Rejection(f"{subject}/{key.protocol.name}", "belongs to an older service"))
        return False

    cluster_ip = parse_ipv4(service.spec.cluster_ip)
    if cluster_ip is None or cluster_ip not in config.service_network:
        reason = f"is not in the service network {config.service_network}"
        rejected.append(Rejection(f"cluster IP {cluster_ip}", reason))
        cluster_ip = None
    elif not is_owner(FrontendKind.CLUSTER_IP, cluster_ip, port.port):
        cluster_ip = None

    external: list[IPv4Address] = []
    for ip in external_ips(service):
        reserved_for = config.reserved_for(ip)
        if reserved_for:
            rejected.append(Rejection(f"external address {ip}", f"is {reserved_for}"))
        elif is_owner(FrontendKind.EXTERNAL_IP, ip, port.port):
            external.append(ip)

    node_port = port.node_port if has_node_ports(service) else 0
    if node_port and not is_owner(FrontendKind.NODE_PORT, None, node_port):
        node_port = 0
    return _PortFrontends(cluster_ip, tuple(external), node_port), rejected


def _service_port(
    service: Service,
    port: ServicePort,
    key: ServicePortName,
    *,
    vnid: int,
    frontends: _PortFrontends,
    cluster_endpoints: tuple[EndpointInfo, ...],
    local_endpoints: tuple[EndpointInfo, ...],
    endpoint_ports: frozenset[int],
    health_port: int,
) -> ServicePortInfo:
    external_policy_local = service.spec.external_traffic_policy == LOCAL
    # Endpoints that are gone listened at the target port. If that is a name, its number is known from endpoints only.
    target_port = port.target_port or port.port
    target_ports = endpoint_ports | {target_port} if isinstance(target_port, int) else endpoint_ports
    return ServicePortInfo(
        key=key,
        vnid=vnid,
        cluster_ip=frontends.cluster_ip,
        port=port.port,
        node_port=frontends.node_port,
        external_ips=frontends.external_ips,
        internal_endpoints=local_endpoints if service.spec.internal_traffic_policy == LOCAL else cluster_endpoints,
        cluster_endpoints=cluster_endpoints,
        external_endpoints=local_endpoints if external_policy_local else cluster_endpoints,
        affinity_timeout_seconds=_affinity_timeout_seconds(service),
        external_policy_local=external_policy_local,
        draining_ports=target_ports - {endpoint.port for endpoint in cluster_endpoints},
        health_port=health_port,
    )


def _usable_endpoints(candidates: list[_CandidateEndpoint]) -> tuple[EndpointInfo, ...]:
    """Return the endpoints that are ready, or, if there is none, those that drain, as kube-proxy does. Sorted."""
    usable = [candidate for candidate in candidates if candidate.is_ready]
    usable = usable or [candidate for candidate in candidates if candidate.is_draining]
    usable.sort(key=lambda candidate: (candidate.number, candidate.port))
    return tuple(candidate.endpoint for candidate in usable)


def _affinity_timeout_seconds(service: Service) -> int:
    if service.spec.session_affinity != "ClientIP":
        return 0
    config = service.spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config is not None and config.client_ip is not None else None
    return seconds or DEFAULT_AFFINITY_SECONDS


def _candidates(
    slices: Iterable[EndpointSlice], config: ProxyConfig, port_names: Set[tuple[str, Protocol]]
) -> Candidates:
    """Return the endpoints of the ports that the service has. Other ports of the slices cost nothing.

    An endpoint that is in several slices has the best of its conditions.
    """
    candidates: dict[tuple[str, Protocol], dict[tuple[str, int], _CandidateEndpoint]] = {}
    for endpoint_slice in slices:
        if endpoint_slice.address_type != "IPv4":
            continue
        for port in endpoint_slice.ports:
            port_name = (port.name or "", protocol_of(port.protocol))
            if not port.port or port_name not in port_names:
                continue
            known = candidates.setdefault(port_name, {})
            for endpoint in endpoint_slice.endpoints:
                candidate = _candidate(endpoint, port.port, config)
                if candidate is None:
                    continue
                before = known.setdefault((candidate.text, port.port), candidate)
                if not before.is_ready and (candidate.is_ready or candidate.is_draining):
                    known[candidate.text, port.port] = candidate
    return {port_name: list(known.values()) for port_name, known in candidates.items()}


def _candidate(endpoint: Endpoint, port: int, config: ProxyConfig) -> _CandidateEndpoint | None:
    """Return the first address of an endpoint with a port, or None if it is not an IPv4 address.

    A pod's address says by its subnet whether the pod is local. Other endpoints say it by their node name.
    """
    text = endpoint.addresses[0] if endpoint.addresses else ""
    ip = parse_ipv4(text)
    if ip is None:
        return None
    number = int(ip)
    is_in_cluster_network = False
    for first, last in config.ranges.cluster_networks:
        if first <= number <= last:
            is_in_cluster_network = True
    if is_in_cluster_network:
        first, last = config.ranges.node_subnet
        is_local = first <= number <= last
    else:
        is_local = ip == config.node.address or endpoint.node_name == config.node.name
    conditions = endpoint.conditions
    is_ready = conditions.ready is not False
    is_serving = is_ready if conditions.serving is None else conditions.serving
    is_draining = bool(conditions.terminating) and is_serving
    return _CandidateEndpoint(text, ip, number, port, is_in_cluster_network, is_local, is_ready, is_draining)


@dataclass(frozen=True, slots=True)
class _EndpointFilter:
    """Selects the endpoints that a service of a project may have."""

    config: ProxyConfig
    index: ServiceIndex
    project: str
    vnid: int

    def select(self, candidates: Iterable[_CandidateEndpoint]) -> tuple[list[_CandidateEndpoint], list[Rejection]]:
        """Return the accepted endpoints, and rejections of the others."""
        accepted: list[_CandidateEndpoint] = []
        rejected: list[Rejection] = []
        for candidate in candidates:
            reason = self._reject_reason(candidate)
            if reason:
                rejected.append(Rejection(f"endpoint {candidate.text}:{candidate.port}", reason))
            else:
                is_on_node = self._is_on_node(candidate)
                accepted.append(replace(candidate, is_on_node=True) if is_on_node else candidate)
        return accepted, rejected

    def _reject_reason(self, candidate: _CandidateEndpoint) -> str:
        config = self.config
        first, last = config.ranges.service_network
        is_external_ip = self.index.is_external_ip(candidate.text) and not config.reserved_for(candidate.ip)
        if first <= candidate.number <= last or is_external_ip:
            return "is an address of services, not an endpoint"
        first, last = config.node_port_range
        if first <= candidate.port <= last and candidate.ip in config.node_ips:
            return "is a node port, not an endpoint"
        if not candidate.is_in_cluster_network:
            return ""
        projects = self.index.projects_with_ip(candidate.text)
        if not projects:
            return "is in the cluster network, but no running pod has it"
        for project in projects:
            if config.vnid(project) != self.vnid:
                return f"is a pod of the project {project}, which is not joined with {self.project}"
        return ""

    def _is_on_node(self, candidate: _CandidateEndpoint) -> bool:
        """Return whether pods that may use the service may reach an endpoint at the address of a node.

        They may if the service's project has a pod in the network of that node. Otherwise anybody who may write
        EndpointSlices would reach every program of the nodes. They also may if the project is the administrator's, at
        every address, because a node may have more addresses than the cluster knows.
        """
        config = self.config
        if self.project == DEFAULT_PROJECT or (config.vnids is not None and self.vnid == GLOBAL_VNID):
            return not candidate.is_in_cluster_network
        if candidate.ip not in config.node_ips:
            return False
        projects = self.index.host_network_projects(candidate.text)
        if config.vnids is None:
            return self.project in projects
        return any(config.vnid(project) == self.vnid for project in projects)

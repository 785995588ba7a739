"""One Service with its EndpointSlices to the ports that this node programs, and what it rejects. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple, Self

from api.core.endpoints import Endpoint, EndpointSlice
from api.core.services import DEFAULT_AFFINITY_SECONDS, EXTERNAL_NAME, HEADLESS, Service, ServicePort, has_node_ports
from api.network.types import PodAddress
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.topology import GLOBAL_VNID, NetworkConfig

Key = tuple[str, str]
"""Namespace and name."""

CLUSTER_IP, EXTERNAL_IP, NODE_PORT = "cluster IP", "external address", "node port"
Frontend = tuple[str, IPv4Address | None, Protocol, int]
"""Where callers call: one of the three above, address (None: those of all nodes), protocol, port. They are told apart
so that nobody who asks for a cluster IP of the future as his external address keeps a service from its own.
"""

_PLAIN = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})").fullmatch

IGNORED_LABELS = frozenset(("service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"))
"""Labels of services that kube-proxy leaves alone."""

LOCAL = "Local"
"""As a traffic policy: only endpoints of the same node."""

MAX_ENDPOINTS = 1000
"""Of one port: a group of that many buckets still fits into a message to the switch, which takes 65,535 bytes."""


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """From where services are seen: this node and its network.

    `lanes` is the VNID of each project, None with the flat network; `nodes` are the addresses of all nodes;
    `node_ports` are the first and the last port that services may have on every node.
    """

    node: str
    address: IPv4Address
    subnet: IPv4Network
    networks: tuple[IPv4Network, ...]
    service_network: IPv4Network
    lanes: Mapping[str, int] | None
    nodes: frozenset[IPv4Address]
    node_ports: tuple[int, int]

    def vnid(self, project: str) -> int | None:
        """None for a project without a lane."""
        return GLOBAL_VNID if self.lanes is None else self.lanes.get(project)

    @classmethod
    def of(cls, ground: NetworkConfig) -> Self:
        """What the API says of the network, for this node."""
        cluster, node = ground.cluster, ground.node
        return cls(
            node=node.name,
            address=node.address,
            subnet=node.subnet,
            networks=cluster.networks,
            service_network=cluster.service_network,
            lanes=ground.vnids,
            nodes=frozenset(peer.address for peer in ground.peers) | {node.address},
            node_ports=cluster.node_ports,
        )

    def differs_in_vnids_and_nodes_only(self, other: Self) -> bool:
        """Return True if both are of the same node and networks, and both or neither isolate projects."""
        same = dataclasses.replace(other, lanes=self.lanes, nodes=self.nodes) == self
        return same and (self.lanes is None) == (other.lanes is None)

    def projects_with_another_vnid(self, other: Self) -> frozenset[str]:
        """Return the projects whose VNID differs, also those that have one only here or only there."""
        mine, others = self.lanes or {}, other.lanes or {}
        return frozenset(name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name))

    def is_cluster(self, address: IPv4Address) -> bool:
        """Whether it is an address of pods, or of a node's gateway."""
        return any(address in network for network in self.networks)

    def whose(self, address: IPv4Address) -> str:
        """What an address is beside being somebody's external one, which it then cannot be; empty if nothing."""
        if address in self.service_network:
            return f"in the service network {self.service_network}"
        if self.is_cluster(address):
            return "in the cluster network"
        return "the address of a node" if address in self.nodes else ""


@dataclass(frozen=True, slots=True)
class ServiceIndex:
    """What else there is. `pods` are the live ones that have an address of the cluster network, `first` is the
    service that comes first of all that ask for a front, `is_outside_ip` says whether any service has that address.

    Addresses are asked for as text, which is quicker to find, and one and the same for one address.
    """

    vantage: ProxyConfig
    pods: Callable[[str], Iterable[PodAddress]]
    first: Callable[[Frontend], Key]
    is_outside_ip: Callable[[str], bool]


@dataclass(frozen=True, slots=True, order=True)
class Rejection:
    """Something of a service that is not programmed: `what` names it, `why` goes on as a sentence."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} {self.why}"


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What became of a service. `health_port` is its healthCheckNodePort, 0 if it has none; `here` counts the endpoints
    of this node that callers from outside get.
    """

    ports: Mapping[ServicePortName, ServicePortInfo] = field(default_factory=dict)
    left_out: tuple[Rejection, ...] = ()
    health_port: int = 0
    here: int = 0


NOTHING = ServiceState()


class _EndpointAddress(NamedTuple):
    """An address that a slice has, and how the endpoint there is; with `is_leaving` it ends, and still serves."""

    text: str
    address: IPv4Address
    is_cluster: bool
    is_here: bool
    is_ready: bool
    is_leaving: bool


class _CandidateEndpoint(NamedTuple):
    """A port at a place."""

    place: _EndpointAddress
    port: int

    @property
    def backend(self) -> EndpointInfo:
        """What callers are led to."""
        return EndpointInfo(self.place.address, self.port, self.place.is_here)


def is_proxied(service: Service) -> bool:
    """Whether anything of ours leads to its addresses: not where a label leaves them to another proxy, or to none."""
    if not IGNORED_LABELS.isdisjoint(service.metadata.labels):
        return False
    return service.spec.type != EXTERNAL_NAME and service.spec.cluster_ip not in ("", HEADLESS)


def external_ips(service: Service) -> tuple[IPv4Address, ...]:
    """External addresses and those of its ingress, in order."""
    spec = service.spec
    ingress = [one for one in service.status.load_balancer.ingress if (one.ip_mode or "VIP") == "VIP"]
    texts = [*spec.external_ips, *(one.ip for one in ingress)]
    return tuple(sorted({address for address in map(parse_ipv4, texts) if address is not None}))


def frontends(service: Service) -> frozenset[Frontend]:
    """All that it asks for, whether it comes first or not."""
    if not is_proxied(service):
        return frozenset()
    found: set[Frontend] = set()
    for port in service.spec.ports:
        protocol = protocol_of(port.protocol)
        found.add((CLUSTER_IP, parse_ipv4(service.spec.cluster_ip), protocol, port.port))
        found.update((EXTERNAL_IP, address, protocol, port.port) for address in external_ips(service))
        if has_node_ports(service) and port.node_port:
            found.add((NODE_PORT, None, protocol, port.node_port))
    return frozenset(found)


def parse_ipv4(text: str) -> IPv4Address | None:
    """None for what is no IPv4 address."""
    try:
        if _PLAIN(text):
            return IPv4Address(bytes(map(int, text.split("."))))  # four times as quick as by the text itself
        return IPv4Address(text)
    except ValueError:
        return None


def protocol_of(text: str) -> Protocol:
    """TCP where nothing is said."""
    return Protocol[text or "TCP"]


def service_ports(service: Service, slices: Iterable[EndpointSlice], around: ServiceIndex) -> ServiceState:
    """A front that another service had first, an endpoint that is not the service's to lead to: left out, by name."""
    if not is_proxied(service):
        return NOTHING
    meta, vantage = service.metadata, around.vantage
    vnid = vantage.vnid(meta.namespace)
    if vnid is None:
        return ServiceState(
            left_out=(Rejection("the service", f"has no lane: there is no NetNamespace {meta.namespace}"),)
        )
    left_out: dict[Rejection, None] = {}
    asked = frozenset((port.name, protocol_of(port.protocol)) for port in service.spec.ports)
    by_port = _candidates(slices, vantage, asked)
    refused = _EndpointFilter(around, (meta.namespace, meta.name), vnid, left_out)
    served = {}
    for port in service.spec.ports:
        key = ServicePortName(meta.namespace, meta.name, port.name, protocol_of(port.protocol))
        found = [one for one in by_port.get((key.port_name, key.protocol), ()) if refused.accept(one)]
        served[key] = _port(service, port, key, vnid, found, refused)
    here = {one.address for port in served.values() for one in port.external_endpoints if one.is_local}
    return ServiceState(served, tuple(sorted(left_out)), service.spec.health_check_node_port, len(here))


def _port(
    service: Service,
    port: ServicePort,
    key: ServicePortName,
    vnid: int,
    found: list[_CandidateEndpoint],
    refused: _EndpointFilter,
) -> ServicePortInfo:
    spec = service.spec
    everywhere = refused.most(_usable_endpoints(found), port)
    here = refused.most(_usable_endpoints([one for one in found if one.place.is_here]), port)
    keeps_source = spec.external_traffic_policy == LOCAL
    node_port = port.node_port if has_node_ports(service) else 0
    if node_port and not refused.holds((NODE_PORT, None, key.protocol, node_port)):
        node_port = 0
    return ServicePortInfo(
        key=key,
        vnid=vnid,
        cluster_ip=refused.cluster_ip(parse_ipv4(spec.cluster_ip), key.protocol, port.port),
        port=port.port,
        node_port=node_port,
        external_ips=tuple(one for one in external_ips(service) if refused.outside(one, key.protocol, port.port)),
        internal_endpoints=here if spec.internal_traffic_policy == LOCAL else everywhere,
        cluster_endpoints=everywhere,
        external_endpoints=here if keeps_source else everywhere,
        affinity_timeout_seconds=_affinity(service),
        external_policy_local=keeps_source,
        draining_ports=frozenset((*_target_ports(port), *(one.port for one in found)))
        - {one.port for one in everywhere},
    )


def _target_ports(port: ServicePort) -> tuple[int, ...]:
    """Where endpoints listened that are none any more; by name only these themselves can tell."""
    number = port.target_port or port.port
    return (number,) if isinstance(number, int) else ()


def _usable_endpoints(found: list[_CandidateEndpoint]) -> tuple[EndpointInfo, ...]:
    """Those that are ready; where there is none, those that end and still serve (kube-proxy does the same)."""
    chosen = [one for one in found if one.place.is_ready] or [one for one in found if one.place.is_leaving]
    chosen.sort(key=lambda one: (int(one.place.address), one.port))
    return tuple(one.backend for one in chosen)


def _affinity(service: Service) -> int:
    if service.spec.session_affinity != "ClientIP":
        return 0
    config = service.spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config is not None and config.client_ip is not None else None
    return seconds or DEFAULT_AFFINITY_SECONDS


def _candidates(
    slices: Iterable[EndpointSlice], vantage: ProxyConfig, asked: Set[tuple[str, Protocol]]
) -> dict[tuple[str, Protocol], list[_CandidateEndpoint]]:
    """By name and protocol of the port, of those that the service has: others, however many, cost nothing.

    One that is in several slices is as ready as it is in any.
    """
    found: dict[tuple[str, Protocol], dict[tuple[str, int], _CandidateEndpoint]] = {}
    for one in slices:
        if one.address_type != "IPv4":
            continue
        places = [place for row in one.endpoints for place in _places(row, vantage)]
        for port in one.ports:
            name = port.name or "", protocol_of(port.protocol)
            if port.port and name in asked:
                known = found.setdefault(name, {})
                for place in places:
                    _join(known, _CandidateEndpoint(place, port.port))
    return {name: list(known.values()) for name, known in found.items()}


def _places(row: Endpoint, vantage: ProxyConfig) -> Iterator[_EndpointAddress]:
    """Of several addresses the first; none where that is no address. Whether one of a pod is here its subnet tells."""
    text = row.addresses[0] if row.addresses else ""
    address = parse_ipv4(text)
    if address is None:
        return
    is_cluster = vantage.is_cluster(address)
    is_named = address == vantage.address or row.node_name == vantage.node
    said = row.conditions
    is_ready = said.ready is not False
    is_serving = is_ready if said.serving is None else said.serving
    is_here = address in vantage.subnet if is_cluster else is_named
    yield _EndpointAddress(text, address, is_cluster, is_here, is_ready, bool(said.terminating) and is_serving)


def _join(known: dict[tuple[str, int], _CandidateEndpoint], one: _CandidateEndpoint) -> None:
    key = one.place.text, one.port
    before = known.get(key)
    if before is None or (not before.place.is_ready and (one.place.is_ready or one.place.is_leaving)):
        known[key] = one


@dataclass(frozen=True, slots=True)
class _EndpointFilter:
    """What a service asks for that it does not get is noted in `left_out`."""

    around: ServiceIndex
    service: Key
    vnid: int
    left_out: dict[Rejection, None]

    def accept(self, one: _CandidateEndpoint) -> bool:
        """Whether a service of this lane may lead there."""
        why = self._objection(one.place, one.port)
        if why:
            self.left_out[Rejection(f"endpoint {one.place.text}:{one.port}", why)] = None
        return not why

    def most(self, backends: tuple[EndpointInfo, ...], port: ServicePort) -> tuple[EndpointInfo, ...]:
        """As many as a port may have."""
        if len(backends) > MAX_ENDPOINTS:
            what = f"every endpoint behind the first {MAX_ENDPOINTS} of port {port.port}/{port.protocol or 'TCP'}"
            self.left_out[Rejection(what, "is one too many")] = None
        return backends[:MAX_ENDPOINTS]

    def holds(self, front: Frontend) -> bool:
        """Whether it is the first service to ask for this front."""
        is_first = self.around.first(front) == self.service
        if not is_first:
            _, address, protocol, port = front
            what = f"node port {port}" if address is None else f"{address}:{port}"
            self.left_out[Rejection(f"{what}/{protocol.name}", "belongs to a service that was there before")] = None
        return is_first

    def cluster_ip(self, address: IPv4Address | None, protocol: Protocol, port: int) -> IPv4Address | None:
        """The cluster IP, if it leads anywhere."""
        network = self.around.vantage.service_network
        if address is None or address not in network:
            self.left_out[Rejection(f"cluster IP {address}", f"is not in the service network {network}")] = None
            return None
        return address if self.holds((CLUSTER_IP, address, protocol, port)) else None

    def outside(self, address: IPv4Address, protocol: Protocol, port: int) -> bool:
        """Whether it has this external address for the port."""
        whose = self.around.vantage.whose(address)
        if whose:
            self.left_out[Rejection(f"external address {address}", f"is {whose}")] = None
        return not whose and self.holds((EXTERNAL_IP, address, protocol, port))

    def _objection(self, place: _EndpointAddress, port: int) -> str:
        address, vantage = place.address, self.around.vantage
        is_called = self.around.is_outside_ip(place.text) and not vantage.whose(address)
        if address in vantage.service_network or is_called:
            return "is an address of services, which is no endpoint"
        first, last = vantage.node_ports
        if first <= port <= last and address in vantage.nodes:
            return "is a node port, which is no endpoint"
        if not place.is_cluster:
            return ""
        pods = list(self.around.pods(place.text))
        if not pods:
            return "is in the cluster network, but no pod that lives has it"
        stranger = next((pod for pod in pods if vantage.vnid(pod.metadata.namespace) != self.vnid), None)
        if stranger is not None:
            return f"is a pod of the project {stranger.metadata.namespace}, which is not joined with {self.service[0]}"
        return ""


def external_addresses(service: Service) -> Iterator[IPv4Address]:
    """The addresses at which it is called from outside, if anything leads there."""
    if is_proxied(service):
        yield from external_ips(service)

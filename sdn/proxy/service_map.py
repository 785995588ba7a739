"""All services of the cluster as this node proxies them, and lookup of service ports by frontend. Pure.

The service map is updated change by change: a change recomputes only the services that depend on it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from ipaddress import IPv4Address
from types import MappingProxyType
from typing import Generic, TypeVar

from api.core.endpoints import SERVICE_LABEL, EndpointSlice
from api.core.services import Service
from api.network.types import PodAddress, node_ip, own_ip
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo, ServicePortName
from sdn.proxy.service_ports import (
    EMPTY,
    Frontend,
    Key,
    ProxyConfig,
    Rejection,
    ServiceState,
    external_ips,
    frontends,
    service_ports,
)

FrontendAddress = tuple[IPv4Address, Protocol, int]
"""Address, protocol and port to which a client connects."""


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """A connection of a client to a frontend. `from_host` is True if the client is a process of this node."""

    frontend: FrontendAddress
    client: IPv4Address
    from_host: bool


class FrontendLookup:
    """Service ports by frontend, and the endpoints that a connection may get.

    `config` tells which addresses have node ports, and which clients are pods. Without it there are neither.
    """

    def __init__(self, config: ProxyConfig | None = None) -> None:
        self.config = config
        self.ports: dict[ServicePortName, ServicePortInfo] = {}
        self._by_address: dict[FrontendAddress, ServicePortName] = {}
        self._by_node_port: dict[tuple[Protocol, int], ServicePortName] = {}

    def difference(self, ports: Iterable[ServicePortInfo]) -> ServicePortChange:
        """Return the change after which there are exactly these service ports."""
        desired = {port.key: port for port in ports}
        return ServicePortChange(
            removed=tuple(port for key, port in self.ports.items() if desired.get(key) != port),
            added=tuple(port for key, port in desired.items() if self.ports.get(key) != port),
        )

    def update(self, change: ServicePortChange) -> None:
        """Remove service ports, then add others."""
        for port in change.removed:
            self.ports.pop(port.key, None)
            for address in _frontend_addresses(port):
                if self._by_address.get(address) == port.key:
                    del self._by_address[address]
            if self._by_node_port.get((port.key.protocol, port.node_port)) == port.key:
                del self._by_node_port[port.key.protocol, port.node_port]
        for port in change.added:
            self.ports[port.key] = port
            self._by_address.update(dict.fromkeys(_frontend_addresses(port), port.key))
            if port.node_port:
                self._by_node_port[port.key.protocol, port.node_port] = port.key

    def find(self, frontend: FrontendAddress) -> ServicePortInfo | None:
        """Return the service port at a frontend."""
        address, protocol, number = frontend
        key = self._by_address.get(frontend)
        if key is None and self.config is not None and address in self.config.node_ips:
            key = self._by_node_port.get((protocol, number))
        return self.ports[key] if key is not None else None

    def endpoints(self, connection: ClientConnection) -> tuple[EndpointInfo, ...]:
        """Return the endpoints that a connection may get.

        An endpoint that is itself a frontend is not returned: connections to it could loop between nodes for ever. Pods
        do not get an endpoint at the address of a node that the node's firewall would not let them reach. At the node
        port of another node, with externalTrafficPolicy Local, that node selects the endpoint.
        """
        port = self.find(connection.frontend)
        if port is None:
            return ()
        is_pod = not connection.from_host and self._is_in_cluster_network(connection.client)
        if connection.frontend[0] == port.cluster_ip:
            endpoints = port.internal_endpoints
        elif is_pod and port.external_policy_local and self._is_other_node(connection.frontend[0]):
            endpoints = ()
        elif is_pod or connection.from_host:
            endpoints = port.cluster_endpoints
        else:
            endpoints = port.external_endpoints
        protocol = port.key.protocol
        return tuple(
            endpoint
            for endpoint in endpoints
            if self.find((endpoint.address, protocol, endpoint.port)) is None
            and not (is_pod and self._is_closed_to_pods(protocol, endpoint))
        )

    def _is_closed_to_pods(self, protocol: Protocol, endpoint: EndpointInfo) -> bool:
        """Return whether the endpoint is at the address of a node, and pods may not reach it there."""
        if endpoint.is_on_node or self.config is None or endpoint.address not in self.config.node_ips:
            return False
        open_ports = self.config.node.open_ports
        return open_ports is not None and (protocol.name.lower(), endpoint.port) not in open_ports

    def _is_other_node(self, ip: IPv4Address) -> bool:
        return self.config is not None and ip in self.config.node_ips and ip != self.config.node.address

    def _is_in_cluster_network(self, ip: IPv4Address) -> bool:
        return self.config is not None and self.config.is_in_cluster_network(ip)


def _frontend_addresses(port: ServicePortInfo) -> tuple[FrontendAddress, ...]:
    """Return the frontends of a service port, except for its node port."""
    addresses = port.external_ips if port.cluster_ip is None else (port.cluster_ip, *port.external_ips)
    return tuple((address, port.key.protocol, port.port) for address in addresses)


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class ServiceMap:
    """Services, EndpointSlices and pod addresses, and the service ports computed from them.

    Setters only record a change; `apply_changes` recomputes the services that depend on it. Implements ServiceIndex.
    `config` is the network for which the ports are computed, None before the first `set_config`.
    """

    def __init__(self) -> None:
        self.config: ProxyConfig | None = None
        self._services: dict[Key, Service] = {}
        self._slices: dict[Key, EndpointSlice] = {}
        self._pods: dict[Key, str] = {}
        """The address of each pod that has not ended, whether it is its own or its node's."""
        self._slices_by_service = _ReverseIndex[Key, Key]()
        self._pods_by_ip = _ReverseIndex[str, Key]()
        self._host_network_pods_by_ip = _ReverseIndex[str, Key]()
        self._services_by_endpoint = _ReverseIndex[str, Key]()
        self._services_by_frontend = _ReverseIndex[Frontend, Key]()
        self._services_by_external_ip = _ReverseIndex[str, Key]()
        self._changed: set[Key] = set()
        self._ports: dict[ServicePortName, ServicePortInfo] = {}
        self._states: dict[Key, ServiceState] = {}
        self._rejected: dict[Key, tuple[Rejection, ...]] = {}
        self._with_health_check: dict[Key, ServiceState] = {}

    @property
    def ports(self) -> Mapping[ServicePortName, ServicePortInfo]:
        """All service ports as of the last `apply_changes`."""
        return MappingProxyType(self._ports)

    @property
    def states(self) -> Mapping[Key, ServiceState]:
        """The services that have ports or rejections."""
        return MappingProxyType(self._states)

    @property
    def rejected(self) -> Mapping[Key, tuple[Rejection, ...]]:
        """Rejections by service, for the services that have some."""
        return MappingProxyType(self._rejected)

    @property
    def with_health_check(self) -> Mapping[Key, ServiceState]:
        """The services that have a healthCheckNodePort."""
        return MappingProxyType(self._with_health_check)

    def service(self, key: Key) -> Service | None:
        """Return the Service object."""
        return self._services.get(key)

    def set_config(self, config: ProxyConfig) -> None:
        """Set the network. Only services that a difference concerns are computed again.

        A changed VNID concerns the services of its project and those with an endpoint that is a pod of the project; a
        new or removed node address concerns the services with an endpoint or an external IP there. Any other
        difference concerns all services.
        """
        before, self.config = self.config, config
        if before is None or not config.differs_in_vnids_and_nodes_only(before):
            self._changed.update(self._services)
            return
        projects = config.projects_with_another_vnid(before)
        if projects:
            self._changed.update(key for key in self._services if key[0] in projects)
            for key, ip in self._pods.items():
                if key[0] in projects:
                    self._changed.update(self._services_by_endpoint[ip])
        for ip in map(str, config.node_ips ^ before.node_ips):
            self._changed.update(self._services_by_endpoint[ip], self._services_by_external_ip[ip])

    def set_service(self, key: Key, service: Service | None) -> None:
        """Add, replace or, with None, remove a service."""
        before = self._services.pop(key, None)
        self._index_frontends(key, before, service)
        if service is not None:
            self._services[key] = service
        self._changed.add(key)

    def set_slice(self, key: Key, endpoint_slice: EndpointSlice | None) -> None:
        """Add, replace or, with None, remove an EndpointSlice."""
        before = self._slices.pop(key, None)
        if endpoint_slice is not None:
            self._slices[key] = endpoint_slice
        self._slices_by_service.assign(key, _service_of(endpoint_slice))
        self._changed.update(_service_of(before), _service_of(endpoint_slice))

    def set_pod(self, key: Key, pod: PodAddress | None) -> None:
        """Add, replace or, with None, remove the address of a pod."""
        own, host = (own_ip(pod), node_ip(pod)) if pod is not None else ("", "")
        before = self._pods.pop(key, "")
        if own or host:
            self._pods[key] = own or host
        for index, ip in ((self._pods_by_ip, own), (self._host_network_pods_by_ip, host)):
            if index.assign(key, (ip,) if ip else ()):
                self._changed.update(self._services_by_endpoint[before], self._services_by_endpoint[ip])

    def apply_changes(self) -> ServicePortChange:
        """Recompute the changed services, and return the change of their ports. Does nothing without a network."""
        if self.config is None:
            return ServicePortChange()
        removed: dict[ServicePortName, ServicePortInfo] = {}
        added: dict[ServicePortName, ServicePortInfo] = {}
        for key in sorted(self._changed):
            before = self._states.get(key, EMPTY)
            after = self._recompute(key, self.config)
            for name in before.ports.keys() | after.ports.keys():
                old, new = before.ports.get(name), after.ports.get(name)
                if old == new:
                    continue
                if old is not None:
                    removed[name] = self._ports.pop(name)
                if new is not None:
                    added[name] = self._ports[name] = new
        self._changed.clear()
        return ServicePortChange(tuple(removed.values()), tuple(added.values()))

    def _recompute(self, key: Key, config: ProxyConfig) -> ServiceState:
        slices = [self._slices[slice_key] for slice_key in sorted(self._slices_by_service[key])]
        self._index_endpoints(key, slices)
        service = self._services.get(key)
        state = EMPTY if service is None else service_ports(service, slices, config, self)
        for collection in (self._states, self._rejected, self._with_health_check):
            collection.pop(key, None)
        if state != EMPTY:
            self._states[key] = state
        if state.rejected:
            self._rejected[key] = state.rejected
        if state.health_port:
            self._with_health_check[key] = state
        return state

    def _index_endpoints(self, key: Key, slices: Iterable[EndpointSlice]) -> None:
        """Record the addresses of all endpoints of a service, including those that are rejected."""
        addresses = (
            address
            for endpoint_slice in slices
            for endpoint in endpoint_slice.endpoints
            for address in endpoint.addresses[:1]
        )
        self._services_by_endpoint.assign(key, addresses)

    def _index_frontends(self, key: Key, before: Service | None, after: Service | None) -> None:
        """Record the frontends that a service claims. Other services that claim one of them are recomputed."""
        old = frontends(before) if before is not None else frozenset()
        new = frontends(after) if after is not None else frozenset()
        self._services_by_frontend.assign(key, new)
        for frontend in old | new:
            self._changed.update(self._services_by_frontend[frontend])
        old_ips = set(map(str, external_ips(before))) if before is not None else set()
        new_ips = set(map(str, external_ips(after))) if after is not None else set()
        self._services_by_external_ip.assign(key, new_ips)
        for ip in old_ips ^ new_ips:
            self._changed.update(self._services_by_endpoint[ip])

    def projects_with_ip(self, ip: str) -> Sequence[str]:
        """Return the projects of the pods with this address of the cluster network that have not ended, sorted."""
        return sorted(namespace for namespace, _ in self._pods_by_ip[ip])

    def host_network_projects(self, ip: str) -> Set[str]:
        """Return the projects that have a pod in the network of the node with this address."""
        return {namespace for namespace, _ in self._host_network_pods_by_ip[ip]}

    def owner_of_frontend(self, frontend: Frontend) -> Key:
        """Return the oldest service that claims a frontend."""
        return min(self._services_by_frontend[frontend], key=self._age)

    def _age(self, key: Key) -> tuple[str, Key]:
        return self._services[key].metadata.creation_timestamp or "", key

    def is_external_ip(self, ip: str) -> bool:
        """Return True if a service has this external IP."""
        return ip in self._services_by_external_ip


class _ReverseIndex(Generic[K, V]):
    """Values by key, where each value is assigned to a set of keys.

    Nearly all keys have one value, and nearly all values few keys. A set for each would take most of the memory.
    """

    def __init__(self) -> None:
        self._values: dict[K, V] = {}
        """The first value of each key."""
        self._more: dict[K, set[V]] = {}
        """All values of the keys that have several."""
        self._keys: dict[V, tuple[K, ...]] = {}

    def __getitem__(self, key: K) -> Set[V]:
        several = self._more.get(key)
        if several is not None:
            return several
        return frozenset((self._values[key],)) if key in self._values else frozenset()

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def assign(self, value: V, keys: Iterable[K]) -> bool:
        """Assign a value to these keys, and to no others. Return whether that is a change."""
        after, before = tuple(dict.fromkeys(keys)), self._keys.pop(value, ())
        if after != before:
            for key in set(before).difference(after):
                self._remove(key, value)
            for key in set(after).difference(before):
                self._add(key, value)
        if after:
            self._keys[value] = after
        return after != before

    def _add(self, key: K, value: V) -> None:
        if key in self._more:
            self._more[key].add(value)
        elif self._values.setdefault(key, value) is not value:
            self._more[key] = {self._values[key], value}

    def _remove(self, key: K, value: V) -> None:
        several = self._more.get(key)
        if several is None:
            del self._values[key]
            return
        several.discard(value)
        self._values[key] = next(iter(several))
        if len(several) == 1:
            del self._more[key]


def _service_of(endpoint_slice: EndpointSlice | None) -> tuple[Key, ...]:
    """Return the key of the service that the slice's label names, or nothing."""
    if endpoint_slice is None:
        return ()
    name = endpoint_slice.metadata.labels.get(SERVICE_LABEL)
    return ((endpoint_slice.metadata.namespace, name),) if name else ()

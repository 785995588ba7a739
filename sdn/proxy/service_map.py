"""All services of the node, updated change by change, and lookup of service ports by frontend. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from ipaddress import IPv4Address
from types import MappingProxyType
from typing import Generic, TypeVar

from api.core.endpoints import SERVICE_LABEL, EndpointSlice
from api.core.services import Service
from api.network.types import PodAddress, own_ip
from sdn.model.service_port import EndpointInfo, Protocol, ServicePortChange, ServicePortInfo, ServicePortName
from sdn.proxy.service_ports import (
    NOTHING,
    Frontend,
    Key,
    ProxyConfig,
    Rejection,
    ServiceIndex,
    ServiceState,
    external_addresses,
    frontends,
    service_ports,
)

FrontendAddress = tuple[IPv4Address, Protocol, int]
"""An address, a protocol and a port at which callers find a service."""


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """Somebody at `client` calls a front; `is_own` tells that it is a process of this node."""

    front: FrontendAddress
    client: IPv4Address
    is_own: bool


class FrontendLookup:
    """`is_cluster` tells the addresses of pods and gateways, `is_node` those of nodes under the tunnels."""

    def __init__(self, is_cluster: Callable[[IPv4Address], bool], is_node: Callable[[IPv4Address], bool]) -> None:
        self.ports: dict[ServicePortName, ServicePortInfo] = {}
        self._is_cluster = is_cluster
        self._is_node = is_node
        self._fronts: dict[FrontendAddress, ServicePortName] = {}
        self._node_ports: dict[tuple[Protocol, int], ServicePortName] = {}

    def difference(self, ports: Iterable[ServicePortInfo]) -> ServicePortChange:
        """What has to change so that exactly these are served."""
        wished = {port.key: port for port in ports}
        return ServicePortChange(
            removed=tuple(port for key, port in self.ports.items() if wished.get(key) != port),
            added=tuple(port for key, port in wished.items() if self.ports.get(key) != port),
        )

    def edit(self, change: ServicePortChange) -> None:
        """Forget what has gone, then learn what has come."""
        for port in change.removed:
            self.ports.pop(port.key, None)
            for front in _frontends_of(port):
                if self._fronts.get(front) == port.key:
                    del self._fronts[front]
            if self._node_ports.get((port.key.protocol, port.node_port)) == port.key:
                del self._node_ports[port.key.protocol, port.node_port]
        for port in change.added:
            self.ports[port.key] = port
            self._fronts.update(dict.fromkeys(_frontends_of(port), port.key))
            if port.node_port:
                self._node_ports[port.key.protocol, port.node_port] = port.key

    def find(self, front: FrontendAddress) -> ServicePortInfo | None:
        """The port that is served there."""
        address, protocol, number = front
        key = self._fronts.get(front)
        if key is None and self._is_node(address):
            key = self._node_ports.get((protocol, number))
        return None if key is None else self.ports[key]

    def backends(self, call: ClientConnection) -> tuple[EndpointInfo, ...]:
        """Those that may answer; none where nothing is served.

        An endpoint that is itself a front is left out: connections could go round between nodes for ever.
        """
        port = self.find(call.front)
        if port is None:
            return ()
        if call.front[0] == port.cluster_ip:
            found = port.internal_endpoints
        elif call.is_own or self._is_cluster(call.client):
            found = port.cluster_endpoints
        else:
            found = port.external_endpoints
        protocol = port.key.protocol
        return tuple(one for one in found if self.find((one.address, protocol, one.port)) is None)


def _frontends_of(port: ServicePortInfo) -> tuple[FrontendAddress, ...]:
    addresses = port.external_ips if port.cluster_ip is None else (port.cluster_ip, *port.external_ips)
    return tuple((address, port.key.protocol, port.port) for address in addresses)


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class ServiceMap:
    """`ports` are what is served as of the last `settle`, `served` the same by service, with what is left out."""

    def __init__(self) -> None:
        self._vantage: ProxyConfig | None = None
        self._services: dict[Key, Service] = {}
        self._slices: dict[Key, EndpointSlice] = {}
        self._pods: dict[Key, PodAddress] = {}
        self._slices_of = _ReverseIndex[Key, Key]()
        self._pods_at = _ReverseIndex[str, Key]()
        self._leading_to = _ReverseIndex[str, Key]()
        self._asking = _ReverseIndex[Frontend, Key]()
        self._called_at = _ReverseIndex[str, Key]()
        self._stale: set[Key] = set()
        self._ports: dict[ServicePortName, ServicePortInfo] = {}
        self._served: dict[Key, ServiceState] = {}
        self._left_out: dict[Key, tuple[Rejection, ...]] = {}
        self._checked: dict[Key, ServiceState] = {}

    @property
    def ports(self) -> Mapping[ServicePortName, ServicePortInfo]:
        """By key."""
        return MappingProxyType(self._ports)

    @property
    def served(self) -> Mapping[Key, ServiceState]:
        """By namespace and name, all services of which anything is served or left out."""
        return MappingProxyType(self._served)

    @property
    def left_out(self) -> Mapping[Key, tuple[Rejection, ...]]:
        """What is left out, by service."""
        return MappingProxyType(self._left_out)

    @property
    def checked(self) -> Mapping[Key, ServiceState]:
        """The services that have a healthCheckNodePort."""
        return MappingProxyType(self._checked)

    def set_vantage(self, vantage: ProxyConfig) -> None:
        """Set the network as this node sees it. Only services that a difference concerns are computed again.

        A changed VNID concerns the services of its project and those with an endpoint that is a pod of the project; a
        new or removed node address concerns the services with an endpoint or an external address there. Any other
        difference concerns all services.
        """
        before, self._vantage = self._vantage, vantage
        if before is None or not vantage.differs_in_vnids_and_nodes_only(before):
            self._stale.update(self._services)
            return
        projects = vantage.projects_with_another_vnid(before)
        if projects:
            self._stale.update(key for key in self._services if key[0] in projects)
            for key, pod in self._pods.items():
                if key[0] in projects:
                    self._stale.update(self._leading_to[own_ip(pod)])
        for address in map(str, vantage.nodes ^ before.nodes):
            self._stale.update(self._leading_to[address], self._called_at[address])

    def set_service(self, key: Key, service: Service | None) -> None:
        """It came or changed; None: it is gone."""
        before = self._services.pop(key, None)
        self._ask(key, before, service)
        if service is not None:
            self._services[key] = service
        self._stale.add(key)

    def set_slice(self, key: Key, one: EndpointSlice | None) -> None:
        """It came or changed; None: it is gone."""
        before = self._slices.pop(key, None)
        if one is not None:
            self._slices[key] = one
        self._slices_of.assign(key, _service_of(one))
        self._stale.update(_service_of(before), _service_of(one))

    def set_pod(self, key: Key, pod: PodAddress | None) -> None:
        """It came or changed; None: it is gone."""
        before = self._pods.pop(key, None)
        if pod is not None:
            self._pods[key] = pod
        had = own_ip(before) if before is not None else ""
        has = own_ip(pod) if pod is not None else ""
        if had != has:
            self._pods_at.assign(key, (has,) if has else ())
            self._stale.update(self._leading_to[had], self._leading_to[has])

    def settle(self) -> ServicePortChange:
        """What became of the ports since the last time; nothing before there is a vantage."""
        if self._vantage is None:
            return ServicePortChange()
        around = ServiceIndex(self._vantage, self._pods_with, self._first_asking, self._called_at.__contains__)
        gone: dict[ServicePortName, ServicePortInfo] = {}
        come: dict[ServicePortName, ServicePortInfo] = {}
        for key in sorted(self._stale):
            before = self._served.pop(key, NOTHING)
            self._left_out.pop(key, None)
            self._checked.pop(key, None)
            now = self._work_out(key, around)
            for name in before.ports.keys() | now.ports.keys():
                old, new = before.ports.get(name), now.ports.get(name)
                if old == new:
                    continue
                if old is not None:
                    gone[name] = self._ports.pop(name)
                if new is not None:
                    come[name] = self._ports[name] = new
        self._stale.clear()
        return ServicePortChange(tuple(gone.values()), tuple(come.values()))

    def _work_out(self, key: Key, around: ServiceIndex) -> ServiceState:
        slices = [self._slices[one] for one in sorted(self._slices_of[key])]
        self._lead(key, slices)
        service = self._services.get(key)
        if service is None:
            return NOTHING
        served = service_ports(service, slices, around)
        if served != NOTHING:
            self._served[key] = served
        if served.health_port:
            self._checked[key] = served
        if served.left_out:
            self._left_out[key] = served.left_out
        return served

    def _lead(self, key: Key, slices: Iterable[EndpointSlice]) -> None:
        """Note where the endpoints of a service lie, whether or not they are served."""
        self._leading_to.assign(key, (text for one in slices for row in one.endpoints for text in row.addresses[:1]))

    def _ask(self, key: Key, before: Service | None, now: Service | None) -> None:
        """Keep who asks for which front; who else asks for one is worked out anew."""
        old = frontends(before) if before is not None else frozenset()
        new = frontends(now) if now is not None else frozenset()
        self._asking.assign(key, new)
        for front in old | new:
            self._stale.update(self._asking[front])
        had = set(map(str, external_addresses(before))) if before is not None else set()
        has = set(map(str, external_addresses(now))) if now is not None else set()
        self._called_at.assign(key, has)
        for address in had ^ has:
            self._stale.update(self._leading_to[address])

    def _first_asking(self, front: Frontend) -> Key:
        """The oldest of the services that ask for a front."""
        return min(self._asking[front], key=self._age)

    def _age(self, key: Key) -> tuple[str, Key]:
        return self._services[key].metadata.creation_timestamp or "", key

    def _pods_with(self, address: str) -> Iterator[PodAddress]:
        return (self._pods[key] for key in sorted(self._pods_at[address]))


class _ReverseIndex(Generic[K, V]):
    """What belongs to a key, both ways."""

    def __init__(self) -> None:
        self._values: dict[K, set[V]] = {}
        self._keys: dict[V, frozenset[K]] = {}

    def __getitem__(self, key: K) -> Set[V]:
        return self._values.get(key, frozenset())

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def assign(self, value: V, keys: Iterable[K]) -> None:
        """The value belongs to these keys, and to no others any more."""
        now, before = frozenset(keys), self._keys.pop(value, frozenset())
        for key in before - now:
            self._values[key].discard(value)
            if not self._values[key]:
                del self._values[key]
        for key in now - before:
            self._values.setdefault(key, set()).add(value)
        if now:
            self._keys[value] = now


def _service_of(one: EndpointSlice | None) -> Iterable[Key]:
    """The service that its label names, if there is one."""
    name = one.metadata.labels.get(SERVICE_LABEL) if one is not None else None
    return ((one.metadata.namespace, name),) if one is not None and name else ()

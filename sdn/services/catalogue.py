"""All ports that this node serves, kept up with the API: a change costs what it concerns. Pure.

Whoever follows the API tells of each object that came, changed or went; `settle` works out anew the services that this
concerns, and nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import Generic, TypeVar

from api.core.endpoints import SERVICE_LABEL, EndpointSlice
from api.core.services import Service
from api.network.types import PodAddress, owned_address
from sdn.services.served_port import PortChange, PortKey, ServedPort
from sdn.services.serving import (
    NOTHING,
    Around,
    Front,
    Key,
    LeftOut,
    Served,
    Vantage,
    fronts,
    outside_addresses,
    serve,
)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class Catalogue:
    """`ports` are what is served as of the last `settle`, `served` the same by service, with what is left out."""

    def __init__(self) -> None:
        self._vantage: Vantage | None = None
        self._services: dict[Key, Service] = {}
        self._slices: dict[Key, EndpointSlice] = {}
        self._pods: dict[Key, PodAddress] = {}
        self._slices_of = _Index[Key, Key]()
        self._pods_at = _Index[str, Key]()
        self._leading_to = _Index[str, Key]()
        self._asking = _Index[Front, Key]()
        self._called_at = _Index[str, Key]()
        self._stale: set[Key] = set()
        self._ports: dict[PortKey, ServedPort] = {}
        self._served: dict[Key, Served] = {}
        self._left_out: dict[Key, tuple[LeftOut, ...]] = {}
        self._checked: dict[Key, Served] = {}

    @property
    def ports(self) -> Mapping[PortKey, ServedPort]:
        """By key."""
        return MappingProxyType(self._ports)

    @property
    def served(self) -> Mapping[Key, Served]:
        """By namespace and name, all services of which anything is served or left out."""
        return MappingProxyType(self._served)

    @property
    def left_out(self) -> Mapping[Key, tuple[LeftOut, ...]]:
        """What is left out, by service."""
        return MappingProxyType(self._left_out)

    @property
    def checked(self) -> Mapping[Key, Served]:
        """The services that have a healthCheckNodePort."""
        return MappingProxyType(self._checked)

    def set_vantage(self, vantage: Vantage) -> None:
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
                    self._stale.update(self._leading_to[owned_address(pod)])
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
        had = owned_address(before) if before is not None else ""
        has = owned_address(pod) if pod is not None else ""
        if had != has:
            self._pods_at.assign(key, (has,) if has else ())
            self._stale.update(self._leading_to[had], self._leading_to[has])

    def settle(self) -> PortChange:
        """What became of the ports since the last time; nothing before there is a vantage."""
        if self._vantage is None:
            return PortChange()
        around = Around(self._vantage, self._pods_with, self._first_asking, self._called_at.__contains__)
        gone: dict[PortKey, ServedPort] = {}
        come: dict[PortKey, ServedPort] = {}
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
        return PortChange(tuple(gone.values()), tuple(come.values()))

    def _work_out(self, key: Key, around: Around) -> Served:
        slices = [self._slices[one] for one in sorted(self._slices_of[key])]
        self._lead(key, slices)
        service = self._services.get(key)
        if service is None:
            return NOTHING
        served = serve(service, slices, around)
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
        old = fronts(before) if before is not None else frozenset()
        new = fronts(now) if now is not None else frozenset()
        self._asking.assign(key, new)
        for front in old | new:
            self._stale.update(self._asking[front])
        had = set(map(str, outside_addresses(before))) if before is not None else set()
        has = set(map(str, outside_addresses(now))) if now is not None else set()
        self._called_at.assign(key, has)
        for address in had ^ has:
            self._stale.update(self._leading_to[address])

    def _first_asking(self, front: Front) -> Key:
        """The oldest of the services that ask for a front."""
        return min(self._asking[front], key=self._age)

    def _age(self, key: Key) -> tuple[str, Key]:
        return self._services[key].metadata.creation_timestamp or "", key

    def _pods_with(self, address: str) -> Iterator[PodAddress]:
        return (self._pods[key] for key in sorted(self._pods_at[address]))


class _Index(Generic[K, V]):
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

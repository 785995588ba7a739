"""Services and their endpoints by name and by address, updated object by object. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointSlice
from api.core.services import HEADLESS, Service

Key = tuple[str, str]
"""Namespace and name."""


class ServiceStore:
    """`revision` grows with every change; `ready`, to be set once a first state is complete.

    A change of a service, or of one of its slices, costs what that service is large, however many others there are.
    """

    def __init__(self) -> None:
        self.ready = False
        self.revision = 0
        self._services: dict[str, dict[str, Service]] = {}
        self._slices: dict[Key, EndpointSlice] = {}
        self._slices_of: dict[Key, dict[str, EndpointSlice]] = {}
        self._owners: dict[str, dict[Key, None]] = {}
        self._owned: dict[Key, frozenset[str]] = {}

    def replace(self, services: Iterable[Service], slices: Iterable[EndpointSlice]) -> None:
        """Hold these, and nothing else; from now on it is `ready`."""
        self._services, self._slices, self._slices_of, self._owners, self._owned = {}, {}, {}, {}, {}
        for service in services:
            self._services.setdefault(service.metadata.namespace, {})[service.metadata.name] = service
        for item in filter(_is_known_form, slices):
            self._keep(item)
        for namespace, named in self._services.items():
            for name in named:
                self._own((namespace, name))
        self.ready = True
        self.revision += 1

    def put_service(self, key: Key, service: Service | None) -> None:
        """There is this service under the key now, or (None) no more."""
        namespace, name = key
        if service is not None:
            self._services.setdefault(namespace, {})[name] = service
        elif name in self._services.get(namespace, {}):
            del self._services[namespace][name]
            if not self._services[namespace]:
                del self._services[namespace]
        self._own(key)
        self.revision += 1

    def put_slice(self, key: Key, item: EndpointSlice | None) -> None:
        """There is this slice under the key now, or (None) no more."""
        before = self._slices.pop(key, None)
        touched = set()
        if before is not None:
            owner = _owner(before)
            self._slices_of[owner].pop(key[1])
            if not self._slices_of[owner]:
                del self._slices_of[owner]
            touched.add(owner)
        if item is not None and _is_known_form(item):
            self._keep(item)
            touched.add(_owner(item))
        for owner in touched:
            self._own(owner)
        self.revision += 1

    def namespaces(self) -> Iterator[str]:
        """Those that have services."""
        return iter(self._services)

    def has(self, namespace: str) -> bool:
        """Whether it has services."""
        return namespace in self._services

    def services(self, namespace: str) -> Iterator[Service]:
        """Those of one namespace."""
        return iter(self._services.get(namespace, {}).values())

    def service(self, namespace: str, name: str) -> Service | None:
        """The one of this name."""
        return self._services.get(namespace, {}).get(name)

    def slices(self, namespace: str, name: str) -> Iterator[EndpointSlice]:
        """Where a service leads, as far as IPv4 goes."""
        return iter(self._slices_of.get((namespace, name), {}).values())

    def owners(self, address: str) -> tuple[Key, ...]:
        """The services whose cluster IP this is, or whose endpoints have it as part of their name."""
        return tuple(self._owners.get(address, ()))

    def _keep(self, item: EndpointSlice) -> None:
        self._slices[item.metadata.namespace, item.metadata.name] = item
        self._slices_of.setdefault(_owner(item), {})[item.metadata.name] = item

    def _own(self, key: Key) -> None:
        """Note the addresses that lead back to this service's names."""
        service = self.service(*key)
        found = frozenset() if service is None else frozenset(self._named_addresses(service))
        before = self._owned.pop(key, frozenset())
        for address in before - found:
            del self._owners[address][key]
            if not self._owners[address]:
                del self._owners[address]
        for address in found - before:
            self._owners.setdefault(address, {})[key] = None
        if found:
            self._owned[key] = found

    def _named_addresses(self, service: Service) -> Iterator[str]:
        if service.spec.cluster_ip not in ("", HEADLESS):
            yield service.spec.cluster_ip
        is_headless = service.spec.cluster_ip == HEADLESS
        for endpoint in endpoints(self, service):
            if is_headless or endpoint.hostname:
                yield endpoint.addresses[0]


def endpoints(directory: ServiceStore, service: Service) -> Iterator[Endpoint]:
    """Those of all its slices that are published."""
    for item in directory.slices(service.metadata.namespace, service.metadata.name):
        yield from published(item, service)


def published(item: EndpointSlice, service: Service) -> Iterator[Endpoint]:
    """Those of a slice that are ready, or all with publishNotReadyAddresses."""
    for endpoint in item.endpoints:
        is_ready = endpoint.conditions.ready is not False or service.spec.publish_not_ready_addresses
        if endpoint.addresses and is_ready:
            yield endpoint


def _is_known_form(item: EndpointSlice) -> bool:
    return item.address_type == "IPv4" and bool(item.metadata.labels.get(SERVICE_LABEL))


def _owner(item: EndpointSlice) -> Key:
    return item.metadata.namespace, item.metadata.labels[SERVICE_LABEL]

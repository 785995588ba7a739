"""Services and their EndpointSlices by name and by address, updated object by object. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointSlice
from api.core.services import HEADLESS, Service

Key = tuple[str, str]
"""Namespace and name."""


class ServiceStore:
    """Services and EndpointSlices, with an index of their addresses for reverse lookups.

    `revision` grows with every change. `ready` is set by the owner when the first state is complete.

    The cost of a change depends on the size of its service only, not on the number of services.
    """

    def __init__(self) -> None:
        self.ready = False
        self.revision = 0
        self._services: dict[str, dict[str, Service]] = {}
        self._slices: dict[Key, EndpointSlice] = {}
        # Most of these have one entry. Dictionaries and sets would take four times as much memory as tuples.
        self._slices_by_service: dict[Key, tuple[EndpointSlice, ...]] = {}
        self._services_by_address: dict[str, tuple[Key, ...]] = {}
        self._addresses_by_service: dict[Key, tuple[str, ...]] = {}

    def replace(self, services: Iterable[Service], slices: Iterable[EndpointSlice]) -> None:
        """Replace all contents, and set `ready`."""
        self._services = {}
        self._slices = {}
        self._slices_by_service = {}
        self._services_by_address = {}
        self._addresses_by_service = {}
        for service in services:
            self._services.setdefault(service.metadata.namespace, {})[service.metadata.name] = service
        for endpoint_slice in filter(_is_supported, slices):
            self._add_slice(endpoint_slice)
        for namespace, by_name in self._services.items():
            for name in by_name:
                self._index_addresses((namespace, name))
        self.ready = True
        self.revision += 1

    def put_service(self, key: Key, service: Service | None) -> None:
        """Add, replace or, with None, remove a service."""
        namespace, name = key
        if service is not None:
            self._services.setdefault(namespace, {})[name] = service
        elif name in self._services.get(namespace, {}):
            del self._services[namespace][name]
            if not self._services[namespace]:
                del self._services[namespace]
        self._index_addresses(key)
        self.revision += 1

    def put_slice(self, key: Key, endpoint_slice: EndpointSlice | None) -> None:
        """Add, replace or, with None, remove an EndpointSlice."""
        before = self._slices.pop(key, None)
        changed: set[Key] = set()
        if before is not None:
            owner = _owner(before)
            self._set_slices(owner, (each for each in self._slices_by_service[owner] if each is not before))
            changed.add(owner)
        if endpoint_slice is not None and _is_supported(endpoint_slice):
            self._add_slice(endpoint_slice)
            changed.add(_owner(endpoint_slice))
        for owner in changed:
            self._index_addresses(owner)
        self.revision += 1

    def namespaces(self) -> Iterator[str]:
        """Yield the namespaces that have services."""
        return iter(self._services)

    def has_services(self, namespace: str) -> bool:
        """Return True if the namespace has services."""
        return namespace in self._services

    def services(self, namespace: str) -> Iterator[Service]:
        """Yield the services of a namespace."""
        return iter(self._services.get(namespace, {}).values())

    def service(self, namespace: str, name: str) -> Service | None:
        """Return a service by name."""
        return self._services.get(namespace, {}).get(name)

    def slices(self, namespace: str, name: str) -> Iterator[EndpointSlice]:
        """Yield the IPv4 slices of a service."""
        return iter(self._slices_by_service.get((namespace, name), ()))

    def services_at(self, address: str) -> tuple[Key, ...]:
        """Return the services with this cluster IP, and those with an endpoint here whose name has the address."""
        return self._services_by_address.get(address, ())

    def _add_slice(self, endpoint_slice: EndpointSlice) -> None:
        owner = _owner(endpoint_slice)
        self._slices[endpoint_slice.metadata.namespace, endpoint_slice.metadata.name] = endpoint_slice
        self._slices_by_service[owner] = (*self._slices_by_service.get(owner, ()), endpoint_slice)

    def _set_slices(self, owner: Key, slices: Iterable[EndpointSlice]) -> None:
        remaining = tuple(slices)
        if remaining:
            self._slices_by_service[owner] = remaining
        else:
            del self._slices_by_service[owner]

    def _index_addresses(self, key: Key) -> None:
        """Record the addresses that have names of this service."""
        service = self.service(*key)
        after = () if service is None else tuple(dict.fromkeys(self._named_addresses(service)))
        before = self._addresses_by_service.pop(key, ())
        if after != before:
            for address in set(before).difference(after):
                remaining = tuple(each for each in self._services_by_address[address] if each != key)
                if remaining:
                    self._services_by_address[address] = remaining
                else:
                    del self._services_by_address[address]
            for address in set(after).difference(before):
                self._services_by_address[address] = (*self._services_by_address.get(address, ()), key)
        if after:
            self._addresses_by_service[key] = after

    def _named_addresses(self, service: Service) -> Iterator[str]:
        if service.spec.cluster_ip not in ("", HEADLESS):
            yield service.spec.cluster_ip
        is_headless = service.spec.cluster_ip == HEADLESS
        for endpoint in published_endpoints(self, service):
            if is_headless or endpoint.hostname:
                yield endpoint.addresses[0]


def published_endpoints(store: ServiceStore, service: Service) -> Iterator[Endpoint]:
    """Yield the endpoints of all slices of a service that have names."""
    for endpoint_slice in store.slices(service.metadata.namespace, service.metadata.name):
        yield from published(endpoint_slice, service)


def published(endpoint_slice: EndpointSlice, service: Service) -> Iterator[Endpoint]:
    """Yield the endpoints of a slice that are ready, or all endpoints with publishNotReadyAddresses."""
    for endpoint in endpoint_slice.endpoints:
        is_ready = endpoint.conditions.ready is not False or service.spec.publish_not_ready_addresses
        if endpoint.addresses and is_ready:
            yield endpoint


def _is_supported(endpoint_slice: EndpointSlice) -> bool:
    return endpoint_slice.address_type == "IPv4" and bool(endpoint_slice.metadata.labels.get(SERVICE_LABEL))


def _owner(endpoint_slice: EndpointSlice) -> Key:
    return endpoint_slice.metadata.namespace, endpoint_slice.metadata.labels[SERVICE_LABEL]

"""Endpoints and EndpointSlice: the addresses and ports behind a Service. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from api.meta.types import Object, ObjectReference, Value
from api.meta.values import Int32

SERVICE_LABEL = "kubernetes.io/service-name"
"""Label of an EndpointSlice: the service to which it belongs."""

MAX_ENDPOINTS_PER_SLICE = 1000


class EndpointAddress(Value, frozen=True):
    """An address, and the pod and node that have it."""

    ip: str = ""
    hostname: str = ""
    node_name: str | None = None
    target_ref: ObjectReference | None = None


class EndpointPort(Value, frozen=True):
    """A port that is open at all addresses of its subset."""

    port: Int32 = 0
    name: str = ""
    protocol: str = ""
    app_protocol: str | None = None


class SlicePort(Value, frozen=True):
    """A port that is open at all addresses of its slice. Service proxies ignore a port whose `name` is null."""

    port: int = 0
    name: str | None = None
    protocol: str = ""
    app_protocol: str | None = None


def slice_ports(ports: tuple[EndpointPort, ...]) -> tuple[SlicePort, ...]:
    """Return ports of Endpoints as ports of an EndpointSlice."""
    return tuple(SlicePort(port.port, port.name, port.protocol, port.app_protocol) for port in ports)


class EndpointSubset(Value, frozen=True):
    """Addresses and ports. Every port is open at every address."""

    addresses: tuple[EndpointAddress, ...] = ()
    not_ready_addresses: tuple[EndpointAddress, ...] = ()
    ports: tuple[EndpointPort, ...] = ()


class Endpoints(Object, frozen=True):
    """The endpoints of the service with the same name."""

    API_VERSION = "v1"
    KIND = "Endpoints"
    PLURAL = "endpoints"
    NAMESPACED = True

    subsets: tuple[EndpointSubset, ...] = ()


class EndpointConditions(Value, frozen=True):
    """The conditions of an endpoint.

    `serving` is like `ready`, but does not depend on `terminating`. A null `ready` means ready, a null `terminating`
    means not terminating. A null `serving` means the same as `ready`.
    """

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Endpoint(Value, frozen=True):
    """An endpoint. Only the first of its addresses is used."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    hostname: str | None = None
    node_name: str | None = None
    zone: str | None = None
    target_ref: ObjectReference | None = None
    deprecated_topology: dict[str, str] = {}
    hints: dict[str, list[dict[str, str]]] | None = None


class EndpointSlice(Object, frozen=True):
    """A part of the endpoints of a service, which the label `kubernetes.io/service-name` names."""

    API_VERSION = "discovery.k8s.io/v1"
    KIND = "EndpointSlice"
    PLURAL = "endpointslices"
    NAMESPACED = True

    address_type: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    ports: tuple[SlicePort, ...] = ()


class EndpointSliceV1beta1(EndpointSlice, frozen=True):
    """An EndpointSlice of v1beta1. Its endpoints do not have `node_name`."""

    API_VERSION = "discovery.k8s.io/v1beta1"
    PLURAL = "endpointslices"
    NAMESPACED = True


def endpoints_defaults(endpoints: Endpoints) -> Endpoints:
    """Return the Endpoints with the protocol of every port set."""
    subsets = tuple(
        replace(subset, ports=tuple(replace(port, protocol=port.protocol or "TCP") for port in subset.ports))
        for subset in endpoints.subsets
    )
    return replace(endpoints, subsets=subsets)


def endpoint_slice_defaults(endpoint_slice: EndpointSlice) -> EndpointSlice:
    """Return the EndpointSlice with the name and the protocol of every port set."""
    ports = tuple(replace(port, name=port.name or "", protocol=port.protocol or "TCP") for port in endpoint_slice.ports)
    return replace(endpoint_slice, ports=ports)

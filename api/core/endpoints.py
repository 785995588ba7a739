"""Endpoints and EndpointSlice: the addresses and ports behind a Service. Pure."""

from __future__ import annotations

import msgspec

from api.meta.types import Object, ObjectReference, Value

SERVICE_LABEL = "kubernetes.io/service-name"
"""Label of a slice: the service that it belongs to."""

MOST_IN_A_SLICE = 1000


class EndpointAddress(Value, frozen=True):
    """An address, and the pod and node that have it."""

    ip: str = ""
    hostname: str = ""
    node_name: str | None = None
    target_ref: ObjectReference | None = None


class EndpointPort(Value, frozen=True):
    """A port that is open at all addresses of its subset."""

    port: int = 0
    name: str = ""
    protocol: str = ""
    app_protocol: str | None = None


class SlicePort(Value, frozen=True):
    """A port that is open at all addresses of its slice. Service proxies leave out one that says nothing of a name."""

    port: int = 0
    name: str | None = None
    protocol: str = ""
    app_protocol: str | None = None


def slice_ports(ports: tuple[EndpointPort, ...]) -> tuple[SlicePort, ...]:
    """The same ports, as slices have them."""
    return tuple(SlicePort(port.port, port.name, port.protocol, port.app_protocol) for port in ports)


class EndpointSubset(Value, frozen=True):
    """Every port is open at every address."""

    addresses: tuple[EndpointAddress, ...] = ()
    not_ready_addresses: tuple[EndpointAddress, ...] = ()
    ports: tuple[EndpointPort, ...] = ()


class Endpoints(Object, frozen=True):
    """Where the service of the same name leads to."""

    API_VERSION = "v1"
    KIND = "Endpoints"

    subsets: tuple[EndpointSubset, ...] = ()


class EndpointConditions(Value, frozen=True):
    """`serving` is ready whether or not the endpoint is `terminating`; None counts as ready and not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Endpoint(Value, frozen=True):
    """One of the addresses; of several only the first is used."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    hostname: str | None = None
    node_name: str | None = None
    zone: str | None = None
    target_ref: ObjectReference | None = None
    deprecated_topology: dict[str, str] = {}
    hints: dict[str, list[dict[str, str]]] | None = None


class EndpointSlice(Object, frozen=True):
    """Some of the endpoints of the service that its label names."""

    API_VERSION = "discovery.k8s.io/v1"
    KIND = "EndpointSlice"

    address_type: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    ports: tuple[SlicePort, ...] = ()


class OlderEndpointSlice(EndpointSlice, frozen=True):
    """The same as v1beta1 had it, but that endpoints there do not name their node by `node_name`."""

    API_VERSION = "discovery.k8s.io/v1beta1"


def defaulted_endpoints(item: Endpoints) -> Endpoints:
    """With the protocol of every port."""
    rows = tuple(
        msgspec.structs.replace(
            row, ports=tuple(msgspec.structs.replace(port, protocol=port.protocol or "TCP") for port in row.ports)
        )
        for row in item.subsets
    )
    return msgspec.structs.replace(item, subsets=rows)


def defaulted_slice(item: EndpointSlice) -> EndpointSlice:
    """With the name and the protocol of every port."""
    ports = (
        msgspec.structs.replace(port, name=port.name or "", protocol=port.protocol or "TCP") for port in item.ports
    )
    return msgspec.structs.replace(item, ports=tuple(ports))

"""Endpoints and EndpointSlices: the pods, or other addresses, that a service leads to. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address

import msgspec

from api.objects import Object
from api.schema import FORBIDDEN, MISSING, Problem, choices, shown
from api.services import PROTOCOLS
from api.value import ObjectReference, Value

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


def check_endpoints(item: Endpoints) -> Iterator[Problem]:
    """Every problem, by path."""
    for number, subset in enumerate(item.subsets):
        path = f"subsets[{number}]"
        if not subset.addresses and not subset.not_ready_addresses:
            yield Problem(path, "{}", "must specify `addresses` or `notReadyAddresses`", MISSING)
        for name, rows in (("addresses", subset.addresses), ("notReadyAddresses", subset.not_ready_addresses)):
            for place, row in enumerate(rows):
                yield from _check_address(f"{path}.{name}[{place}].ip", row.ip)
        yield from _check_ports(path, subset.ports)


def check_slice(item: EndpointSlice) -> Iterator[Problem]:
    """Every problem, by path."""
    if not item.address_type:
        yield Problem("addressType", '""', "IPv4 is required", MISSING)
    yield from choices(("addressType", item.address_type, ("IPv4", "IPv6", "FQDN")))
    if len(item.endpoints) > MOST_IN_A_SLICE:
        yield Problem("endpoints", shown(len(item.endpoints)), f"must have at most {MOST_IN_A_SLICE} items")
    for number, row in enumerate(item.endpoints):
        if not row.addresses:
            yield Problem(f"endpoints[{number}].addresses", "[]", "at least one address is required", MISSING)
        if item.address_type == "IPv4":
            for place, text in enumerate(row.addresses):
                yield from _check_address(f"endpoints[{number}].addresses[{place}]", text)
    yield from _check_ports("", item.ports)


def immutable_slice(old: EndpointSlice, new: EndpointSlice) -> Iterator[Problem]:
    """A slice keeps the family of its addresses."""
    if old.address_type != new.address_type:
        yield Problem("addressType", shown(new.address_type), "field is immutable", FORBIDDEN)


def _check_address(path: str, text: str) -> Iterator[Problem]:
    try:
        address = IPv4Address(text)
    except ValueError:
        yield Problem(path, shown(text), "must be a valid IP address")
        return
    for bad, why in (
        (address.is_unspecified, "may not be unspecified (0.0.0.0 or ::)"),
        (address.is_loopback, "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (address.is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (address.is_multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
    ):
        if bad:
            yield Problem(path, shown(text), why)


def _check_ports(path: str, ports: Sequence[EndpointPort | SlicePort]) -> Iterator[Problem]:
    for number, port in enumerate(ports):
        place = f"{path}.ports[{number}]".lstrip(".")
        if not 1 <= port.port <= 65535:
            yield Problem(f"{place}.port", shown(port.port), "must be between 1 and 65535, inclusive")
        if len(ports) > 1 and not port.name:
            yield Problem(f"{place}.name", '""', "a name is required where there are several ports", MISSING)
        yield from choices((f"{place}.protocol", port.protocol, PROTOCOLS))


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

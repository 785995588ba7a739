"""What the names of the cluster mean. Pure.

Below the cluster's domain, with `NS` a namespace and `SVC` a service of it:

    SVC.NS.svc                 the service: its cluster IP, or (headless) its ready endpoints, or (ExternalName) a name
    _PORT._PROTO.SVC.NS.svc    a port of it (SRV); of a headless one a row for each endpoint
    HOST.SVC.NS.svc            one of its endpoints, by the pod's hostname or by its address: 10-128-0-2
    SVC.NS                     the same as SVC.NS.svc, and whatever may stand before it
    NAME.NS.endpoints          the endpoints of the service NAME, headless or not; ports and hosts as above
    NS                         the cluster IPs and headless endpoints of all services of the namespace
    10-128-0-2.NS.pod          the address 10.128.0.2
    dns-version                the version of the rules that services are named by (TXT)

Source: Kubernetes DNS-Based Service Discovery 1.1.0; `SVC.NS`, `NS` and `endpoints` are older forms. `*` and `any` in
the place of a namespace, a service, a host or a port stand for all of them, as in SkyDNS (`_any` for a port or
protocol), unless something really has that name. Namespaces that are called svc, pod, endpoints or dns are found by the
longer form only. What a name means depends on who asks: what `may` forbids is as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import islice

from api.core.endpoints import Endpoint
from api.core.services import EXTERNAL_NAME, HEADLESS, Service
from nameserver.service_store import Key, ServiceStore, endpoints, published

Labels = tuple[str, ...]
_Ports = tuple[tuple[str, str, int], ...]
IsVisible = Callable[[str], bool]
"""Whether who asks may know of a namespace."""

VERSION = "1.1.0"
MAX_TARGETS = 2000
"""That are told at most: a message has room for fewer, and a service may have a thousand ports at a thousand endpoints.
"""

ANY = frozenset({"*", "any"})
ANY_UNDERSCORED = frozenset({"*", "any", "_*", "_any"})


@dataclass(frozen=True, slots=True, order=True)
class SrvTarget:
    """A port and the name of where it is open, as labels below the cluster's domain, with an address of that name."""

    port: int
    target: Labels
    address: str


@dataclass(frozen=True, slots=True)
class Records:
    """All that a name stands for. `alias` is another name, whole and without its last dot; then all else is empty."""

    addresses: tuple[str, ...] = ()
    places: tuple[SrvTarget, ...] = ()
    alias: str = ""
    text: str = ""


NOTHING = Records()
"""The name is there, if only because longer ones are; nothing is known of it."""


@dataclass(frozen=True, slots=True)
class _Row:
    """An endpoint or a cluster IP: where it is, what it is called, and its ports as (name, protocol, number)."""

    address: str
    target: Labels
    hosts: frozenset[str]
    ports: _Ports


def lookup(labels: Labels, directory: ServiceStore, may: IsVisible) -> Records | None:
    """What a name means, in lower case, without the cluster's domain; None if there is no such name."""
    match labels:
        case () | ("svc" | "pod" | "endpoints" | "dns",):
            return NOTHING
        case ("dns-version",):
            return Records(text=VERSION)
        case (*before, namespace, "pod"):
            return _pod(tuple(before), namespace, directory, may)
        case (*before, "svc" | "endpoints" as branch):
            return _below_branch(tuple(before), branch, directory, may)
        case _:
            return None if labels[-1] == "dns" else _below_branch(labels, "", directory, may)


def _below_branch(labels: Labels, branch: str, directory: ServiceStore, may: IsVisible) -> Records | None:
    """`branch` is svc, endpoints, or empty for the older forms without one."""
    *before, namespace = labels
    if before:
        *before, name = before
        services = list(_services((namespace, name), directory, may))
        return _service(tuple(before), services, branch == "endpoints", directory) if services else None
    if not any(True for _ in _namespaces(namespace, directory, may)):
        return None
    return NOTHING if branch else _all_of(namespace, directory, may)


def reverse_lookup(address: str, directory: ServiceStore, may: IsVisible) -> tuple[Labels, ...]:
    """The names that lead to an address of a service or of a named endpoint, below the cluster's domain."""
    found: list[Labels] = []
    for namespace, name in directory.owners(address):
        service = directory.service(namespace, name)
        if service is None or not may(namespace):
            continue
        if service.spec.cluster_ip == address:
            found.append((name, namespace, "svc"))
            continue
        found += [_target(one, service) for one in endpoints(directory, service) if one.addresses[0] == address]
    return tuple(dict.fromkeys(sorted(found)))


def _pod(before: Labels, namespace: str, directory: ServiceStore, may: IsVisible) -> Records | None:
    if not may(namespace):
        return None
    match before:
        case ():
            return NOTHING if directory.has(namespace) else None
        case (dashed,):
            try:
                return Records(addresses=(str(IPv4Address(dashed.replace("-", "."))),)) if "." not in dashed else None
            except ValueError:
                return None
    return None


def _namespaces(pattern: str, directory: ServiceStore, may: IsVisible) -> Iterator[str]:
    """The namespaces that have services and that may be known; one that is really called so goes before a wildcard."""
    if directory.has(pattern):
        return iter((pattern,) if may(pattern) else ())
    return (namespace for namespace in directory.namespaces() if pattern in ANY and may(namespace))


def _services(key: Key, directory: ServiceStore, may: IsVisible) -> Iterator[Service]:
    for namespace in _namespaces(key[0], directory, may):
        named = directory.service(namespace, key[1])
        if named is not None:
            yield named
        elif key[1] in ANY:
            yield from directory.services(namespace)


def _all_of(namespace: str, directory: ServiceStore, may: IsVisible) -> Records:
    services = [one for one in _services((namespace, "*"), directory, may) if one.spec.type != EXTERNAL_NAME]
    rows = [row for service in services for row in _rows(service, directory)]
    return Records(addresses=tuple(dict.fromkeys(row.address for row in rows)))


def _service(before: Labels, services: list[Service], wants_endpoints: bool, directory: ServiceStore) -> Records | None:
    if not before and not wants_endpoints and [one.spec.type for one in services] == [EXTERNAL_NAME]:
        return Records(alias=services[0].spec.external_name.rstrip("."))
    is_host = len(before) == 1 and not before[0].startswith("_")
    rows_of = _endpoint_rows if wants_endpoints or is_host else _rows
    rows = [row for service in services for row in rows_of(service, directory)]
    match before:
        case ():
            return _merge(rows)
        case (one,):
            return _single_label(rows, one)
        case (port, protocol):
            return _ports(rows, port, protocol)
    return None


def _single_label(rows: list[_Row], label: str) -> Records | None:
    if label.startswith("_"):
        return (
            NOTHING
            if any(_has(protocol, label) for ports in _distinct_ports(rows) for _, protocol, _ in ports)
            else None
        )
    hosts = [row for row in rows if label in row.hosts or label in ANY]
    return _merge(hosts) if hosts else None


def _ports(rows: list[_Row], port: str, protocol: str) -> Records | None:
    found = _places(rows, lambda name, spoken: _has(name, port) and _has(spoken, protocol))
    return Records(places=found) if found else None


def _places(rows: list[_Row], is_meant: Callable[[str, str], bool]) -> tuple[SrvTarget, ...]:
    """The ports of these names and protocols at each, as far as they can be told."""
    numbers = {
        id(ports): [number for name, spoken, number in ports if is_meant(name, spoken)]
        for ports in _distinct_ports(rows)
    }
    found = (SrvTarget(number, row.target, row.address) for row in rows for number in numbers[id(row.ports)])
    return tuple(dict.fromkeys(islice(found, MAX_TARGETS)))


def _distinct_ports(rows: list[_Row]) -> Iterator[_Ports]:
    """The ports of the rows, once for all endpoints of a slice."""
    return iter({id(row.ports): row.ports for row in rows}.values())


def _has(value: str, label: str) -> bool:
    return label in ANY_UNDERSCORED or (bool(value) and label == f"_{value.lower()}")


def _merge(rows: list[_Row]) -> Records:
    addresses = dict.fromkeys(row.address for row in rows)
    return Records(addresses=tuple(addresses), places=_places(rows, lambda name, spoken: True))


def _rows(service: Service, directory: ServiceStore) -> Iterator[_Row]:
    spec, meta = service.spec, service.metadata
    if spec.cluster_ip == HEADLESS:
        yield from _endpoint_rows(service, directory)
    elif spec.cluster_ip and spec.type != EXTERNAL_NAME:
        ports = tuple((port.name, port.protocol or "TCP", port.port) for port in spec.ports)
        yield _Row(spec.cluster_ip, (meta.name, meta.namespace, "svc"), frozenset(), ports)


def _endpoint_rows(service: Service, directory: ServiceStore) -> Iterator[_Row]:
    for item in directory.slices(service.metadata.namespace, service.metadata.name):
        ports = tuple((port.name or "", port.protocol or "TCP", port.port) for port in item.ports)
        for endpoint in published(item, service):
            address = endpoint.addresses[0]
            hosts = frozenset({endpoint.hostname or "", _dashed(address)} - {""})
            yield _Row(address, _target(endpoint, service), hosts, ports)


def _target(endpoint: Endpoint, service: Service) -> Labels:
    host = (endpoint.hostname or _dashed(endpoint.addresses[0])).lower()
    return host, service.metadata.name, service.metadata.namespace, "svc"


def _dashed(address: str) -> str:
    return address.replace(".", "-")

"""Looks up names of the cluster. Pure.

Below the cluster's domain, with `NS` a namespace and `SVC` a service of it:

    SVC.NS.svc                 the service: its cluster IP, or (headless) its ready endpoints, or (ExternalName) a name
    _PORT._PROTO.SVC.NS.svc    a port of the service (SRV); for a headless service one record for each endpoint
    HOST.SVC.NS.svc            one of its endpoints, by the pod's hostname or by its address: 10-128-0-2
    SVC.NS                     the same as SVC.NS.svc, and whatever may stand before it
    NAME.NS.endpoints          the endpoints of the service NAME, headless or not; ports and hosts as above
    NS                         the cluster IPs and headless endpoints of all services of the namespace
    10-128-0-2.NS.pod          the address 10.128.0.2
    dns-version                the version of the specification below (TXT)

Source: Kubernetes DNS-Based Service Discovery 1.1.0; `SVC.NS`, `NS` and `endpoints` are older forms. `*` and `any` in
the place of a namespace, a service, a host or a port stand for all of them, as in SkyDNS (`_any` for a port or
protocol), unless an object has that name. Namespaces that are called svc, pod, endpoints or dns are found by the longer
form only. For each client, namespaces that are not visible to the client do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import islice

from api.core.endpoints import Endpoint
from api.core.services import EXTERNAL_NAME, HEADLESS, Service
from nameserver.service_store import Key, ServiceStore, published, published_endpoints

Labels = tuple[str, ...]
"""Labels of a name in lower case, without the cluster's domain."""

_Ports = tuple[tuple[str, str, int], ...]
"""Ports as (name, protocol, number)."""

IsVisible = Callable[[str], bool]
"""Returns True if the client may see the services of a namespace."""

VERSION = "1.1.0"

MAX_TARGETS = 2000
"""Maximum number of SRV targets. A message has room for fewer, and a service may have a thousand ports at a thousand
endpoints.
"""

ANY = frozenset({"*", "any"})
ANY_UNDERSCORED = frozenset({"*", "any", "_*", "_any"})


@dataclass(frozen=True, slots=True, order=True)
class SrvTarget:
    """A port, and the host on which it is open: its name below the cluster's domain, and its address."""

    port: int
    host: Labels
    address: str


@dataclass(frozen=True, slots=True)
class Records:
    """All records of a name. If `alias`, an absolute name without its last dot, is set, all other fields are empty."""

    addresses: tuple[str, ...] = ()
    targets: tuple[SrvTarget, ...] = ()
    alias: str = ""
    text: str = ""


NO_RECORDS = Records()
"""The name exists, if only because longer names do, but has no records."""


@dataclass(frozen=True, slots=True)
class _Host:
    """An endpoint or a cluster IP: its address, its name, the labels by which it is found, and its ports."""

    address: str
    name: Labels
    labels: frozenset[str]
    ports: _Ports


def lookup(labels: Labels, store: ServiceStore, is_visible: IsVisible) -> Records | None:
    """Return the records of a name, or None if there is no such name."""
    match labels:
        case () | ("svc" | "pod" | "endpoints" | "dns",):
            return NO_RECORDS
        case ("dns-version",):
            return Records(text=VERSION)
        case (*before, namespace, "pod"):
            return _pod(tuple(before), namespace, store, is_visible)
        case (*before, "svc" | "endpoints" as branch):
            return _in_branch(tuple(before), branch, store, is_visible)
        case _:
            return None if labels[-1] == "dns" else _in_branch(labels, "", store, is_visible)


def _in_branch(labels: Labels, branch: str, store: ServiceStore, is_visible: IsVisible) -> Records | None:
    """Look up a name below a branch: svc, endpoints, or empty for the older forms without a branch."""
    *before, namespace = labels
    if before:
        *before, name = before
        services = list(_services((namespace, name), store, is_visible))
        return _service(tuple(before), services, branch == "endpoints", store) if services else None
    if not any(True for _ in _namespaces(namespace, store, is_visible)):
        return None
    return NO_RECORDS if branch else _all_of_namespace(namespace, store, is_visible)


def reverse_lookup(address: str, store: ServiceStore, is_visible: IsVisible) -> tuple[Labels, ...]:
    """Return the names of a cluster IP or of endpoints, below the cluster's domain."""
    names: list[Labels] = []
    for namespace, name in store.services_at(address):
        service = store.service(namespace, name)
        if service is None or not is_visible(namespace):
            continue
        if service.spec.cluster_ip == address:
            names.append((name, namespace, "svc"))
            continue
        names += [
            _endpoint_name(endpoint, service)
            for endpoint in published_endpoints(store, service)
            if endpoint.addresses[0] == address
        ]
    return tuple(dict.fromkeys(sorted(names)))


def _pod(before: Labels, namespace: str, store: ServiceStore, is_visible: IsVisible) -> Records | None:
    if not is_visible(namespace):
        return None
    match before:
        case ():
            return NO_RECORDS if store.has_services(namespace) else None
        case (dashed,):
            try:
                return Records(addresses=(str(IPv4Address(dashed.replace("-", "."))),)) if "." not in dashed else None
            except ValueError:
                return None
    return None


def _namespaces(pattern: str, store: ServiceStore, is_visible: IsVisible) -> Iterator[str]:
    """Yield visible namespaces with services: the one with this name, or, for a wildcard, all."""
    if store.has_services(pattern):
        return iter((pattern,) if is_visible(pattern) else ())
    return (namespace for namespace in store.namespaces() if pattern in ANY and is_visible(namespace))


def _services(key: Key, store: ServiceStore, is_visible: IsVisible) -> Iterator[Service]:
    for namespace in _namespaces(key[0], store, is_visible):
        service = store.service(namespace, key[1])
        if service is not None:
            yield service
        elif key[1] in ANY:
            yield from store.services(namespace)


def _all_of_namespace(namespace: str, store: ServiceStore, is_visible: IsVisible) -> Records:
    addresses: dict[str, None] = {}
    for service in _services((namespace, "*"), store, is_visible):
        if service.spec.type != EXTERNAL_NAME:
            addresses.update(dict.fromkeys(host.address for host in _hosts(service, store)))
    return Records(addresses=tuple(addresses))


def _service(before: Labels, services: list[Service], endpoints_only: bool, store: ServiceStore) -> Records | None:
    """Return the records of services, of their ports or of their endpoints, after the labels before the service."""
    if not before and not endpoints_only and [service.spec.type for service in services] == [EXTERNAL_NAME]:
        return Records(alias=services[0].spec.external_name.rstrip("."))
    is_host = len(before) == 1 and not before[0].startswith("_")
    hosts_of = _endpoint_hosts if endpoints_only or is_host else _hosts
    hosts = [host for service in services for host in hosts_of(service, store)]
    match before:
        case ():
            return _merge(hosts)
        case (label,):
            return _single_label(hosts, label)
        case (port, protocol):
            targets = _targets(hosts, lambda name, spoken: _matches(name, port) and _matches(spoken, protocol))
            return Records(targets=targets) if targets else None
    return None


def _single_label(hosts: list[_Host], label: str) -> Records | None:
    """Return the records of a host, or, for a protocol, that there are longer names."""
    if label.startswith("_"):
        protocols = (protocol for ports in _distinct_ports(hosts) for _, protocol, _ in ports)
        return NO_RECORDS if any(_matches(protocol, label) for protocol in protocols) else None
    matching = [host for host in hosts if label in host.labels or label in ANY]
    return _merge(matching) if matching else None


def _targets(hosts: list[_Host], is_selected: Callable[[str, str], bool]) -> tuple[SrvTarget, ...]:
    """Return the ports with selected names and protocols at each host, at most MAX_TARGETS."""
    numbers = {
        id(ports): [number for name, protocol, number in ports if is_selected(name, protocol)]
        for ports in _distinct_ports(hosts)
    }
    targets = (SrvTarget(number, host.name, host.address) for host in hosts for number in numbers[id(host.ports)])
    return tuple(dict.fromkeys(islice(targets, MAX_TARGETS)))


def _distinct_ports(hosts: list[_Host]) -> Iterator[_Ports]:
    """Yield the ports of the hosts, once for all endpoints of a slice."""
    return iter({id(host.ports): host.ports for host in hosts}.values())


def _matches(value: str, label: str) -> bool:
    return label in ANY_UNDERSCORED or (bool(value) and label == f"_{value.lower()}")


def _merge(hosts: list[_Host]) -> Records:
    addresses = dict.fromkeys(host.address for host in hosts)
    return Records(addresses=tuple(addresses), targets=_targets(hosts, lambda name, protocol: True))


def _hosts(service: Service, store: ServiceStore) -> Iterator[_Host]:
    """Yield the cluster IP of a service, or the endpoints of a headless one."""
    spec, meta = service.spec, service.metadata
    if spec.cluster_ip == HEADLESS:
        yield from _endpoint_hosts(service, store)
    elif spec.cluster_ip and spec.type != EXTERNAL_NAME:
        ports = tuple((port.name, port.protocol or "TCP", port.port) for port in spec.ports)
        yield _Host(spec.cluster_ip, (meta.name, meta.namespace, "svc"), frozenset(), ports)


def _endpoint_hosts(service: Service, store: ServiceStore) -> Iterator[_Host]:
    for endpoint_slice in store.slices(service.metadata.namespace, service.metadata.name):
        ports = tuple((port.name or "", port.protocol or "TCP", port.port) for port in endpoint_slice.ports)
        for endpoint in published(endpoint_slice, service):
            address = endpoint.addresses[0]
            labels = frozenset({endpoint.hostname or "", _dashed(address)} - {""})
            yield _Host(address, _endpoint_name(endpoint, service), labels, ports)


def _endpoint_name(endpoint: Endpoint, service: Service) -> Labels:
    host = (endpoint.hostname or _dashed(endpoint.addresses[0])).lower()
    return host, service.metadata.name, service.metadata.namespace, "svc"


def _dashed(address: str) -> str:
    return address.replace(".", "-")

"""The service `kubernetes` in the namespace default: by it pods reach the API server. Pure.

It has the first address of the service network. Its endpoint is the address of the master.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network

from msgspec.structs import replace

from api.core.endpoints import (
    SERVICE_LABEL,
    Endpoint,
    EndpointAddress,
    EndpointConditions,
    EndpointPort,
    Endpoints,
    EndpointSlice,
    EndpointSubset,
    slice_ports,
)
from api.core.services import Service, ServicePort, ServiceSpec
from api.meta.types import Object, ObjectMeta
from master.controllers.actions import Action, Create, ForceDelete, Update, Warn
from master.controllers.context import Lister, ServerAddress
from master.controllers.network.endpoint_slice_mirroring import NOT_MIRRORED

NAMESPACE, NAME = "default", "kubernetes"
PORT, PORT_NAME = 443, "https"
LABELS = {"component": "apiserver", "provider": "kubernetes"}

DNS_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
"""The names of the service, which stand in the master's certificate beside its address."""


def service_address(network: IPv4Network) -> str:
    """The address of the service."""
    return str(network.network_address + 1)


def reconcile(
    network: IPv4Network,
    place: ServerAddress,
    services: Iterable[Service],
    endpoints: Endpoints | None,
    slices: Iterable[EndpointSlice],
) -> Iterator[Action]:
    """What is to be written, so that the service is as it should be.

    `endpoints` are those of its name, `slices` may be all there are.
    """
    yield from _service(network, place, tuple(services))
    port = EndpointPort(name=PORT_NAME, port=place.port, protocol="TCP")
    subset = EndpointSubset(addresses=(EndpointAddress(ip=place.address),), ports=(port,))
    yield from _merge(Endpoints(metadata=_meta(NOT_MIRRORED), subsets=(subset,)), endpoints)
    endpoint = Endpoint(addresses=(place.address,), conditions=EndpointConditions(ready=True))
    meta = _meta({SERVICE_LABEL: NAME})
    one = EndpointSlice(metadata=meta, address_type="IPv4", endpoints=(endpoint,), ports=slice_ports((port,)))
    yield from _merge(one, next((item for item in slices if _is_ours(item)), None))


def _service(network: IPv4Network, place: ServerAddress, services: tuple[Service, ...]) -> Iterator[Action]:
    address = service_address(network)
    ports = (ServicePort(name=PORT_NAME, port=PORT, protocol="TCP", target_port=place.port),)
    wanted = Service(metadata=_meta(LABELS), spec=ServiceSpec(cluster_ip=address, cluster_ips=(address,), ports=ports))
    old = next((item for item in services if _is_ours(item)), None)
    other = next((item for item in services if item.spec.cluster_ip == address and item is not old), None)
    if other is not None:
        name = f"{other.metadata.namespace}/{other.metadata.name}"
        why = f"service {name} has {address}, which the service {NAMESPACE}/{NAME} needs; delete it to free that"
        yield Warn(why, about=f"service {NAMESPACE}/{NAME}")
    elif old is None:
        yield Create(wanted)
    elif old.spec.cluster_ip != address:
        yield ForceDelete(old)
        yield Create(wanted)
    else:
        labels = {**old.metadata.labels, **LABELS}
        new = replace(
            old,
            metadata=replace(old.metadata, labels=labels),
            spec=replace(old.spec, ports=ports, selector={}, type="ClusterIP"),
        )
        yield from () if new == old else (Update(new, old),)


def _merge(wanted: Object, old: Object | None) -> Iterator[Create | Update]:
    if old is None:
        yield Create(wanted)
        return
    labels = {**old.metadata.labels, **wanted.metadata.labels}
    head = (old.api_version, old.kind)
    new = replace(wanted, api_version=head[0], kind=head[1], metadata=replace(old.metadata, labels=labels))
    if new != old:
        yield Update(new, old)


def _meta(labels: dict[str, str]) -> ObjectMeta:
    return ObjectMeta(name=NAME, namespace=NAMESPACE, labels=labels)


def _is_ours(item: Object) -> bool:
    return (item.metadata.namespace, item.metadata.name) == (NAMESPACE, NAME)


def sync_kubernetes_service(lister: Lister) -> Iterable[Action]:
    """Write the service of the API server once its address is known."""
    place, name = lister.context.server_address(), NAME
    if place is None:
        return ()
    endpoints = lister.get("Endpoints", name, NAMESPACE)
    found = lister.list("Service"), endpoints, lister.list("EndpointSlice")
    return reconcile(lister.context.network.service_network, place, *found)

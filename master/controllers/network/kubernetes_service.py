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
"""Names of the service, which the server certificate has besides its addresses."""


def service_address(network: IPv4Network) -> str:
    """Return the cluster IP of the service."""
    return str(network.network_address + 1)


def reconcile(
    network: IPv4Network,
    server: ServerAddress,
    services: Iterable[Service],
    endpoints: Endpoints | None,
    slices: Iterable[EndpointSlice],
) -> Iterator[Action]:
    """Yield the writes of the service and its endpoints. `slices` may be all slices of the cluster."""
    yield from _service(network, server, tuple(services))
    port = EndpointPort(name=PORT_NAME, port=server.port, protocol="TCP")
    subset = EndpointSubset(addresses=(EndpointAddress(ip=server.address),), ports=(port,))
    yield from _merge(Endpoints(metadata=_meta(NOT_MIRRORED), subsets=(subset,)), endpoints)
    endpoint = Endpoint(addresses=(server.address,), conditions=EndpointConditions(ready=True))
    meta = _meta({SERVICE_LABEL: NAME})
    endpoint_slice = EndpointSlice(
        metadata=meta, address_type="IPv4", endpoints=(endpoint,), ports=slice_ports((port,))
    )
    yield from _merge(endpoint_slice, next((existing for existing in slices if _is_kubernetes(existing)), None))


def _service(network: IPv4Network, server: ServerAddress, services: tuple[Service, ...]) -> Iterator[Action]:
    address = service_address(network)
    ports = (ServicePort(name=PORT_NAME, port=PORT, protocol="TCP", target_port=server.port),)
    desired = Service(metadata=_meta(LABELS), spec=ServiceSpec(cluster_ip=address, cluster_ips=(address,), ports=ports))
    old = next((service for service in services if _is_kubernetes(service)), None)
    conflicting = next(
        (service for service in services if service.spec.cluster_ip == address and service is not old), None
    )
    if conflicting is not None:
        name = f"{conflicting.metadata.namespace}/{conflicting.metadata.name}"
        text = f"service {name} has {address}, which the service {NAMESPACE}/{NAME} needs; delete it to free that"
        yield Warn(text, about=f"service {NAMESPACE}/{NAME}")
    elif old is None:
        yield Create(desired)
    elif old.spec.cluster_ip != address:
        yield ForceDelete(old)
        yield Create(desired)
    else:
        labels = {**old.metadata.labels, **LABELS}
        new = replace(
            old,
            metadata=replace(old.metadata, labels=labels),
            spec=replace(old.spec, ports=ports, selector={}, type="ClusterIP"),
        )
        yield from () if new == old else (Update(new, old),)


def _merge(desired: Object, old: Object | None) -> Iterator[Create | Update]:
    if old is None:
        yield Create(desired)
        return
    labels = {**old.metadata.labels, **desired.metadata.labels}
    type_meta = (old.api_version, old.kind)
    new = replace(desired, api_version=type_meta[0], kind=type_meta[1], metadata=replace(old.metadata, labels=labels))
    if new != old:
        yield Update(new, old)


def _meta(labels: dict[str, str]) -> ObjectMeta:
    return ObjectMeta(name=NAME, namespace=NAMESPACE, labels=labels)


def _is_kubernetes(obj: Object) -> bool:
    return (obj.metadata.namespace, obj.metadata.name) == (NAMESPACE, NAME)


def sync_kubernetes_service(lister: Lister) -> Iterable[Action]:
    """Write the service of the API server once its address is known."""
    server, name = lister.context.server_address(), NAME
    if server is None:
        return ()
    endpoints = lister.get(Endpoints, name, NAMESPACE)
    objects = lister.list(Service), endpoints, lister.list(EndpointSlice)
    return reconcile(lister.context.network.service_network, server, *objects)

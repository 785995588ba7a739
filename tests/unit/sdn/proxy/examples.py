"""Services, EndpointSlices and pods, and the service map made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network

from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointConditions, EndpointSlice, SlicePort
from api.core.services import Service, ServicePort, ServiceSpec
from api.meta.types import ObjectMeta
from api.network.types import PodAddress
from sdn.model.service_port import EndpointInfo, ServicePortInfo
from sdn.proxy.service_map import ServiceMap
from sdn.proxy.service_ports import ProxyConfig
from sdn.topology import Node

VANTAGE = ProxyConfig(
    node="node-1",
    address=IPv4Address("10.245.2.3"),
    subnet=IPv4Network("10.128.0.0/23"),
    networks=(IPv4Network("10.128.0.0/14"),),
    service_network=IPv4Network("172.30.0.0/16"),
    lanes={"default": 0, "red": 10, "blue": 11, "pink": 10},
    nodes=frozenset((IPv4Address("10.245.2.3"), IPv4Address("10.245.2.4"))),
    node_ports=(30000, 32767),
)


NODE = Node(VANTAGE.node, VANTAGE.address, VANTAGE.subnet)


HERE, THERE, MORE = "10.128.0.5", "10.128.2.5", "10.128.2.6"


READY = EndpointConditions(ready=True, serving=True, terminating=False)


LEAVING = EndpointConditions(ready=False, serving=True, terminating=True)


ENDED = EndpointConditions(ready=False, serving=False, terminating=True)


WAITING = EndpointConditions(ready=False, serving=False)


def backend(address: str, port: int = 8080) -> EndpointInfo:
    return EndpointInfo(IPv4Address(address), port, IPv4Address(address) in VANTAGE.subnet)


def service(name: str = "web", namespace: str = "red", made: str = "2026-01-01T00:00:00Z", **spec: object) -> Service:
    wish = {"type": "ClusterIP", "cluster_ip": "172.30.0.7", "ports": (ServicePort(port=80, protocol="TCP"),), **spec}
    meta = ObjectMeta(name=name, namespace=namespace, uid=name, creation_timestamp=made)
    return Service(metadata=meta, spec=ServiceSpec(**wish))  # type: ignore[arg-type]


def endpoint(address: str, conditions: EndpointConditions = READY, node: str | None = None) -> Endpoint:
    return Endpoint(addresses=(address,), conditions=conditions, node_name=node)


def slice_of(
    owner: str,
    *rows: Endpoint,
    namespace: str = "red",
    name: str = "",
    ports: tuple[SlicePort, ...] = (SlicePort(port=8080, name="", protocol="TCP"),),
    family: str = "IPv4",
) -> EndpointSlice:
    meta = ObjectMeta(name=name or f"{owner}-1", namespace=namespace, labels={SERVICE_LABEL: owner})
    return EndpointSlice(metadata=meta, address_type=family, endpoints=rows, ports=ports)


def pod(address: str, namespace: str = "red", phase: str = "Running", host_network: bool = False) -> PodAddress:
    meta = ObjectMeta(name=f"pod-{address}", namespace=namespace)
    return PodAddress(metadata=meta, phase=phase, ip=address, host_network=host_network)


PODS = tuple(pod(address) for address in (HERE, THERE, MORE))


def fill(
    catalogue: ServiceMap,
    services: Iterable[Service] = (),
    slices: Iterable[EndpointSlice] = (),
    pods: Iterable[PodAddress] = PODS,
) -> ServiceMap:
    for one in pods:
        catalogue.set_pod((one.metadata.namespace, one.metadata.name), one)
    for item in slices:
        catalogue.set_slice((item.metadata.namespace, item.metadata.name), item)
    for wish in services:
        catalogue.set_service((wish.metadata.namespace, wish.metadata.name), wish)
    return catalogue


def made(
    wish: Service, *slices: EndpointSlice, vantage: ProxyConfig = VANTAGE, pods: Iterable[PodAddress] = PODS
) -> ServiceMap:
    catalogue = fill(ServiceMap(), (wish,), slices, pods)
    catalogue.set_vantage(vantage)
    catalogue.settle()
    return catalogue


def only(catalogue: ServiceMap) -> ServicePortInfo:
    (port,) = catalogue.ports.values()
    return port


def left_out(catalogue: ServiceMap, name: str = "web", namespace: str = "red") -> list[str]:
    return [str(one) for one in catalogue.served[namespace, name].left_out]


def config_with(**changes: object) -> ProxyConfig:
    return dataclasses.replace(VANTAGE, **changes)  # type: ignore[arg-type]

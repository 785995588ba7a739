"""Services, EndpointSlices and pods, and the service map made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from ipaddress import IPv4Address

from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointConditions, EndpointSlice, SlicePort
from api.core.services import Service, ServicePort, ServiceSpec
from api.meta.types import ObjectMeta
from api.network.types import PodAddress
from sdn.model.service_port import EndpointInfo, ServicePortInfo
from sdn.proxy.service_map import ServiceMap
from sdn.proxy.service_ports import ProxyConfig
from tests.unit.sdn.examples import NODE, PROXY_CONFIG

CONFIG = dataclasses.replace(
    PROXY_CONFIG,
    vnids={"default": 0, "red": 10, "blue": 11, "pink": 10},
    node_ips=frozenset((IPv4Address("10.245.2.3"), IPv4Address("10.245.2.4"))),
)


CLUSTER_IPS, EXTERNAL_IPS = IPv4Address("172.30.0.0"), IPv4Address("198.51.100.0")
"""Addresses before the first cluster IP and before the first external IP."""


HERE, THERE, MORE = "10.128.0.5", "10.128.2.5", "10.128.2.6"


READY = EndpointConditions(ready=True, serving=True, terminating=False)


LEAVING = EndpointConditions(ready=False, serving=True, terminating=True)


ENDED = EndpointConditions(ready=False, serving=False, terminating=True)


WAITING = EndpointConditions(ready=False, serving=False)


def backend(address: str, port: int = 8080) -> EndpointInfo:
    return EndpointInfo(IPv4Address(address), port, IPv4Address(address) in NODE.subnet)


def service(
    name: str = "web", namespace: str = "red", created: str = "2026-01-01T00:00:00Z", **spec: object
) -> Service:
    desired = {
        "type": "ClusterIP",
        "cluster_ip": "172.30.0.7",
        "ports": (ServicePort(port=80, protocol="TCP"),),
        **spec,
    }
    meta = ObjectMeta(name=name, namespace=namespace, uid=name, creation_timestamp=created)
    return Service(metadata=meta, spec=ServiceSpec(**desired))  # type: ignore[arg-type]


def endpoint(address: str, conditions: EndpointConditions = READY, node: str | None = None) -> Endpoint:
    return Endpoint(addresses=(address,), conditions=conditions, node_name=node)


def slice_of(
    owner: str,
    *endpoints: Endpoint,
    namespace: str = "red",
    name: str = "",
    ports: tuple[SlicePort, ...] = (SlicePort(port=8080, name="", protocol="TCP"),),
    family: str = "IPv4",
) -> EndpointSlice:
    meta = ObjectMeta(name=name or f"{owner}-1", namespace=namespace, labels={SERVICE_LABEL: owner})
    return EndpointSlice(metadata=meta, address_type=family, endpoints=endpoints, ports=ports)


def pod(address: str, namespace: str = "red", phase: str = "Running", host_network: bool = False) -> PodAddress:
    meta = ObjectMeta(name=f"pod-{address}", namespace=namespace)
    return PodAddress(metadata=meta, phase=phase, ip=address, host_network=host_network)


PODS = tuple(pod(address) for address in (HERE, THERE, MORE))


def fill(
    service_map: ServiceMap,
    services: Iterable[Service] = (),
    slices: Iterable[EndpointSlice] = (),
    pods: Iterable[PodAddress] = PODS,
) -> ServiceMap:
    for pod_address in pods:
        service_map.set_pod((pod_address.metadata.namespace, pod_address.metadata.name), pod_address)
    for endpoint_slice in slices:
        service_map.set_slice((endpoint_slice.metadata.namespace, endpoint_slice.metadata.name), endpoint_slice)
    for added_service in services:
        service_map.set_service((added_service.metadata.namespace, added_service.metadata.name), added_service)
    return service_map


def service_map_of(
    only_service: Service, *slices: EndpointSlice, config: ProxyConfig = CONFIG, pods: Iterable[PodAddress] = PODS
) -> ServiceMap:
    service_map = fill(ServiceMap(), (only_service,), slices, pods)
    service_map.set_config(config)
    service_map.apply_changes()
    return service_map


def only_port(service_map: ServiceMap) -> ServicePortInfo:
    (port,) = service_map.ports.values()
    return port


def rejections(service_map: ServiceMap, name: str = "web", namespace: str = "red") -> list[str]:
    return [str(rejection) for rejection in service_map.states[namespace, name].rejected]


def config_with(**changes: object) -> ProxyConfig:
    return dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]

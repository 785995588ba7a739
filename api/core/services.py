"""Service: types and defaults. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec.structs import replace

from api.meta.types import ATOMIC, Json, Object, StatusCondition, Value, merge_keys

CLUSTER_IP, NODE_PORT, LOAD_BALANCER, EXTERNAL_NAME = "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"
TYPES = (CLUSTER_IP, NODE_PORT, LOAD_BALANCER, EXTERNAL_NAME)
HEADLESS = "None"
"""As a cluster IP: the service has a name, and no address."""
CLUSTER, LOCAL = "Cluster", "Local"
"""Traffic policies: to all endpoints, or only to those of the node that the traffic has reached."""
CLIENT_IP = "ClientIP"
PROTOCOLS = ("TCP", "UDP", "SCTP")
AFFINITY_SECONDS = 10800
LONGEST_AFFINITY = 86400


class ServicePort(Value, frozen=True):
    """A port of a service.

    `target_port` is a number, or the name of a port of the pods; 0 means the same as `port`. `name` tells ports apart
    where there are several. `protocol` is TCP, UDP or SCTP, TCP if nothing is said. `app_protocol` is what is spoken
    there, such as http. `node_port` is the port at which every node leads there.
    """

    port: int
    name: str = ""
    protocol: str = ""
    app_protocol: str | None = None
    target_port: int | str = 0
    node_port: int = 0


class ClientIPConfig(Value, frozen=True):
    """For how long a client that says nothing keeps its endpoint."""

    timeout_seconds: int | None = None


class SessionAffinityConfig(Value, frozen=True):
    """Of ClientIP affinity."""

    client_ip: ClientIPConfig | None = msgspec.field(default=None, name="clientIP")


class ServiceSpec(Value, frozen=True):
    """Which pods a service leads to, and from where.

    `cluster_ip` is an address of the service network, `None`, or empty for one that the master chooses.
    `cluster_ips` begins with it. `type` is ClusterIP, NodePort, LoadBalancer or ExternalName. `selector`
    has the labels of the pods. `external_ips` are further addresses at which nodes lead there.
    `external_name` is the name that stands for a service of the type ExternalName. `session_affinity` is None or
    ClientIP: whether a client always gets the same pod. `publish_not_ready_addresses` leads to pods that are not ready,
    too. `internal_traffic_policy` is Cluster or Local: whether pods only of the same node serve those inside.
    `external_traffic_policy` is Cluster or Local: the same for those outside.
    """

    type: str = ""
    selector: Annotated[dict[str, str], ATOMIC] = {}
    ports: Annotated[tuple[ServicePort, ...], merge_keys("port", "protocol")] = ()
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    cluster_ips: tuple[str, ...] = msgspec.field(default=(), name="clusterIPs")
    external_ips: tuple[str, ...] = msgspec.field(default=(), name="externalIPs")
    external_name: str = ""
    session_affinity: str = ""
    session_affinity_config: SessionAffinityConfig | None = None
    publish_not_ready_addresses: bool = False
    internal_traffic_policy: str = ""
    external_traffic_policy: str = ""
    health_check_node_port: int = 0
    ip_families: tuple[str, ...] = ()
    ip_family_policy: str = ""
    allocate_load_balancer_node_ports: bool | None = None
    load_balancer_ip: str = msgspec.field(default="", name="loadBalancerIP")
    load_balancer_source_ranges: tuple[str, ...] = ()
    load_balancer_class: str | None = None
    traffic_distribution: str | None = None


class LoadBalancerIngress(Value, frozen=True):
    """An address at which the outside reaches the service."""

    ip: str = ""
    hostname: str = ""
    ip_mode: str | None = None
    ports: Json = None


class LoadBalancerStatus(Value, frozen=True):
    """Where the outside reaches the service."""

    ingress: tuple[LoadBalancerIngress, ...] = ()


class ServiceStatus(Value, frozen=True):
    """Where the outside reaches it; `loadBalancer` is shown even if it is empty."""

    load_balancer: LoadBalancerStatus = msgspec.field(default_factory=LoadBalancerStatus)
    conditions: Annotated[tuple[StatusCondition, ...], merge_keys("type")] = ()


class Service(Object, frozen=True):
    """One name, and mostly one address, for the pods that `spec.selector` selects."""

    API_VERSION = "v1"
    KIND = "Service"

    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


def is_headless(service: Service) -> bool:
    """Whether it has no address of its own on purpose."""
    return service.spec.cluster_ip == HEADLESS


def has_address(service: Service) -> bool:
    """Whether it is to have a cluster IP."""
    return service.spec.type != EXTERNAL_NAME and not is_headless(service)


def has_node_ports(service: Service) -> bool:
    """Whether each of its ports is open on every node, too."""
    if service.spec.type == LOAD_BALANCER:
        return service.spec.allocate_load_balancer_node_ports is not False
    return service.spec.type == NODE_PORT


def is_open(spec: ServiceSpec) -> bool:
    """Whether callers from outside can reach it."""
    return spec.type in (NODE_PORT, LOAD_BALANCER) or (spec.type == CLUSTER_IP and bool(spec.external_ips))


def has_health_port(spec: ServiceSpec) -> bool:
    """Whether every node tells, at a port of its own, if it has pods of the service."""
    return spec.type == LOAD_BALANCER and spec.external_traffic_policy == LOCAL


def defaulted(service: Service) -> Service:
    """The service with every default written out."""
    spec = service.spec
    kind = spec.type or CLUSTER_IP
    spec = replace(
        spec,
        type=kind,
        ports=tuple(_port(port) for port in spec.ports),
        session_affinity=spec.session_affinity or "None",
    )
    spec = replace(spec, session_affinity_config=_affinity(spec))
    if kind != EXTERNAL_NAME:
        spec = replace(
            spec,
            internal_traffic_policy=spec.internal_traffic_policy or CLUSTER,
            ip_families=spec.ip_families or ("IPv4",),
            ip_family_policy=spec.ip_family_policy or "SingleStack",
            cluster_ips=(spec.cluster_ip,) if spec.cluster_ip else (),
        )
    if is_open(spec):
        spec = replace(spec, external_traffic_policy=spec.external_traffic_policy or CLUSTER)
    if kind == LOAD_BALANCER and spec.allocate_load_balancer_node_ports is None:
        spec = replace(spec, allocate_load_balancer_node_ports=True)
    return replace(service, spec=spec)


def _affinity(spec: ServiceSpec) -> SessionAffinityConfig | None:
    if spec.session_affinity != CLIENT_IP:
        return None
    config = spec.session_affinity_config
    if config is None or config.client_ip is None or config.client_ip.timeout_seconds is None:
        return SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=AFFINITY_SECONDS))
    return config


def _port(port: ServicePort) -> ServicePort:
    return replace(port, protocol=port.protocol or "TCP", target_port=port.target_port or port.port)

"""Service: types and defaults. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec.structs import replace

from api.meta.types import ATOMIC, Json, Object, StatusCondition, Value, merge_keys
from api.meta.values import Int32, IntOrString

CLUSTER_IP, NODE_PORT, LOAD_BALANCER, EXTERNAL_NAME = "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"
TYPES = (CLUSTER_IP, NODE_PORT, LOAD_BALANCER, EXTERNAL_NAME)
HEADLESS = "None"
"""Value of clusterIP for a service that has a name, but no address."""
CLUSTER, LOCAL = "Cluster", "Local"
"""Traffic policies: all endpoints, or only those on the node that the traffic has reached."""
CLIENT_IP = "ClientIP"
PROTOCOLS = ("TCP", "UDP", "SCTP")
DEFAULT_AFFINITY_SECONDS = 10800
MAX_AFFINITY_SECONDS = 86400


class ServicePort(Value, frozen=True):
    """A port of a service.

    `target_port` is a number, or the name of a port of the pods; 0 means the same as `port`. `name` identifies the port
    if there are several. `protocol` is TCP, UDP or SCTP, by default TCP. `app_protocol` is the application protocol,
    such as http. `node_port` is the port of every node that is forwarded to the service.
    """

    port: Int32
    name: str = ""
    protocol: str = ""
    app_protocol: str | None = None
    target_port: IntOrString = 0
    node_port: Int32 = 0


class ClientIPConfig(Value, frozen=True):
    """The settings of ClientIP affinity. `timeout_seconds` is the idle time after which a client may get another
    endpoint.
    """

    timeout_seconds: Int32 | None = None


class SessionAffinityConfig(Value, frozen=True):
    """The settings of session affinity."""

    client_ip: ClientIPConfig | None = msgspec.field(default=None, name="clientIP")


class ServiceSpec(Value, frozen=True):
    """The pods behind a service, and how clients reach them.

    `cluster_ip` is an address of the service network, `None`, or empty for one that the master allocates. `cluster_ips`
    begins with it. `type` is ClusterIP, NodePort, LoadBalancer or ExternalName. `selector` has the labels of the pods.
    `external_ips` are further addresses at which nodes accept traffic for the service. `external_name` is the DNS name
    to which a service of the type ExternalName refers. `session_affinity` is None or ClientIP: whether a client always
    gets the same pod. `publish_not_ready_addresses` includes pods that are not ready. `internal_traffic_policy` is
    Cluster or Local: whether clients in the cluster get only pods of their own node. `external_traffic_policy` is
    Cluster or Local: whether clients outside of the cluster get only pods of the node that they reached.
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
    health_check_node_port: Int32 = 0
    ip_families: tuple[str, ...] = ()
    ip_family_policy: str = ""
    allocate_load_balancer_node_ports: bool | None = None
    load_balancer_ip: str = msgspec.field(default="", name="loadBalancerIP")
    load_balancer_source_ranges: tuple[str, ...] = ()
    load_balancer_class: str | None = None
    traffic_distribution: str | None = None


class LoadBalancerIngress(Value, frozen=True):
    """An address at which clients outside of the cluster reach the service."""

    ip: str = ""
    hostname: str = ""
    ip_mode: str | None = None
    ports: Json = None


class LoadBalancerStatus(Value, frozen=True):
    """The addresses at which clients outside of the cluster reach the service."""

    ingress: tuple[LoadBalancerIngress, ...] = ()


class ServiceStatus(Value, frozen=True):
    """The status of a service. `loadBalancer` is present even if it is empty."""

    load_balancer: LoadBalancerStatus = msgspec.field(default_factory=LoadBalancerStatus)
    conditions: Annotated[tuple[StatusCondition, ...], merge_keys("type")] = ()


class Service(Object, frozen=True):
    """A name, and in most cases a stable address, for the pods that `spec.selector` selects."""

    API_VERSION = "v1"
    KIND = "Service"
    PLURAL = "services"
    NAMESPACED = True

    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()


def is_headless(service: Service) -> bool:
    """Return whether a service has no cluster IP because it was set to `None`."""
    return service.spec.cluster_ip == HEADLESS


def needs_cluster_ip(service: Service) -> bool:
    """Return whether a service has, or must get, a cluster IP."""
    return service.spec.type != EXTERNAL_NAME and not is_headless(service)


def has_node_ports(service: Service) -> bool:
    """Return whether each port of a service is open on every node, too."""
    if service.spec.type == LOAD_BALANCER:
        return service.spec.allocate_load_balancer_node_ports is not False
    return service.spec.type == NODE_PORT


def is_externally_accessible(spec: ServiceSpec) -> bool:
    """Return whether clients outside of the cluster can reach a service."""
    return spec.type in (NODE_PORT, LOAD_BALANCER) or (spec.type == CLUSTER_IP and bool(spec.external_ips))


def needs_health_check_node_port(spec: ServiceSpec) -> bool:
    """Return whether every node serves, on a port of its own, whether it has pods of the service."""
    return spec.type == LOAD_BALANCER and spec.external_traffic_policy == LOCAL


def service_defaults(service: Service) -> Service:
    """Return the service with every default set."""
    service_type = service.spec.type or CLUSTER_IP
    spec = replace(
        service.spec,
        type=service_type,
        ports=tuple(_defaulted_port(port) for port in service.spec.ports),
        session_affinity=service.spec.session_affinity or "None",
    )
    spec = replace(spec, session_affinity_config=_defaulted_affinity(spec))
    if service_type != EXTERNAL_NAME:
        spec = replace(
            spec,
            internal_traffic_policy=spec.internal_traffic_policy or CLUSTER,
            ip_families=spec.ip_families or ("IPv4",),
            ip_family_policy=spec.ip_family_policy or "SingleStack",
            cluster_ips=(spec.cluster_ip,) if spec.cluster_ip else (),
        )
    if is_externally_accessible(spec):
        spec = replace(spec, external_traffic_policy=spec.external_traffic_policy or CLUSTER)
    if service_type == LOAD_BALANCER and spec.allocate_load_balancer_node_ports is None:
        spec = replace(spec, allocate_load_balancer_node_ports=True)
    return replace(service, spec=spec)


def _defaulted_affinity(spec: ServiceSpec) -> SessionAffinityConfig | None:
    if spec.session_affinity != CLIENT_IP:
        return None
    config = spec.session_affinity_config
    if config is None or config.client_ip is None or config.client_ip.timeout_seconds is None:
        return SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=DEFAULT_AFFINITY_SECONDS))
    return config


def _defaulted_port(port: ServicePort) -> ServicePort:
    return replace(port, protocol=port.protocol or "TCP", target_port=port.target_port or port.port)

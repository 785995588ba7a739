"""Service: one address and one name for some pods. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import Annotated

import msgspec
from msgspec.structs import replace

from api import names
from api.label_selector import LabelSelector, check_selector
from api.objects import Object
from api.schema import FORBIDDEN, MISSING, Problem, choices, duplicates, shown
from api.value import ATOMIC, Json, Value, by

CLUSTER_IP, NODE_PORT, LOAD_BALANCER, EXTERNAL_NAME = "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"
TYPES = (CLUSTER_IP, NODE_PORT, LOAD_BALANCER, EXTERNAL_NAME)
HEADLESS = "None"
"""As a cluster IP: the service has a name, and no address."""
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
    ports: Annotated[tuple[ServicePort, ...], by("port", "protocol")] = ()
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


class ServiceStatus(Value, frozen=True, omit_defaults=False):
    """What the master has given it from outside."""

    load_balancer: LoadBalancerStatus = LoadBalancerStatus()


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
    if spec.session_affinity == "ClientIP" and spec.session_affinity_config is None:
        config = SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=AFFINITY_SECONDS))
        spec = replace(spec, session_affinity_config=config)
    if kind != EXTERNAL_NAME:
        spec = replace(
            spec,
            internal_traffic_policy=spec.internal_traffic_policy or "Cluster",
            ip_families=spec.ip_families or ("IPv4",),
            ip_family_policy=spec.ip_family_policy or "SingleStack",
            cluster_ips=(spec.cluster_ip,) if spec.cluster_ip else (),
        )
    if kind in (NODE_PORT, LOAD_BALANCER):
        spec = replace(spec, external_traffic_policy=spec.external_traffic_policy or "Cluster")
    if kind == LOAD_BALANCER and spec.allocate_load_balancer_node_ports is None:
        spec = replace(spec, allocate_load_balancer_node_ports=True)
    return replace(service, spec=spec)


def _port(port: ServicePort) -> ServicePort:
    return replace(port, protocol=port.protocol or "TCP", target_port=port.target_port or port.port)


# --- checks -----------------------------------------------------------------------------------------------------------


def check(service: Service) -> Iterator[Problem]:
    """Every problem, by path."""
    spec = service.spec
    yield from choices(
        ("spec.type", spec.type, TYPES),
        ("spec.sessionAffinity", spec.session_affinity, ("ClientIP", "None")),
        ("spec.internalTrafficPolicy", spec.internal_traffic_policy, ("Cluster", "Local")),
        ("spec.externalTrafficPolicy", spec.external_traffic_policy, ("Cluster", "Local")),
        ("spec.ipFamilyPolicy", spec.ip_family_policy, ("SingleStack", "PreferDualStack")),
    )
    for problem in check_selector("spec", LabelSelector(match_labels=spec.selector)):
        yield problem._replace(path=problem.path.replace("matchLabels", "selector"))
    yield from _check_name_only(spec)
    yield from _check_addresses(spec)
    yield from _check_ports(spec)
    yield from _check_affinity(spec)


def _check_name_only(spec: ServiceSpec) -> Iterator[Problem]:
    if spec.type == EXTERNAL_NAME:
        if not spec.external_name:
            yield Problem("spec.externalName", '""', "a name is required for this type", MISSING)
        elif names.dns_subdomain(spec.external_name.rstrip(".")):
            why = names.dns_subdomain(spec.external_name.rstrip("."))
            yield Problem("spec.externalName", shown(spec.external_name), why)
        if spec.cluster_ip:
            yield Problem("spec.clusterIP", shown(spec.cluster_ip), "an ExternalName has none", FORBIDDEN)
    elif not spec.ports and spec.cluster_ip != HEADLESS:
        yield Problem("spec.ports", "[]", "at least one port is required", MISSING)


def _check_addresses(spec: ServiceSpec) -> Iterator[Problem]:
    if spec.cluster_ip not in ("", HEADLESS):
        yield from _check_address("spec.clusterIP", spec.cluster_ip)
    if spec.cluster_ip == HEADLESS and spec.type in (NODE_PORT, LOAD_BALANCER):
        yield Problem("spec.clusterIP", '"None"', f"may not be set to 'None' for {spec.type} services")
    if spec.cluster_ips and spec.cluster_ips != (spec.cluster_ip,):
        yield Problem("spec.clusterIPs", shown(spec.cluster_ips), "one, the same as clusterIP, is accepted")
    if spec.ip_families not in ((), ("IPv4",)):
        yield Problem("spec.ipFamilies", shown(spec.ip_families), '["IPv4"] is accepted')
    for number, text in enumerate(spec.external_ips):
        yield from _check_address(f"spec.externalIPs[{number}]", text)


def _check_address(path: str, text: str) -> Iterator[Problem]:
    try:
        address = IPv4Address(text)
    except ValueError:
        yield Problem(path, shown(text), "an IPv4 address is accepted")
        return
    if address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local:
        yield Problem(path, shown(text), "an address that others can reach is accepted")


def _check_ports(spec: ServiceSpec) -> Iterator[Problem]:
    yield from duplicates("spec.ports[{}].name", [port.name for port in spec.ports])
    yield from duplicates("spec.ports[{}]", [f"{port.port}/{port.protocol or 'TCP'}" for port in spec.ports])
    for number, port in enumerate(spec.ports):
        path = f"spec.ports[{number}]"
        if len(spec.ports) > 1 and not port.name:
            yield Problem(f"{path}.name", '""', "a name is required where there are several ports", MISSING)
        elif port.name and names.dns_label(port.name):
            yield Problem(f"{path}.name", shown(port.name), names.dns_label(port.name))
        yield from choices((f"{path}.protocol", port.protocol, PROTOCOLS))
        yield from _check_number(f"{path}.port", port.port)
        if isinstance(port.target_port, int) and port.target_port:
            yield from _check_number(f"{path}.targetPort", port.target_port)
        elif isinstance(port.target_port, str) and names.port_name(port.target_port):
            yield Problem(f"{path}.targetPort", shown(port.target_port), names.port_name(port.target_port))
        if port.node_port and spec.type not in (NODE_PORT, LOAD_BALANCER):
            why = "may not be used when `type` is 'ClusterIP'"
            yield Problem(f"{path}.nodePort", shown(port.node_port), why, FORBIDDEN)


def _check_number(path: str, number: int) -> Iterator[Problem]:
    if not 1 <= number <= 65535:
        yield Problem(path, shown(number), "must be between 1 and 65535, inclusive")


def _check_affinity(spec: ServiceSpec) -> Iterator[Problem]:
    config = spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config is not None and config.client_ip is not None else None
    if config is not None and spec.session_affinity != "ClientIP":
        why = "must not be set when session affinity is None"
        yield Problem("spec.sessionAffinityConfig", "given", why, FORBIDDEN)
    elif seconds is not None and not 1 <= seconds <= LONGEST_AFFINITY:
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        yield Problem(path, shown(seconds), f"must be between 1 and {LONGEST_AFFINITY}")


def immutable(old: Service, new: Service) -> Iterator[Problem]:
    """A service that has an address keeps it for as long as it is to have one."""
    had, has = old.spec.cluster_ip, new.spec.cluster_ip
    if EXTERNAL_NAME not in (old.spec.type, new.spec.type) and had and has != had:
        yield Problem("spec.clusterIPs[0]", shown([has]), "may not change once set")

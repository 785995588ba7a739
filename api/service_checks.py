"""What is accepted of a Service. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network

from msgspec.structs import replace

from api import names
from api.label_selector import LabelSelector, check_selector
from api.schema import FORBIDDEN, MISSING, Problem, choices, duplicates, shown
from api.services import (
    CLIENT_IP,
    CLUSTER,
    CLUSTER_IP,
    EXTERNAL_NAME,
    HEADLESS,
    LOAD_BALANCER,
    LOCAL,
    LONGEST_AFFINITY,
    NODE_PORT,
    PROTOCOLS,
    TYPES,
    LoadBalancerStatus,
    Service,
    ServiceSpec,
    has_health_port,
    is_open,
)

POLICIES = (CLUSTER, LOCAL)
NEARBY = ("PreferClose", "PreferSameZone", "PreferSameNode")
"""What may be wished of the distribution of traffic."""


def check(service: Service) -> Iterator[Problem]:
    """Every problem, by path."""
    spec = service.spec
    yield from choices(
        ("spec.type", spec.type, TYPES),
        ("spec.sessionAffinity", spec.session_affinity, (CLIENT_IP, "None")),
        ("spec.internalTrafficPolicy", spec.internal_traffic_policy, POLICIES),
        ("spec.externalTrafficPolicy", spec.external_traffic_policy, POLICIES),
        ("spec.ipFamilyPolicy", spec.ip_family_policy, ("SingleStack", "PreferDualStack")),
        ("spec.trafficDistribution", spec.traffic_distribution or "", NEARBY),
    )
    for problem in check_selector("spec", LabelSelector(match_labels=spec.selector)):
        yield problem._replace(path=problem.path.replace("matchLabels", "selector"))
    yield from _check_name_only(spec)
    yield from _check_addresses(spec)
    yield from _check_ports(spec)
    yield from _check_affinity(spec)
    yield from _check_outside(spec)
    yield from _check_load_balancer(spec)
    yield from _check_told(service.status.load_balancer)


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
    opened = [f"{port.node_port}/{port.protocol or 'TCP'}" if port.node_port else "" for port in spec.ports]
    yield from duplicates("spec.ports[{}].nodePort", opened)
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
    if spec.session_affinity == CLIENT_IP and seconds is not None and not 1 <= seconds <= LONGEST_AFFINITY:
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        yield Problem(path, shown(seconds), f"must be between 1 and {LONGEST_AFFINITY}")


def _check_outside(spec: ServiceSpec) -> Iterator[Problem]:
    """What only makes sense where callers from outside come in."""
    if spec.external_traffic_policy and not is_open(replace(spec, type=spec.type or CLUSTER_IP)):
        why = "may only be set for externally-accessible services"
        yield Problem("spec.externalTrafficPolicy", shown(spec.external_traffic_policy), why)
    if not spec.health_check_node_port:
        return
    if not has_health_port(spec):
        why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        yield Problem("spec.healthCheckNodePort", shown(spec.health_check_node_port), why)
    yield from _check_number("spec.healthCheckNodePort", spec.health_check_node_port)


def _check_load_balancer(spec: ServiceSpec) -> Iterator[Problem]:
    """What only services of the type LoadBalancer have."""
    rows = (
        ("allocateLoadBalancerNodePorts", spec.allocate_load_balancer_node_ports),
        ("loadBalancerClass", spec.load_balancer_class),
        ("loadBalancerSourceRanges", spec.load_balancer_source_ranges or None),
    )
    for name, value in rows:
        if value is not None and spec.type != LOAD_BALANCER:
            yield Problem(f"spec.{name}", shown(value), "may only be used when `type` is 'LoadBalancer'", FORBIDDEN)
    if spec.load_balancer_class is not None and names.label_key(spec.load_balancer_class):
        why = names.label_key(spec.load_balancer_class)
        yield Problem("spec.loadBalancerClass", shown(spec.load_balancer_class), why)
    for number, text in enumerate(spec.load_balancer_source_ranges):
        try:
            IPv4Network(text.strip(), strict=False)
        except ValueError:
            why = "must be a list of IP ranges. For example: 10.240.0.0/24,10.250.0.0/24"
            yield Problem(f"spec.loadBalancerSourceRanges[{number}]", shown(text), why)


def _check_told(status: LoadBalancerStatus) -> Iterator[Problem]:
    for number, row in enumerate(status.ingress):
        path = f"status.loadBalancer.ingress[{number}]"
        if row.ip:
            yield from _check_address(f"{path}.ip", row.ip)
        if row.hostname and names.dns_subdomain(row.hostname):
            yield Problem(f"{path}.hostname", shown(row.hostname), names.dns_subdomain(row.hostname))
        yield from choices((f"{path}.ipMode", row.ip_mode or "", ("VIP", "Proxy")))
        if row.ip_mode and not row.ip:
            yield Problem(f"{path}.ipMode", shown(row.ip_mode), "may not be specified when `ip` is not set", FORBIDDEN)


def immutable(old: Service, new: Service) -> Iterator[Problem]:
    """A service that has an address, a port of its health or a class keeps it for as long as it is to have one."""
    had, has = old.spec.cluster_ip, new.spec.cluster_ip
    if EXTERNAL_NAME not in (old.spec.type, new.spec.type) and had and has != had:
        yield Problem("spec.clusterIPs[0]", shown([has]), "may not change once set")
    both = has_health_port(old.spec) and has_health_port(new.spec)
    port, asked = old.spec.health_check_node_port, new.spec.health_check_node_port
    if both and port and asked != port:
        yield Problem("spec.healthCheckNodePort", shown(asked), "field is immutable")
    kind, other = old.spec.load_balancer_class, new.spec.load_balancer_class
    if old.spec.type == new.spec.type == LOAD_BALANCER and kind != other:
        yield Problem("spec.loadBalancerClass", shown(other), "may not change once set")

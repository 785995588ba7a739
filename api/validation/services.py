"""Checks of Service, Endpoints and EndpointSlice. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network

from msgspec.structs import replace

from api.core.endpoints import MOST_IN_A_SLICE, EndpointPort, Endpoints, EndpointSlice, SlicePort
from api.core.services import (
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
from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, FieldError, duplicate_values, quoted, unsupported_values
from api.meta.selectors import LabelSelector, check_selector


def check_endpoints(item: Endpoints) -> Iterator[FieldError]:
    """Every problem, by path."""
    for number, subset in enumerate(item.subsets):
        path = f"subsets[{number}]"
        if not subset.addresses and not subset.not_ready_addresses:
            yield FieldError(path, "{}", "must specify `addresses` or `notReadyAddresses`", MISSING)
        for name, rows in (("addresses", subset.addresses), ("notReadyAddresses", subset.not_ready_addresses)):
            for place, row in enumerate(rows):
                yield from _check_endpoint_address(f"{path}.{name}[{place}].ip", row.ip)
        yield from _check_endpoint_ports(path, subset.ports)


def check_slice(item: EndpointSlice) -> Iterator[FieldError]:
    """Every problem, by path."""
    if not item.address_type:
        yield FieldError("addressType", '""', "IPv4 is required", MISSING)
    yield from unsupported_values(("addressType", item.address_type, ("IPv4", "IPv6", "FQDN")))
    if len(item.endpoints) > MOST_IN_A_SLICE:
        yield FieldError("endpoints", quoted(len(item.endpoints)), f"must have at most {MOST_IN_A_SLICE} items")
    for number, row in enumerate(item.endpoints):
        if not row.addresses:
            yield FieldError(f"endpoints[{number}].addresses", "[]", "at least one address is required", MISSING)
        if item.address_type == "IPv4":
            for place, text in enumerate(row.addresses):
                yield from _check_endpoint_address(f"endpoints[{number}].addresses[{place}]", text)
    yield from _check_endpoint_ports("", item.ports)


def immutable_slice(old: EndpointSlice, new: EndpointSlice) -> Iterator[FieldError]:
    """A slice keeps the family of its addresses."""
    if old.address_type != new.address_type:
        yield FieldError("addressType", quoted(new.address_type), "field is immutable", FORBIDDEN)


def _check_endpoint_address(path: str, text: str) -> Iterator[FieldError]:
    try:
        address = IPv4Address(text)
    except ValueError:
        yield FieldError(path, quoted(text), "must be a valid IP address")
        return
    for bad, why in (
        (address.is_unspecified, "may not be unspecified (0.0.0.0 or ::)"),
        (address.is_loopback, "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (address.is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (address.is_multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
    ):
        if bad:
            yield FieldError(path, quoted(text), why)


def _check_endpoint_ports(path: str, ports: Sequence[EndpointPort | SlicePort]) -> Iterator[FieldError]:
    for number, port in enumerate(ports):
        place = f"{path}.ports[{number}]".lstrip(".")
        if not 1 <= port.port <= 65535:
            yield FieldError(f"{place}.port", quoted(port.port), "must be between 1 and 65535, inclusive")
        if len(ports) > 1 and not port.name:
            yield FieldError(f"{place}.name", '""', "a name is required where there are several ports", MISSING)
        yield from unsupported_values((f"{place}.protocol", port.protocol, PROTOCOLS))


POLICIES = (CLUSTER, LOCAL)
NEARBY = ("PreferClose", "PreferSameZone", "PreferSameNode")
"""What may be wished of the distribution of traffic."""


def check_service(service: Service) -> Iterator[FieldError]:
    """Every problem, by path."""
    spec = service.spec
    yield from unsupported_values(
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


def _check_name_only(spec: ServiceSpec) -> Iterator[FieldError]:
    if spec.type == EXTERNAL_NAME:
        if not spec.external_name:
            yield FieldError("spec.externalName", '""', "a name is required for this type", MISSING)
        elif names.dns_subdomain_error(spec.external_name.rstrip(".")):
            why = names.dns_subdomain_error(spec.external_name.rstrip("."))
            yield FieldError("spec.externalName", quoted(spec.external_name), why)
        if spec.cluster_ip:
            yield FieldError("spec.clusterIP", quoted(spec.cluster_ip), "an ExternalName has none", FORBIDDEN)
    elif not spec.ports and spec.cluster_ip != HEADLESS:
        yield FieldError("spec.ports", "[]", "at least one port is required", MISSING)


def _check_addresses(spec: ServiceSpec) -> Iterator[FieldError]:
    if spec.cluster_ip not in ("", HEADLESS):
        yield from _check_address("spec.clusterIP", spec.cluster_ip)
    if spec.cluster_ip == HEADLESS and spec.type in (NODE_PORT, LOAD_BALANCER):
        yield FieldError("spec.clusterIP", '"None"', f"may not be set to 'None' for {spec.type} services")
    if spec.cluster_ips and spec.cluster_ips != (spec.cluster_ip,):
        yield FieldError("spec.clusterIPs", quoted(spec.cluster_ips), "one, the same as clusterIP, is accepted")
    if spec.ip_families not in ((), ("IPv4",)):
        yield FieldError("spec.ipFamilies", quoted(spec.ip_families), '["IPv4"] is accepted')
    for number, text in enumerate(spec.external_ips):
        yield from _check_address(f"spec.externalIPs[{number}]", text)


def _check_address(path: str, text: str) -> Iterator[FieldError]:
    try:
        address = IPv4Address(text)
    except ValueError:
        yield FieldError(path, quoted(text), "an IPv4 address is accepted")
        return
    if address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local:
        yield FieldError(path, quoted(text), "an address that others can reach is accepted")


def _check_ports(spec: ServiceSpec) -> Iterator[FieldError]:
    yield from duplicate_values("spec.ports[{}].name", [port.name for port in spec.ports])
    yield from duplicate_values("spec.ports[{}]", [f"{port.port}/{port.protocol or 'TCP'}" for port in spec.ports])
    opened = [f"{port.node_port}/{port.protocol or 'TCP'}" if port.node_port else "" for port in spec.ports]
    yield from duplicate_values("spec.ports[{}].nodePort", opened)
    for number, port in enumerate(spec.ports):
        path = f"spec.ports[{number}]"
        if len(spec.ports) > 1 and not port.name:
            yield FieldError(f"{path}.name", '""', "a name is required where there are several ports", MISSING)
        elif port.name and names.dns_label_error(port.name):
            yield FieldError(f"{path}.name", quoted(port.name), names.dns_label_error(port.name))
        yield from unsupported_values((f"{path}.protocol", port.protocol, PROTOCOLS))
        yield from _check_number(f"{path}.port", port.port)
        if isinstance(port.target_port, int) and port.target_port:
            yield from _check_number(f"{path}.targetPort", port.target_port)
        elif isinstance(port.target_port, str) and names.port_name_error(port.target_port):
            yield FieldError(f"{path}.targetPort", quoted(port.target_port), names.port_name_error(port.target_port))
        if port.node_port and spec.type not in (NODE_PORT, LOAD_BALANCER):
            why = "may not be used when `type` is 'ClusterIP'"
            yield FieldError(f"{path}.nodePort", quoted(port.node_port), why, FORBIDDEN)


def _check_number(path: str, number: int) -> Iterator[FieldError]:
    if not 1 <= number <= 65535:
        yield FieldError(path, quoted(number), "must be between 1 and 65535, inclusive")


def _check_affinity(spec: ServiceSpec) -> Iterator[FieldError]:
    config = spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config is not None and config.client_ip is not None else None
    if spec.session_affinity == CLIENT_IP and seconds is not None and not 1 <= seconds <= LONGEST_AFFINITY:
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        yield FieldError(path, quoted(seconds), f"must be between 1 and {LONGEST_AFFINITY}")


def _check_outside(spec: ServiceSpec) -> Iterator[FieldError]:
    """What only makes sense where callers from outside come in."""
    if spec.external_traffic_policy and not is_open(replace(spec, type=spec.type or CLUSTER_IP)):
        why = "may only be set for externally-accessible services"
        yield FieldError("spec.externalTrafficPolicy", quoted(spec.external_traffic_policy), why)
    if not spec.health_check_node_port:
        return
    if not has_health_port(spec):
        why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        yield FieldError("spec.healthCheckNodePort", quoted(spec.health_check_node_port), why)
    yield from _check_number("spec.healthCheckNodePort", spec.health_check_node_port)


def _check_load_balancer(spec: ServiceSpec) -> Iterator[FieldError]:
    """What only services of the type LoadBalancer have."""
    rows = (
        ("allocateLoadBalancerNodePorts", spec.allocate_load_balancer_node_ports),
        ("loadBalancerClass", spec.load_balancer_class),
        ("loadBalancerSourceRanges", spec.load_balancer_source_ranges or None),
    )
    for name, value in rows:
        if value is not None and spec.type != LOAD_BALANCER:
            yield FieldError(f"spec.{name}", quoted(value), "may only be used when `type` is 'LoadBalancer'", FORBIDDEN)
    if spec.load_balancer_class is not None and names.label_key_error(spec.load_balancer_class):
        why = names.label_key_error(spec.load_balancer_class)
        yield FieldError("spec.loadBalancerClass", quoted(spec.load_balancer_class), why)
    for number, text in enumerate(spec.load_balancer_source_ranges):
        try:
            IPv4Network(text.strip(), strict=False)
        except ValueError:
            why = "must be a list of IP ranges. For example: 10.240.0.0/24,10.250.0.0/24"
            yield FieldError(f"spec.loadBalancerSourceRanges[{number}]", quoted(text), why)


def _check_told(status: LoadBalancerStatus) -> Iterator[FieldError]:
    for number, row in enumerate(status.ingress):
        path = f"status.loadBalancer.ingress[{number}]"
        if row.ip:
            yield from _check_address(f"{path}.ip", row.ip)
        if row.hostname and names.dns_subdomain_error(row.hostname):
            yield FieldError(f"{path}.hostname", quoted(row.hostname), names.dns_subdomain_error(row.hostname))
        yield from unsupported_values((f"{path}.ipMode", row.ip_mode or "", ("VIP", "Proxy")))
        if row.ip_mode and not row.ip:
            yield FieldError(
                f"{path}.ipMode", quoted(row.ip_mode), "may not be specified when `ip` is not set", FORBIDDEN
            )


def immutable(old: Service, new: Service) -> Iterator[FieldError]:
    """A service that has an address, a port of its health or a class keeps it for as long as it is to have one."""
    had, has = old.spec.cluster_ip, new.spec.cluster_ip
    if EXTERNAL_NAME not in (old.spec.type, new.spec.type) and had and has != had:
        yield FieldError("spec.clusterIPs[0]", quoted([has]), "may not change once set")
    both = has_health_port(old.spec) and has_health_port(new.spec)
    port, asked = old.spec.health_check_node_port, new.spec.health_check_node_port
    if both and port and asked != port:
        yield FieldError("spec.healthCheckNodePort", quoted(asked), "field is immutable")
    kind, other = old.spec.load_balancer_class, new.spec.load_balancer_class
    if old.spec.type == new.spec.type == LOAD_BALANCER and kind != other:
        yield FieldError("spec.loadBalancerClass", quoted(other), "may not change once set")

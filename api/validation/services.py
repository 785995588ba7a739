"""Checks of Service, Endpoints and EndpointSlice. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network

from msgspec.structs import replace

from api.core.endpoints import MAX_ENDPOINTS_PER_SLICE, EndpointPort, Endpoints, EndpointSlice, SlicePort
from api.core.services import (
    CLIENT_IP,
    CLUSTER,
    CLUSTER_IP,
    EXTERNAL_NAME,
    HEADLESS,
    LOAD_BALANCER,
    LOCAL,
    MAX_AFFINITY_SECONDS,
    NODE_PORT,
    PROTOCOLS,
    TYPES,
    LoadBalancerStatus,
    Service,
    ServiceSpec,
    is_externally_accessible,
    needs_health_check_node_port,
)
from api.meta import names
from api.meta.schema import FORBIDDEN, MISSING, TOO_MANY, FieldError, duplicate_values, quoted, unsupported_values
from api.meta.selectors import LabelSelector, check_selector

TRAFFIC_POLICIES = (CLUSTER, LOCAL)
TRAFFIC_DISTRIBUTIONS = ("PreferClose", "PreferSameZone", "PreferSameNode")


# --- Service ----------------------------------------------------------------------------------------------------------

MAX_PORTS, MAX_ADDRESSES, MAX_SELECTOR_LABELS = 1000, 1000, 100
"""Ports of a service, addresses of each field with addresses, and labels of its selector."""


def check_service_numbers(service: Service) -> Iterator[FieldError]:
    """Yield an error for each list of a Service with too many items."""
    spec = service.spec
    for path, items, limit in (
        ("spec.ports", spec.ports, MAX_PORTS),
        ("spec.externalIPs", spec.external_ips, MAX_ADDRESSES),
        ("spec.loadBalancerSourceRanges", spec.load_balancer_source_ranges, MAX_ADDRESSES),
        ("spec.selector", spec.selector, MAX_SELECTOR_LABELS),
    ):
        if len(items) > limit:
            yield FieldError(path, str(len(items)), f"must have at most {limit} items", TOO_MANY)


def check_service(service: Service) -> Iterator[FieldError]:
    """Yield the errors of a Service."""
    spec = service.spec
    yield from unsupported_values(
        ("spec.type", spec.type, TYPES),
        ("spec.sessionAffinity", spec.session_affinity, (CLIENT_IP, "None")),
        ("spec.internalTrafficPolicy", spec.internal_traffic_policy, TRAFFIC_POLICIES),
        ("spec.externalTrafficPolicy", spec.external_traffic_policy, TRAFFIC_POLICIES),
        ("spec.ipFamilyPolicy", spec.ip_family_policy, ("SingleStack", "PreferDualStack")),
        ("spec.trafficDistribution", spec.traffic_distribution or "", TRAFFIC_DISTRIBUTIONS),
    )
    for error in check_selector("spec", LabelSelector(match_labels=spec.selector)):
        yield error._replace(path=error.path.replace("matchLabels", "selector"))
    yield from _check_external_name(spec)
    if spec.type != EXTERNAL_NAME and not spec.ports and spec.cluster_ip != HEADLESS:
        yield FieldError("spec.ports", "[]", "at least one port is required", MISSING)
    yield from _check_addresses(spec)
    yield from _check_ports(spec)
    yield from _check_affinity(spec)
    yield from _check_external_traffic(spec)
    yield from _check_load_balancer(spec)
    yield from _check_load_balancer_status(service.status.load_balancer)


def _check_external_name(spec: ServiceSpec) -> Iterator[FieldError]:
    if spec.type != EXTERNAL_NAME:
        return
    if not spec.external_name:
        yield FieldError("spec.externalName", '""', "a name is required for this type", MISSING)
    elif error := names.dns_subdomain_error(spec.external_name.rstrip(".")):
        yield FieldError("spec.externalName", quoted(spec.external_name), error)
    if spec.cluster_ip:
        yield FieldError("spec.clusterIP", quoted(spec.cluster_ip), "an ExternalName has none", FORBIDDEN)


def _check_addresses(spec: ServiceSpec) -> Iterator[FieldError]:
    if spec.cluster_ip not in ("", HEADLESS):
        yield from _check_address("spec.clusterIP", spec.cluster_ip)
    if spec.cluster_ip == HEADLESS and spec.type in (NODE_PORT, LOAD_BALANCER):
        yield FieldError("spec.clusterIP", '"None"', f"may not be set to 'None' for {spec.type} services")
    if spec.cluster_ips and spec.cluster_ips != (spec.cluster_ip,):
        yield FieldError("spec.clusterIPs", quoted(spec.cluster_ips), "one, the same as clusterIP, is accepted")
    if spec.ip_families not in ((), ("IPv4",)):
        yield FieldError("spec.ipFamilies", quoted(spec.ip_families), '["IPv4"] is accepted')
    for index, address in enumerate(spec.external_ips):
        yield from _check_address(f"spec.externalIPs[{index}]", address)


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
    node_ports = [f"{port.node_port}/{port.protocol or 'TCP'}" if port.node_port else "" for port in spec.ports]
    yield from duplicate_values("spec.ports[{}].nodePort", node_ports)
    for index, port in enumerate(spec.ports):
        path = f"spec.ports[{index}]"
        if len(spec.ports) > 1 and not port.name:
            yield FieldError(f"{path}.name", '""', "a name is required where there are several ports", MISSING)
        elif port.name and (error := names.dns_label_error(port.name)):
            yield FieldError(f"{path}.name", quoted(port.name), error)
        yield from unsupported_values((f"{path}.protocol", port.protocol, PROTOCOLS))
        yield from _check_port_number(f"{path}.port", port.port)
        if isinstance(port.target_port, int) and port.target_port:
            yield from _check_port_number(f"{path}.targetPort", port.target_port)
        elif isinstance(port.target_port, str) and (error := names.port_name_error(port.target_port)):
            yield FieldError(f"{path}.targetPort", quoted(port.target_port), error)
        if port.node_port and spec.type not in (NODE_PORT, LOAD_BALANCER):
            reason = "may not be used when `type` is 'ClusterIP'"
            yield FieldError(f"{path}.nodePort", quoted(port.node_port), reason, FORBIDDEN)


def _check_port_number(path: str, number: int) -> Iterator[FieldError]:
    if not 1 <= number <= 65535:
        yield FieldError(path, quoted(number), "must be between 1 and 65535, inclusive")


def _check_affinity(spec: ServiceSpec) -> Iterator[FieldError]:
    config = spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config is not None and config.client_ip is not None else None
    if spec.session_affinity == CLIENT_IP and seconds is not None and not 1 <= seconds <= MAX_AFFINITY_SECONDS:
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        yield FieldError(path, quoted(seconds), f"must be between 1 and {MAX_AFFINITY_SECONDS}")


def _check_external_traffic(spec: ServiceSpec) -> Iterator[FieldError]:
    """Yield the errors of fields that only an externally accessible service may have."""
    if spec.external_traffic_policy and not is_externally_accessible(replace(spec, type=spec.type or CLUSTER_IP)):
        reason = "may only be set for externally-accessible services"
        yield FieldError("spec.externalTrafficPolicy", quoted(spec.external_traffic_policy), reason)
    if not spec.health_check_node_port:
        return
    if not needs_health_check_node_port(spec):
        reason = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        yield FieldError("spec.healthCheckNodePort", quoted(spec.health_check_node_port), reason)
    yield from _check_port_number("spec.healthCheckNodePort", spec.health_check_node_port)


def _check_load_balancer(spec: ServiceSpec) -> Iterator[FieldError]:
    """Yield the errors of fields that only a service of the type LoadBalancer may have."""
    fields = (
        ("allocateLoadBalancerNodePorts", spec.allocate_load_balancer_node_ports),
        ("loadBalancerClass", spec.load_balancer_class),
        ("loadBalancerSourceRanges", spec.load_balancer_source_ranges or None),
    )
    for name, value in fields:
        if value is not None and spec.type != LOAD_BALANCER:
            yield FieldError(f"spec.{name}", quoted(value), "may only be used when `type` is 'LoadBalancer'", FORBIDDEN)
    if spec.load_balancer_class is not None and (error := names.label_key_error(spec.load_balancer_class)):
        yield FieldError("spec.loadBalancerClass", quoted(spec.load_balancer_class), error)
    for index, source_range in enumerate(spec.load_balancer_source_ranges):
        try:
            IPv4Network(source_range.strip(), strict=False)
        except ValueError:
            reason = "must be a list of IP ranges. For example: 10.240.0.0/24,10.250.0.0/24"
            yield FieldError(f"spec.loadBalancerSourceRanges[{index}]", quoted(source_range), reason)


def _check_load_balancer_status(status: LoadBalancerStatus) -> Iterator[FieldError]:
    for index, ingress in enumerate(status.ingress):
        path = f"status.loadBalancer.ingress[{index}]"
        if ingress.ip:
            yield from _check_address(f"{path}.ip", ingress.ip)
        if ingress.hostname and (error := names.dns_subdomain_error(ingress.hostname)):
            yield FieldError(f"{path}.hostname", quoted(ingress.hostname), error)
        yield from unsupported_values((f"{path}.ipMode", ingress.ip_mode or "", ("VIP", "Proxy")))
        if ingress.ip_mode and not ingress.ip:
            reason = "may not be specified when `ip` is not set"
            yield FieldError(f"{path}.ipMode", quoted(ingress.ip_mode), reason, FORBIDDEN)


def check_service_update(old: Service, new: Service) -> Iterator[FieldError]:
    """Yield an error if an update changes a cluster IP, a health check port or a load balancer class that was set."""
    had_cluster_ip = bool(old.spec.cluster_ip) and old.spec.type != EXTERNAL_NAME
    if had_cluster_ip and new.spec.type != EXTERNAL_NAME and new.spec.cluster_ip != old.spec.cluster_ip:
        yield FieldError("spec.clusterIPs[0]", quoted([new.spec.cluster_ip]), "may not change once set")
    needs_port = needs_health_check_node_port(old.spec) and needs_health_check_node_port(new.spec)
    old_port = old.spec.health_check_node_port
    new_port = new.spec.health_check_node_port
    if needs_port and old_port and new_port != old_port:
        yield FieldError("spec.healthCheckNodePort", quoted(new_port), "field is immutable")
    old_class = old.spec.load_balancer_class
    new_class = new.spec.load_balancer_class
    if old.spec.type == new.spec.type == LOAD_BALANCER and new_class != old_class:
        yield FieldError("spec.loadBalancerClass", quoted(new_class), "may not change once set")


# --- Endpoints and EndpointSlice --------------------------------------------------------------------------------------


def check_endpoints(endpoints: Endpoints) -> Iterator[FieldError]:
    """Yield the errors of an Endpoints object."""
    for subset_index, subset in enumerate(endpoints.subsets):
        path = f"subsets[{subset_index}]"
        if not subset.addresses and not subset.not_ready_addresses:
            yield FieldError(path, "{}", "must specify `addresses` or `notReadyAddresses`", MISSING)
        for field, addresses in (("addresses", subset.addresses), ("notReadyAddresses", subset.not_ready_addresses)):
            for index, address in enumerate(addresses):
                yield from _check_endpoint_address(f"{path}.{field}[{index}].ip", address.ip)
        yield from _check_endpoint_ports(path, subset.ports)


def check_endpoint_slice(endpoint_slice: EndpointSlice) -> Iterator[FieldError]:
    """Yield the errors of an EndpointSlice."""
    address_type = endpoint_slice.address_type
    endpoints = endpoint_slice.endpoints
    if not address_type:
        yield FieldError("addressType", '""', "IPv4 is required", MISSING)
    yield from unsupported_values(("addressType", address_type, ("IPv4", "IPv6", "FQDN")))
    if len(endpoints) > MAX_ENDPOINTS_PER_SLICE:
        yield FieldError("endpoints", quoted(len(endpoints)), f"must have at most {MAX_ENDPOINTS_PER_SLICE} items")
    for index, endpoint in enumerate(endpoints):
        path = f"endpoints[{index}].addresses"
        if not endpoint.addresses:
            yield FieldError(path, "[]", "at least one address is required", MISSING)
        if address_type == "IPv4":
            for address_index, address in enumerate(endpoint.addresses):
                yield from _check_endpoint_address(f"{path}[{address_index}]", address)
    yield from _check_endpoint_ports("", endpoint_slice.ports)


def check_endpoint_slice_update(old: EndpointSlice, new: EndpointSlice) -> Iterator[FieldError]:
    """Yield an error if an update changes the address type."""
    if old.address_type != new.address_type:
        yield FieldError("addressType", quoted(new.address_type), "field is immutable", FORBIDDEN)


def _check_endpoint_address(path: str, text: str) -> Iterator[FieldError]:
    try:
        address = IPv4Address(text)
    except ValueError:
        yield FieldError(path, quoted(text), "must be a valid IP address")
        return
    for is_rejected, reason in (
        (address.is_unspecified, "may not be unspecified (0.0.0.0 or ::)"),
        (address.is_loopback, "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (address.is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (address.is_multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
    ):
        if is_rejected:
            yield FieldError(path, quoted(text), reason)


def _check_endpoint_ports(path: str, ports: Sequence[EndpointPort | SlicePort]) -> Iterator[FieldError]:
    for index, port in enumerate(ports):
        port_path = f"{path}.ports[{index}]".lstrip(".")
        yield from _check_port_number(f"{port_path}.port", port.port)
        if len(ports) > 1 and not port.name:
            yield FieldError(f"{port_path}.name", '""', "a name is required where there are several ports", MISSING)
        yield from unsupported_values((f"{port_path}.protocol", port.protocol, PROTOCOLS))

"""Service, Endpoints, EndpointSlice (v1 and v1beta1), ServiceCIDR and IPAddress. Pure.

Components of Kubernetes before 1.21 use EndpointSlice of discovery.k8s.io/v1beta1.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from api.core import endpoints as newer
from api.core.endpoints import EndpointConditions, Endpoints, EndpointSlice, SlicePort
from api.core.services import (
    CLUSTER_IP,
    EXTERNAL_NAME,
    LOAD_BALANCER,
    LOCAL,
    NODE_PORT,
    LoadBalancerStatus,
    Service,
    ServicePort,
    has_node_ports,
    is_externally_accessible,
    needs_health_check_node_port,
)
from api.meta.names import dns_subdomain_error, path_segment_error
from api.meta.schema import MISSING, FieldError, quoted
from api.meta.types import Object, ObjectReference, StatusCondition, Value, merge_keys
from api.validation.registry import RULES, KindRules
from api.validation.services import check_endpoint_slice, check_endpoint_slice_update
from master.resources.network_policies import validate_network
from master.resources.printing import AGE, NAME, none_if_empty
from master.resources.resource import Column, Resource, Version, proxy_subresource
from master.resources.validation import immutable


def _external_addresses(service: Service) -> str:
    spec = service.spec
    ingress = [address.ip or address.hostname for address in service.status.load_balancer.ingress]
    if spec.type == EXTERNAL_NAME:
        return spec.external_name
    addresses = ",".join([*ingress, *spec.external_ips])
    return addresses or ("<pending>" if spec.type == LOAD_BALANCER else "<none>")


def _port_text(port: ServicePort) -> str:
    return f"{port.port}:{port.node_port}/{port.protocol}" if port.node_port else f"{port.port}/{port.protocol}"


def _selector_text(service: Service) -> str:
    return none_if_empty(",".join(f"{key}={value}" for key, value in sorted(service.spec.selector.items())))


def _prepare_service_for_update(new: Service, old: Service) -> Service:
    """Keep allocated values that the new object omits and may still have."""
    spec = new.spec
    if not spec.cluster_ip and EXTERNAL_NAME not in (spec.type, old.spec.type):
        cluster_ip = old.spec.cluster_ip
        spec = replace(spec, cluster_ip=cluster_ip, cluster_ips=(cluster_ip,) if cluster_ip else ())
    if has_node_ports(old) and has_node_ports(new):
        spec = replace(spec, ports=_keep_node_ports(spec.ports, old.spec.ports))
    if needs_health_check_node_port(old.spec) and needs_health_check_node_port(spec):
        spec = replace(spec, health_check_node_port=spec.health_check_node_port or old.spec.health_check_node_port)
    status = old.status
    if spec.type != LOAD_BALANCER:
        status = replace(status, load_balancer=LoadBalancerStatus())
    return replace(new, spec=spec, status=status)


def _keep_node_ports(ports: tuple[ServicePort, ...], old: tuple[ServicePort, ...]) -> tuple[ServicePort, ...]:
    """Keep the node port of each port by its name, unless another port has it now."""
    had = {port.name: port.node_port for port in old}
    taken = {(port.node_port, port.protocol) for port in ports}
    new_ports = []
    for port in ports:
        port_key = (had.get(port.name, 0), port.protocol)
        if not port.node_port and port_key not in taken:
            taken.add(port_key)
            port = replace(port, node_port=port_key[0])  # noqa: PLW2901 the same port with its number
        new_ports.append(port)
    return tuple(new_ports)


_WITH_CLUSTER_IP = (CLUSTER_IP, NODE_PORT, LOAD_BALANCER)
_TYPES_WITH_FIELD = {
    "clusterIP": _WITH_CLUSTER_IP,
    "clusterIPs": _WITH_CLUSTER_IP,
    "ipFamilies": _WITH_CLUSTER_IP,
    "ipFamilyPolicy": _WITH_CLUSTER_IP,
    "allocateLoadBalancerNodePorts": (LOAD_BALANCER,),
    "loadBalancerClass": (LOAD_BALANCER,),
}
"""Which types of services have a field that the master fills in."""

_EXTERNAL_TRAFFIC_POLICY, _HEALTH_CHECK_NODE_PORT = "externalTrafficPolicy", "healthCheckNodePort"


def _normalize_service_update(document: Any, old: Service) -> Any:
    """Drop fields of another service type from the document, if the client left them unchanged."""
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        return document
    spec, was = dict(spec), msgspec.json.decode(msgspec.json.encode(old.spec))
    if spec.get("clusterIPs") == was.get("clusterIPs") and spec.get("clusterIP") != was.get("clusterIP"):
        spec["clusterIPs"] = [spec["clusterIP"]] if spec.get("clusterIP") else []
    kind = spec.get("type") or CLUSTER_IP
    for name, types in _TYPES_WITH_FIELD.items():
        if old.spec.type in types and kind not in types and spec.get(name) == was.get(name):
            spec.pop(name, None)
    is_outside = kind in (NODE_PORT, LOAD_BALANCER) or (kind == CLUSTER_IP and spec.get("externalIPs"))
    if (
        is_externally_accessible(old.spec)
        and not is_outside
        and spec.get(_EXTERNAL_TRAFFIC_POLICY) == was.get(_EXTERNAL_TRAFFIC_POLICY)
    ):
        spec.pop(_EXTERNAL_TRAFFIC_POLICY, None)
    has_health = kind == LOAD_BALANCER and spec.get(_EXTERNAL_TRAFFIC_POLICY) == LOCAL
    if (
        needs_health_check_node_port(old.spec)
        and not has_health
        and spec.get(_HEALTH_CHECK_NODE_PORT) == was.get(_HEALTH_CHECK_NODE_PORT)
    ):
        spec.pop(_HEALTH_CHECK_NODE_PORT, None)
    opens = kind == NODE_PORT or (kind == LOAD_BALANCER and spec.get("allocateLoadBalancerNodePorts") is not False)
    if has_node_ports(old) and not opens and _node_ports(spec) == _node_ports(was):
        spec["ports"] = [
            {key: value for key, value in port.items() if key != "nodePort"} if isinstance(port, dict) else port
            for port in spec["ports"]
        ]
    return {**document, "spec": spec}


def _node_ports(spec: Mapping[str, Any]) -> list[Any]:
    ports = spec.get("ports")
    node_ports = [port.get("nodePort") for port in ports if isinstance(port, dict)] if isinstance(ports, list) else []
    return [number for number in node_ports if number]


SERVICES: Resource[Service] = Resource(
    type=Service,
    short_names=("svc",),
    categories=("all",),
    columns=(
        NAME,
        Column("Type", "ClusterIP, NodePort, LoadBalancer or ExternalName.", lambda service, _: service.spec.type),
        Column(
            "Cluster-IP", "Its address inside the cluster.", lambda service, _: none_if_empty(service.spec.cluster_ip)
        ),
        Column("External-IP", "Its addresses outside.", lambda service, _: _external_addresses(service)),
        Column(
            "Port(s)",
            "Ports, each with its node port after a colon.",
            lambda service, _: none_if_empty(",".join(map(_port_text, service.spec.ports))),
        ),
        AGE,
        Column("Selector", "Which pods it leads to.", lambda service, _: _selector_text(service), wide=True),
    ),
    rules=RULES[Service],
    selectable_fields=lambda service: {"spec.clusterIP": service.spec.cluster_ip, "spec.type": service.spec.type},
    prepare_for_update=_prepare_service_for_update,
    normalize_update=_normalize_service_update,
    subresources=(proxy_subresource("ServiceProxyOptions"),),
    acted_on_by=(
        "the master assigns a cluster IP, node ports and ingress addresses, and accepts external addresses "
        "within `externalIPNetworkCIDRs`; node agents set environment variables of pods; `proxy` leads to a "
        "ready pod; the sdn daemons forward its addresses to its endpoints"
    ),
)

MAX_SUBSETS_SHOWN = 3


def _endpoints_text(endpoints: Endpoints) -> str:
    addresses = [
        f"{address.ip}:{port.port}" if port is not None else address.ip
        for subset in endpoints.subsets
        for port in (subset.ports or (None,))
        for address in subset.addresses
    ]
    more = f" + {len(addresses) - MAX_SUBSETS_SHOWN} more..." if len(addresses) > MAX_SUBSETS_SHOWN else ""
    return none_if_empty(",".join(addresses[:MAX_SUBSETS_SHOWN])) + more


ENDPOINTS = Resource(
    type=Endpoints,
    short_names=("ep",),
    columns=(
        NAME,
        Column("Endpoints", "The first addresses, with their ports.", lambda endpoints, _: _endpoints_text(endpoints)),
        AGE,
    ),
    rules=RULES[Endpoints],
    acted_on_by="created for services by the master; Endpoints that users create get EndpointSlices too",
)

MAX_ENDPOINTS_SHOWN = 3


def _shortened_list(items: list[str]) -> str:
    more = f" + {len(items) - MAX_ENDPOINTS_SHOWN} more..." if len(items) > MAX_ENDPOINTS_SHOWN else ""
    return (",".join(items[:MAX_ENDPOINTS_SHOWN]) or "<unset>") + more


ENDPOINT_SLICES = Resource(
    type=EndpointSlice,
    columns=(
        NAME,
        Column("AddressType", "IPv4, IPv6 or FQDN.", lambda endpoint_slice, _: endpoint_slice.address_type),
        Column(
            "Ports",
            "The ports that are open at every address.",
            lambda endpoint_slice, _: _shortened_list([str(port.port or "*") for port in endpoint_slice.ports]),
        ),
        Column(
            "Endpoints",
            "The first addresses.",
            lambda endpoint_slice, _: _shortened_list(
                [address for endpoint in endpoint_slice.endpoints for address in endpoint.addresses]
            ),
        ),
        AGE,
    ),
    rules=RULES[EndpointSlice],
    spec=lambda endpoint_slice: (endpoint_slice.endpoints, endpoint_slice.ports),
    acted_on_by="created for services by the master; the sdn daemons and kube-proxy read them",
)

HOSTNAME_LABEL, ZONE_LABEL = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
"""Keys of `topology` that are fields in v1."""


class EndpointV1beta1(Value, frozen=True):
    """An endpoint of a slice. `topology` has the labels of its node that say where it is."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    hostname: str | None = None
    target_ref: ObjectReference | None = None
    topology: dict[str, str] = {}
    node_name: str | None = None


class EndpointSliceV1beta1(Object, frozen=True):
    """Some of the endpoints of the service that its label names."""

    API_VERSION = "discovery.k8s.io/v1beta1"
    KIND = "EndpointSlice"
    PLURAL = "endpointslices"
    NAMESPACED = True

    address_type: str = ""
    endpoints: tuple[EndpointV1beta1, ...] = ()
    ports: tuple[SlicePort, ...] = ()


def _endpoint_to_v1beta1(endpoint: newer.Endpoint) -> EndpointV1beta1:
    places = {HOSTNAME_LABEL: endpoint.node_name, ZONE_LABEL: endpoint.zone}
    return EndpointV1beta1(
        addresses=endpoint.addresses,
        conditions=endpoint.conditions,
        hostname=endpoint.hostname,
        target_ref=endpoint.target_ref,
        topology=endpoint.deprecated_topology | {key: value for key, value in places.items() if value is not None},
        node_name=endpoint.node_name,
    )


def _endpoint_from_v1beta1(endpoint: EndpointV1beta1) -> newer.Endpoint:
    host = endpoint.topology.get(HOSTNAME_LABEL)
    return newer.Endpoint(
        addresses=endpoint.addresses,
        conditions=endpoint.conditions,
        hostname=endpoint.hostname,
        node_name=host if endpoint.node_name is None else endpoint.node_name,
        zone=endpoint.topology.get(ZONE_LABEL),
        target_ref=endpoint.target_ref,
        deprecated_topology={
            key: value for key, value in endpoint.topology.items() if key not in (HOSTNAME_LABEL, ZONE_LABEL)
        },
    )


def _endpoint_slice_v1beta1_from_stored(endpoint_slice: newer.EndpointSlice) -> EndpointSliceV1beta1:
    endpoints = tuple(_endpoint_to_v1beta1(endpoint) for endpoint in endpoint_slice.endpoints)
    return EndpointSliceV1beta1(
        metadata=endpoint_slice.metadata,
        address_type=endpoint_slice.address_type,
        endpoints=endpoints,
        ports=endpoint_slice.ports,
    )


def _endpoint_slice_v1beta1_to_stored(endpoint_slice: EndpointSliceV1beta1) -> newer.EndpointSlice:
    endpoints = tuple(_endpoint_from_v1beta1(endpoint) for endpoint in endpoint_slice.endpoints)
    return newer.EndpointSlice(
        metadata=endpoint_slice.metadata,
        address_type=endpoint_slice.address_type,
        endpoints=endpoints,
        ports=endpoint_slice.ports,
    )


def _validate_endpoint_slice_v1beta1(endpoint_slice: EndpointSliceV1beta1) -> Iterator[FieldError]:
    yield from check_endpoint_slice(_endpoint_slice_v1beta1_to_stored(endpoint_slice))


def _validate_endpoint_slice_v1beta1_update(
    old: EndpointSliceV1beta1, new: EndpointSliceV1beta1
) -> Iterator[FieldError]:
    yield from check_endpoint_slice_update(
        _endpoint_slice_v1beta1_to_stored(old), _endpoint_slice_v1beta1_to_stored(new)
    )


def _default_endpoint_slice_v1beta1(endpoint_slice: EndpointSliceV1beta1) -> EndpointSliceV1beta1:
    return replace(
        endpoint_slice, ports=ENDPOINT_SLICES.rules.default(_endpoint_slice_v1beta1_to_stored(endpoint_slice)).ports
    )


ENDPOINT_SLICES_V1BETA1 = Resource(
    type=EndpointSliceV1beta1,
    columns=ENDPOINT_SLICES.columns,
    spec=lambda endpoint_slice: (endpoint_slice.endpoints, endpoint_slice.ports),
    rules=KindRules(
        default=_default_endpoint_slice_v1beta1,
        validate=_validate_endpoint_slice_v1beta1,
        validate_update=_validate_endpoint_slice_v1beta1_update,
    ),
    stored_as=Version(ENDPOINT_SLICES, _endpoint_slice_v1beta1_from_stored, _endpoint_slice_v1beta1_to_stored),
)


class ServiceCIDRSpec(Value, frozen=True):
    """The networks."""

    cidrs: tuple[str, ...] = ()


class ServiceCIDRStatus(Value, frozen=True):
    """The state that a controller reports."""

    conditions: Annotated[tuple[StatusCondition, ...], merge_keys("type")] = ()


class ServiceCIDR(Object, frozen=True):
    """A network of the addresses of services. The one that is used is created by the master from its settings."""

    API_VERSION = "networking.k8s.io/v1"
    KIND = "ServiceCIDR"
    PLURAL = "servicecidrs"
    NAMESPACED = False

    spec: ServiceCIDRSpec = ServiceCIDRSpec()
    status: ServiceCIDRStatus = ServiceCIDRStatus()


def _validate_service_cidr(service_cidr: ServiceCIDR) -> Iterator[FieldError]:
    if not service_cidr.spec.cidrs:
        yield FieldError("spec.cidrs", "[]", "a network is required", MISSING)
    for number, text in enumerate(service_cidr.spec.cidrs):
        yield from validate_network(f"spec.cidrs[{number}]", text)


SERVICE_CIDR_NAME = "kubernetes"
"""The name of the ServiceCIDR that the master makes from its settings."""


def _service_cidr_warnings(service_cidr: ServiceCIDR) -> Iterator[str]:
    if service_cidr.metadata.name != SERVICE_CIDR_NAME:
        yield "stored, but the addresses of services come from one network, the master's setting serviceNetwork"


SERVICE_CIDRS = Resource(
    type=ServiceCIDR,
    columns=(
        NAME,
        Column("CIDRs", "The networks.", lambda service_cidr, _: ",".join(service_cidr.spec.cidrs)),
        AGE,
    ),
    spec=lambda service_cidr: service_cidr.spec,
    rules=KindRules(
        validate=_validate_service_cidr,
        validate_update=lambda old, new: immutable(("spec.cidrs", old.spec.cidrs, new.spec.cidrs)),
        warnings=_service_cidr_warnings,
    ),
    acted_on_by="`kubernetes` is made from the setting serviceNetwork; others are stored only",
)


class ParentReference(Value, frozen=True):
    """A reference to the object that has an address."""

    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""


class IPAddressSpec(Value, frozen=True):
    """Who has the address."""

    parent_ref: ParentReference | None = None


class IPAddress(Object, frozen=True):
    """An allocated address of a service. It is named by the address."""

    API_VERSION = "networking.k8s.io/v1"
    KIND = "IPAddress"
    PLURAL = "ipaddresses"
    NAMESPACED = False

    spec: IPAddressSpec = IPAddressSpec()


def _ip_address_name_error(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
    return "" if str(address) == text and "%" not in text else f'must be in canonical form ("{address}")'


def _validate_ip_address(address: IPAddress) -> Iterator[FieldError]:
    parent = address.spec.parent_ref
    if parent is None:
        yield FieldError("spec.parentRef", "null", "the object that has the address is required", MISSING)
        return
    for field, text in (("resource", parent.resource), ("name", parent.name)):
        if not text:
            yield FieldError(f"spec.parentRef.{field}", '""', "is required", MISSING)
        elif error := path_segment_error(text):
            yield FieldError(f"spec.parentRef.{field}", quoted(text), error)
    if parent.group and (error := dns_subdomain_error(parent.group)):
        yield FieldError("spec.parentRef.group", quoted(parent.group), error)
    if parent.namespace and (error := path_segment_error(parent.namespace)):
        yield FieldError("spec.parentRef.namespace", quoted(parent.namespace), error)


def _parent_text(address: IPAddress) -> str:
    parent = address.spec.parent_ref or ParentReference()
    resource = f"{parent.resource}.{parent.group}" if parent.group else parent.resource
    return "/".join(filter(None, (resource, parent.namespace, parent.name)))


IP_ADDRESSES = Resource(
    type=IPAddress,
    short_names=("ip",),
    columns=(NAME, Column("ParentRef", "Who has the address.", lambda address, _: _parent_text(address)), AGE),
    rules=KindRules(
        validate=_validate_ip_address,
        validate_update=lambda old, new: immutable(("spec", old.spec, new.spec)),
        validate_name=_ip_address_name_error,
    ),
    spec=lambda address: address.spec,
    acted_on_by="the master records the addresses of services; the allocation itself is in the services",
)

"""Service: one address and one name for some pods. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from api.core.services import (
    CLUSTER_IP,
    EXTERNAL_NAME,
    LOAD_BALANCER,
    LOCAL,
    NODE_PORT,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceStatus,
    has_health_port,
    has_node_ports,
    is_open,
)
from master.kinds.kind import AGE, NAME, Column, Kind, age, or_none, proxy


def _outside(item: Service) -> str:
    spec = item.spec
    given = [row.ip or row.hostname for row in item.status.load_balancer.ingress]
    if spec.type == EXTERNAL_NAME:
        return spec.external_name
    found = ",".join([*given, *spec.external_ips])
    return found or ("<pending>" if spec.type == LOAD_BALANCER else "<none>")


def _port(port: ServicePort) -> str:
    return f"{port.port}:{port.node_port}/{port.protocol}" if port.node_port else f"{port.port}/{port.protocol}"


def _cells(item: Service, now: datetime.datetime) -> tuple[object, ...]:
    spec = item.spec
    return (
        item.metadata.name,
        spec.type,
        or_none(spec.cluster_ip),
        _outside(item),
        or_none(",".join(map(_port, spec.ports))),
        age(item.metadata.creation_timestamp, now),
        or_none(",".join(f"{key}={value}" for key, value in sorted(spec.selector.items()))),
    )


def _on_update(new: Service, old: Service) -> Service:
    """What the master has given stays, where the new object leaves it out and may still have it."""
    spec = new.spec
    if not spec.cluster_ip and EXTERNAL_NAME not in (spec.type, old.spec.type):
        kept = old.spec.cluster_ip
        spec = replace(spec, cluster_ip=kept, cluster_ips=(kept,) if kept else ())
    if has_node_ports(old) and has_node_ports(new):
        spec = replace(spec, ports=_numbered(spec.ports, old.spec.ports))
    if has_health_port(old.spec) and has_health_port(spec):
        spec = replace(spec, health_check_node_port=spec.health_check_node_port or old.spec.health_check_node_port)
    status = old.status
    if spec.type != LOAD_BALANCER:
        status = replace(status, load_balancer=LoadBalancerStatus())
    return replace(new, spec=spec, status=status)


def _numbered(ports: tuple[ServicePort, ...], old: tuple[ServicePort, ...]) -> tuple[ServicePort, ...]:
    """A port that says no node port keeps that which the port of its name had, unless another one has it now."""
    had = {port.name: port.node_port for port in old}
    taken = {(port.node_port, port.protocol) for port in ports}
    found = []
    for port in ports:
        kept = (had.get(port.name, 0), port.protocol)
        if not port.node_port and kept not in taken:
            taken.add(kept)
            port = replace(port, node_port=kept[0])  # noqa: PLW2901 the same port with its number
        found.append(port)
    return tuple(found)


_INSIDE = (CLUSTER_IP, NODE_PORT, LOAD_BALANCER)
_OF_TYPES = {
    "clusterIP": _INSIDE,
    "clusterIPs": _INSIDE,
    "ipFamilies": _INSIDE,
    "ipFamilyPolicy": _INSIDE,
    "allocateLoadBalancerNodePorts": (LOAD_BALANCER,),
    "loadBalancerClass": (LOAD_BALANCER,),
}
"""Which types of services have a field that the master fills in."""

_POLICY, _HEALTH = "externalTrafficPolicy", "healthCheckNodePort"


def _settled(document: Any, old: Service) -> Any:
    """The document without what only another type has, where the client left that as it was."""
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        return document
    spec, was = dict(spec), msgspec.json.decode(msgspec.json.encode(old.spec))
    if spec.get("clusterIPs") == was.get("clusterIPs") and spec.get("clusterIP") != was.get("clusterIP"):
        spec["clusterIPs"] = [spec["clusterIP"]] if spec.get("clusterIP") else []
    kind = spec.get("type") or CLUSTER_IP
    for name, types in _OF_TYPES.items():
        if old.spec.type in types and kind not in types and spec.get(name) == was.get(name):
            spec.pop(name, None)
    is_outside = kind in (NODE_PORT, LOAD_BALANCER) or (kind == CLUSTER_IP and spec.get("externalIPs"))
    if is_open(old.spec) and not is_outside and spec.get(_POLICY) == was.get(_POLICY):
        spec.pop(_POLICY, None)
    has_health = kind == LOAD_BALANCER and spec.get(_POLICY) == LOCAL
    if has_health_port(old.spec) and not has_health and spec.get(_HEALTH) == was.get(_HEALTH):
        spec.pop(_HEALTH, None)
    opens = kind == NODE_PORT or (kind == LOAD_BALANCER and spec.get("allocateLoadBalancerNodePorts") is not False)
    if has_node_ports(old) and not opens and _node_ports(spec) == _node_ports(was):
        spec["ports"] = [
            {key: value for key, value in port.items() if key != "nodePort"} if isinstance(port, dict) else port
            for port in spec["ports"]
        ]
    return {**document, "spec": spec}


def _node_ports(spec: Mapping[str, Any]) -> list[Any]:
    ports = spec.get("ports")
    found = [port.get("nodePort") for port in ports if isinstance(port, dict)] if isinstance(ports, list) else []
    return [number for number in found if number]


SERVICE: Kind[Service] = Kind(
    type=Service,
    plural="services",
    singular="service",
    namespaced=True,
    short=("svc",),
    categories=("all",),
    columns=(
        NAME,
        Column("Type", "ClusterIP, NodePort, LoadBalancer or ExternalName."),
        Column("Cluster-IP", "Its address inside the cluster."),
        Column("External-IP", "Its addresses outside."),
        Column("Port(s)", "Its ports; behind a colon those of the nodes."),
        AGE,
        Column("Selector", "Which pods it leads to.", wide=True),
    ),
    cells=_cells,
    fields=lambda item: {"spec.clusterIP": item.spec.cluster_ip, "spec.type": item.spec.type},
    on_create=lambda item: replace(item, status=ServiceStatus()),
    on_update=_on_update,
    settled=_settled,
    with_status=lambda new, old: replace(old, status=new.status),
    more=(proxy("ServiceProxyOptions"),),
)

"""Service: one address and one name for some pods. Pure."""

from __future__ import annotations

import datetime

from msgspec.structs import replace

from api.services import EXTERNAL_NAME, HEADLESS, LOAD_BALANCER, Service, ServicePort, ServiceStatus
from master.kinds.kind import AGE, NAME, Column, Kind, age, or_none


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
    ports = {(port.port, port.protocol): port.node_port for port in old.spec.ports}
    if spec.type == old.spec.type and spec.cluster_ip != HEADLESS:
        numbered = (
            replace(port, node_port=port.node_port or ports.get((port.port, port.protocol), 0)) for port in spec.ports
        )
        spec = replace(spec, ports=tuple(numbered))
    return replace(new, spec=spec, status=old.status)


SERVICE = Kind(
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
    with_status=lambda new, old: replace(old, status=new.status),
)

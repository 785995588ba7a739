"""Objects for tests, with only the fields that a test needs."""

from __future__ import annotations

from typing import Any

from api.core.node import Namespace, Node, NodeAddress, NodeSpec, NodeStatus
from api.core.pod import Container, Pod, PodSpec, PodStatus, ResourceRequirements
from api.core.services import Service
from api.meta.types import Condition, ObjectMeta
from api.network.types import HostSubnet, NetNamespace
from api.validation.registry import decode, default
from master.resources.cluster_network import NODE_UID_ANNOTATION

THEN = "2026-01-01T00:00:00Z"


def meta(name: str, **rest: Any) -> ObjectMeta:
    return ObjectMeta(
        **{"name": name, "uid": f"uid-{name}", "resource_version": "7", "creation_timestamp": THEN, **rest}
    )


def node(
    name: str,
    ip: str = "10.245.2.3",
    ready: str = "True",
    heartbeat: str = THEN,
    labels: dict[str, str] | None = None,
    unschedulable: bool = False,
    capacity: dict[str, str] | None = None,
    uid: str = "",
) -> Node:
    return Node(
        metadata=meta(name, labels=labels or {}, uid=uid or f"uid-{name}"),
        spec=NodeSpec(unschedulable=unschedulable),
        status=NodeStatus(
            capacity=capacity or {},
            addresses=(NodeAddress(type="InternalIP", address=ip),) if ip else (),
            conditions=(Condition(type="Ready", status=ready, last_heartbeat_time=heartbeat),),
        ),
    )


def pod(
    name: str,
    node: str = "",
    namespace: str = "red",
    requests: dict[str, str] | None = None,
    selector: dict[str, str] | None = None,
    phase: str = "Pending",
    created: str = THEN,
    deleted: str | None = None,
    host_ip: str = "",
) -> Pod:
    container = Container(name="c", image="i", resources=ResourceRequirements(requests=dict(requests or {})))
    return Pod(
        metadata=meta(name, namespace=namespace, creation_timestamp=created, deletion_timestamp=deleted),
        spec=PodSpec(containers=(container,), node_name=node, node_selector=selector or {}),
        status=PodStatus(phase=phase, host_ip=host_ip),
    )


def namespace(name: str, **rest: Any) -> Namespace:
    return Namespace(metadata=meta(name, **rest))


def net_namespace(name: str, netid: int) -> NetNamespace:
    return NetNamespace(metadata=meta(name), netname=name, netid=netid)


def subnet(name: str, network: str, ip: str = "10.245.2.3", uid: str | None = None) -> HostSubnet:
    annotations = {NODE_UID_ANNOTATION: f"uid-{name}" if uid is None else uid} if uid != "" else {}
    return HostSubnet(metadata=meta(name, annotations=annotations), host=name, host_ip=ip, subnet=network)


def service(name: str = "web", **spec: Any) -> Service:
    """Return a Service with defaults. `spec` has fields by their JSON names, such as `clusterIP`.

    A field that a Service does not have fails the test.
    """
    document = {"metadata": {"name": name, "namespace": "red"}, "spec": {"ports": [{"port": 80}], **spec}}
    result, problems, _ = decode(Service, document)
    assert result is not None, problems
    assert not problems
    return default(result)

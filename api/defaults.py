"""What is filled in where a document is silent, as in Kubernetes. Pure."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from api import probes, volumes
from api.objects import Container, ContainerPort, Namespace, NamespaceSpec, NamespaceStatus, Pod, PodSpec
from api.resources import qos_class
from api.security import PodSecurityContext

C = TypeVar("C", bound=Container)

GRACE_SECONDS = 30


def namespace_defaults(namespace: Namespace) -> Namespace:
    """Active, with its label and the finalizer that keeps it until it is empty."""
    meta = namespace.metadata
    label = {"kubernetes.io/metadata.name": meta.name} if meta.name else {}
    return replace(
        namespace,
        metadata=replace(meta, labels=meta.labels | label),
        spec=namespace.spec
        if namespace.spec.finalizers or meta.deletion_timestamp
        else NamespaceSpec(finalizers=("kubernetes",)),
        status=namespace.status if namespace.status.phase else NamespaceStatus(phase="Active"),
    )


def pod_defaults(pod: Pod) -> Pod:
    """Every field that a node reads has a value."""
    spec = spec_defaults(pod.spec)
    spec = replace(
        spec,
        init_containers=tuple(map(_with_requests, spec.init_containers)),
        containers=tuple(map(_with_requests, spec.containers)),
        ephemeral_containers=tuple(map(_with_requests, spec.ephemeral_containers)),
        enable_service_links=True if spec.enable_service_links is None else spec.enable_service_links,
    )
    qos = qos_class((*spec.init_containers, *spec.containers))
    status = replace(pod.status, phase=pod.status.phase or "Pending", qos_class=qos)
    return replace(pod, spec=spec, status=status)


def _with_requests(container: C) -> C:
    """What it may have is what it asks for, where it asks for nothing."""
    requests = {**container.resources.limits, **container.resources.requests}
    return replace(container, resources=replace(container.resources, requests=requests))


def spec_defaults(spec: PodSpec) -> PodSpec:
    """What is filled in in a template, too: less than in a pod."""
    grace = spec.termination_grace_period_seconds
    account = spec.service_account_name or spec.service_account
    return replace(
        spec,
        volumes=tuple(volumes.defaulted(volume) for volume in spec.volumes),
        init_containers=tuple(_container(container, spec.host_network) for container in spec.init_containers),
        containers=tuple(_container(container, spec.host_network) for container in spec.containers),
        ephemeral_containers=tuple(_container(container) for container in spec.ephemeral_containers),
        restart_policy=spec.restart_policy or "Always",
        dns_policy=spec.dns_policy or "ClusterFirst",
        termination_grace_period_seconds=GRACE_SECONDS if grace is None else grace,
        scheduler_name=spec.scheduler_name or "default-scheduler",
        security_context=spec.security_context or PodSecurityContext(),
        service_account_name=account,
        service_account=account,
    )


def _container(container: C, host_network: bool = False) -> C:
    return replace(
        container,
        image_pull_policy=container.image_pull_policy or _pull_policy(container.image),
        ports=tuple(_port(port, host_network) for port in container.ports),
        liveness_probe=probes.probe_defaults(container.liveness_probe),
        readiness_probe=probes.probe_defaults(container.readiness_probe),
        startup_probe=probes.probe_defaults(container.startup_probe),
        lifecycle=probes.lifecycle_defaults(container.lifecycle),
        termination_message_path=container.termination_message_path or "/dev/termination-log",
        termination_message_policy=container.termination_message_policy or "File",
    )


def _port(port: ContainerPort, host_network: bool) -> ContainerPort:
    at_host = port.host_port or (port.container_port if host_network else 0)
    return replace(port, protocol=port.protocol or "TCP", host_port=at_host)


def _pull_policy(image: str) -> str:
    name = image.rpartition("/")[2]
    if "@" in name:
        return "IfNotPresent"
    tag = name.partition(":")[2]
    return "Always" if tag in {"", "latest"} else "IfNotPresent"

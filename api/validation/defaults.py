"""Default values of fields that a document omits, as in Kubernetes. Pure."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from api.core import volumes
from api.core.node import Namespace, NamespaceSpec, NamespaceStatus
from api.core.pod import Container, ContainerPort, HTTPGetAction, Lifecycle, Pod, PodSecurityContext, PodSpec, Probe
from api.core.resources import qos_class

# --- what is filled in ------------------------------------------------------------------------------------------------


def probe_defaults(probe: Probe | None) -> Probe | None:
    """The probe with every default written out."""
    if probe is None:
        return None
    return replace(
        probe,
        http_get=_http_defaults(probe.http_get),
        grpc=None if probe.grpc is None else replace(probe.grpc, service=probe.grpc.service or ""),
        timeout_seconds=probe.timeout_seconds or 1,
        period_seconds=probe.period_seconds or 10,
        success_threshold=probe.success_threshold or 1,
        failure_threshold=probe.failure_threshold or 3,
    )


def lifecycle_defaults(lifecycle: Lifecycle | None) -> Lifecycle | None:
    """The hooks with every default written out."""
    if lifecycle is None:
        return None
    hooks = {
        name: None if hook is None else replace(hook, http_get=_http_defaults(hook.http_get))
        for name, hook in (("post_start", lifecycle.post_start), ("pre_stop", lifecycle.pre_stop))
    }
    return replace(lifecycle, **hooks)


def _http_defaults(action: HTTPGetAction | None) -> HTTPGetAction | None:
    return None if action is None else replace(action, path=action.path or "/", scheme=action.scheme or "HTTP")


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
        liveness_probe=probe_defaults(container.liveness_probe),
        readiness_probe=probe_defaults(container.readiness_probe),
        startup_probe=probe_defaults(container.startup_probe),
        lifecycle=lifecycle_defaults(container.lifecycle),
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

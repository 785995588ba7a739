"""Default values of fields that a document omits, as in Kubernetes. Pure."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from api.core import volumes
from api.core.node import Namespace, NamespaceSpec, NamespaceStatus
from api.core.pod import (
    Container,
    ContainerPort,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    Pod,
    PodSecurityContext,
    PodSpec,
    Probe,
)
from api.core.resource_requests import qos_class

C = TypeVar("C", bound=Container)

DEFAULT_GRACE_SECONDS = 30


def namespace_defaults(namespace: Namespace) -> Namespace:
    """Return the namespace with the phase Active, its name as a label, and the finalizer that keeps it until empty."""
    meta = namespace.metadata
    labels = meta.labels | ({"kubernetes.io/metadata.name": meta.name} if meta.name else {})
    spec = namespace.spec
    if not spec.finalizers and not meta.deletion_timestamp:
        spec = NamespaceSpec(finalizers=("kubernetes",))
    status = namespace.status if namespace.status.phase else NamespaceStatus(phase="Active")
    return replace(namespace, metadata=replace(meta, labels=labels), spec=spec, status=status)


def pod_defaults(pod: Pod) -> Pod:
    """Return the pod with a value in every field that a node reads."""
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
    """Use limits as requests where the container requests nothing."""
    requests = {**container.resources.limits, **container.resources.requests}
    return replace(container, resources=replace(container.resources, requests=requests))


def spec_defaults(spec: PodSpec) -> PodSpec:
    """Return the spec with the defaults that apply in pod templates, too: fewer than in pods."""
    grace_seconds = spec.termination_grace_period_seconds
    service_account = spec.service_account_name or spec.service_account
    return replace(
        spec,
        volumes=tuple(volumes.volume_defaults(volume) for volume in spec.volumes),
        init_containers=tuple(_container_defaults(container, spec.host_network) for container in spec.init_containers),
        containers=tuple(_container_defaults(container, spec.host_network) for container in spec.containers),
        ephemeral_containers=tuple(_container_defaults(container) for container in spec.ephemeral_containers),
        restart_policy=spec.restart_policy or "Always",
        dns_policy=spec.dns_policy or "ClusterFirst",
        termination_grace_period_seconds=DEFAULT_GRACE_SECONDS if grace_seconds is None else grace_seconds,
        scheduler_name=spec.scheduler_name or "default-scheduler",
        security_context=spec.security_context or PodSecurityContext(),
        service_account_name=service_account,
        service_account=service_account,
    )


def _container_defaults(container: C, host_network: bool = False) -> C:
    return replace(
        container,
        image_pull_policy=container.image_pull_policy or _default_pull_policy(container.image),
        ports=tuple(_port_defaults(port, host_network) for port in container.ports),
        liveness_probe=probe_defaults(container.liveness_probe),
        readiness_probe=probe_defaults(container.readiness_probe),
        startup_probe=probe_defaults(container.startup_probe),
        lifecycle=lifecycle_defaults(container.lifecycle),
        termination_message_path=container.termination_message_path or "/dev/termination-log",
        termination_message_policy=container.termination_message_policy or "File",
    )


def _port_defaults(port: ContainerPort, host_network: bool) -> ContainerPort:
    host_port = port.host_port or (port.container_port if host_network else 0)
    return replace(port, protocol=port.protocol or "TCP", host_port=host_port)


def _default_pull_policy(image: str) -> str:
    name = image.rpartition("/")[2]
    if "@" in name:
        return "IfNotPresent"
    tag = name.partition(":")[2]
    return "Always" if tag in {"", "latest"} else "IfNotPresent"


def probe_defaults(probe: Probe | None) -> Probe | None:
    """Return the probe with every default set."""
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
    """Return the hooks with every default set."""
    if lifecycle is None:
        return None
    return replace(
        lifecycle, post_start=_handler_defaults(lifecycle.post_start), pre_stop=_handler_defaults(lifecycle.pre_stop)
    )


def _handler_defaults(handler: LifecycleHandler | None) -> LifecycleHandler | None:
    return None if handler is None else replace(handler, http_get=_http_defaults(handler.http_get))


def _http_defaults(action: HTTPGetAction | None) -> HTTPGetAction | None:
    return None if action is None else replace(action, path=action.path or "/", scheme=action.scheme or "HTTP")

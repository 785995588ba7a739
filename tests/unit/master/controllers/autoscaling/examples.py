"""Pods, measurements and autoscalers that the tests of this folder share."""

from __future__ import annotations

import datetime
from typing import Any

from api.core.pod import Container, Pod, PodSpec, PodStatus, ResourceRequirements
from api.meta.selectors import LabelSelector
from api.meta.types import Condition, ObjectMeta
from master.controllers.autoscaling.replica_calculator import PodMetric
from master.resources.autoscaling import (
    CrossVersionObjectReference,
    HorizontalPodAutoscaler,
    HorizontalPodAutoscalerSpec,
    MetricSpec,
    cpu_utilization_metric,
)
from master.resources.deployments import Deployment, DeploymentSpec, DeploymentStatus
from master.resources.metadata import format_time
from master.resources.metrics import ContainerMetrics, PodMetrics, Usage

NOW = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
LONG_AGO = NOW - datetime.timedelta(hours=1)
WINDOW = datetime.timedelta(seconds=10)


def pod(
    name: str,
    cpu: str = "1",
    *,
    phase: str = "Running",
    ready: str = "True",
    changed: datetime.datetime = LONG_AGO,
    started: datetime.datetime | None = LONG_AGO,
    deleted: bool = False,
    containers: tuple[Container, ...] = (),
    init_containers: tuple[Container, ...] = (),
    labels: dict[str, str] | None = None,
) -> Pod:
    """Return a pod of the project red that has been ready for an hour, with one container."""
    condition = Condition(type="Ready", status=ready, last_transition_time=format_time(changed))
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="red",
            uid=f"uid-{name}",
            labels={"app": "web"} if labels is None else labels,
            deletion_timestamp=format_time(NOW) if deleted else None,
        ),
        spec=PodSpec(
            containers=containers or (container("main", cpu),), init_containers=init_containers, node_name="n"
        ),
        status=PodStatus(
            phase=phase,
            conditions=(condition,) if ready else (),
            start_time=format_time(started) if started else None,
        ),
    )


def container(name: str, cpu: str = "", **more: Any) -> Container:
    """Return a container, with a request if there is one."""
    requests: dict[str, str | int | float] = {"cpu": cpu, "memory": "1Gi"} if cpu else {}
    return Container(name=name, image="i", resources=ResourceRequirements(requests=requests), **more)


def pods(number: int, **more: Any) -> tuple[Pod, ...]:
    """Return pods p0, p1 and so on."""
    return tuple(pod(f"p{index}", **more) for index in range(number))


def usage(*values: int, timestamp: datetime.datetime = NOW) -> dict[str, PodMetric]:
    """Return values of p0, p1 and so on, in thousandths."""
    return {f"p{index}": PodMetric(value, timestamp, WINDOW) for index, value in enumerate(values)}


def measured(*milli_cores: int, namespace: str = "red") -> dict[str, PodMetrics]:
    """Return the metrics of p0, p1 and so on, as the collector has them."""
    return {
        f"p{index}": PodMetrics(
            metadata=ObjectMeta(name=f"p{index}", namespace=namespace),
            timestamp=format_time(NOW),
            window="10s",
            containers=(ContainerMetrics("main", Usage(f"{value * 1_000_000}n", "1024Ki")),),
        )
        for index, value in enumerate(milli_cores)
    }


def autoscaler(
    *metrics: MetricSpec, name: str = "web", target: str = "web", minimum: int = 1, maximum: int = 10, **spec: Any
) -> HorizontalPodAutoscaler:
    """Return an autoscaler of the Deployment web; without metrics it has 50 % of the requested CPU as its target."""
    reference = CrossVersionObjectReference(api_version="apps/v1", kind="Deployment", name=target)
    return HorizontalPodAutoscaler(
        metadata=ObjectMeta(name=name, namespace="red", uid=f"uid-hpa-{name}", generation=3),
        spec=HorizontalPodAutoscalerSpec(
            scale_target_ref=reference,
            min_replicas=minimum,
            max_replicas=maximum,
            metrics=metrics or (cpu_utilization_metric(50),),
            **spec,
        ),
    )


def deployment(replicas: int, name: str = "web", labels: dict[str, str] | None = None) -> Deployment:
    """Return a Deployment of the project red that has as many pods as it desires."""
    return Deployment(
        metadata=ObjectMeta(name=name, namespace="red", uid=f"uid-deployment-{name}", generation=1),
        spec=DeploymentSpec(replicas=replicas, selector=LabelSelector(match_labels=labels or {"app": "web"})),
        status=DeploymentStatus(replicas=replicas),
    )

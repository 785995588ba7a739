"""HorizontalPodAutoscalers of a whole master in this process, with pods and usage that the test makes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

import master.app
from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.core.pod import Pod
from api.meta.types import ObjectMeta
from master.app import run_master
from master.config import MasterConfig
from master.registry.metrics import MetricsReader
from master.resources.metrics import ContainerMetrics, PodMetrics, Usage
from tests.testbed.apiserver.untyped_client import UntypedClient

AUTOSCALERS = "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers"
OLDER_AUTOSCALERS = AUTOSCALERS.replace("/v2/", "/v1/")
DEPLOYMENTS = "/apis/apps/v1/namespaces/shop/deployments"
PODS = "/api/v1/namespaces/shop/pods"
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}


class BusyPods(MetricsReader):
    """Every pod uses 900m of CPU."""

    async def pod_metrics(self, pods: Iterable[Pod]) -> list[PodMetrics]:
        return [
            PodMetrics(
                metadata=ObjectMeta(name=pod.metadata.name, namespace=pod.metadata.namespace),
                timestamp="2100-01-01T00:00:00Z",
                window="10s",
                containers=(ContainerMetrics("main", Usage("900000000n", "1024Ki")),),
            )
            for pod in pods
        ]


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[UntypedClient]:
    monkeypatch.setattr(master.app, "MetricsReader", BusyPods)
    config = MasterConfig(
        listen_address="127.0.0.1",
        advertise_address="127.0.0.1",
        port=0,
        dns_port=0,
        state_dir=str(tmp_path / "state"),
        audit_log_path="none",
        horizontal_pod_autoscaler_sync_period=1,
    )
    async with run_master(config) as running, Client(Kubeconfig.load(running.kubeconfig)) as connection:
        yield UntypedClient(connection)


def workload(replicas: int) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}
    return {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}


def condition(scaler: Any, kind: str) -> dict[str, str]:
    rows = scaler.get("status", {}).get("conditions", ())
    return next((row for row in rows if row["type"] == kind), {})


async def test_deployment_is_scaled_by_the_usage_of_its_pods(client: UntypedClient) -> None:
    await client.create("/api/v1/namespaces", name="shop")
    await client.create(DEPLOYMENTS, name="web", spec=workload(2))
    pods = await client.wait_until(PODS, lambda answer: len(answer["items"]) == 2)
    status = {
        "phase": "Running",
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }
    for pod in pods["items"]:
        await client.request("PATCH", f"{PODS}/{pod['metadata']['name']}/status", {"status": status})
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
    }
    await client.create(AUTOSCALERS, name="web", spec={"scaleTargetRef": TARGET, "maxReplicas": 3, "metrics": [metric]})
    scaled = await client.wait_until(f"{DEPLOYMENTS}/web", lambda answer: answer["spec"]["replicas"] == 3)
    assert scaled["metadata"]["generation"] == 2
    await client.wait_until(PODS, lambda answer: len(answer["items"]) == 3)
    scaler = await client.wait_until(f"{AUTOSCALERS}/web", lambda answer: answer["status"]["currentReplicas"] == 3)
    assert condition(scaler, "AbleToScale")["status"] == "True"
    assert condition(scaler, "ScalingActive")["reason"] == "ValidMetricFound"
    assert scaler["status"]["currentMetrics"][0]["resource"]["current"] == {
        "averageUtilization": 90, "averageValue": "900m"
    }  # fmt: skip
    events = (await client.request("GET", "/api/v1/namespaces/shop/events"))["items"]
    reported = [event for event in events if event["involvedObject"]["kind"] == "HorizontalPodAutoscaler"]
    assert [(event["reason"], event["source"]["component"]) for event in reported] == [
        ("SuccessfulRescale", "horizontal-pod-autoscaler")
    ]
    older = await client.request("GET", f"{OLDER_AUTOSCALERS}/web")
    assert older["status"]["currentCPUUtilizationPercentage"] == 90
    assert (
        '"averageValue":"900m"' in older["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/current-metrics"]
    )
    assert "ValidMetricFound" in older["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/conditions"]


async def test_metric_that_nobody_serves_is_reported_as_such(client: UntypedClient) -> None:
    await client.create("/api/v1/namespaces", name="shop")
    await client.create(DEPLOYMENTS, name="web", spec=workload(1))
    target = {"type": "AverageValue", "averageValue": "10"}
    metrics = [
        {"type": "External", "external": {"metric": {"name": "queue"}, "target": target}},
        {"type": "Pods", "pods": {"metric": {"name": "hits"}, "target": target}},
    ]
    for number, metric in enumerate(metrics):
        spec = {"scaleTargetRef": TARGET, "maxReplicas": 3, "metrics": [metric]}
        await client.create(AUTOSCALERS, name="web", spec=spec)
        scaler = await client.wait_until(f"{AUTOSCALERS}/web", lambda answer: bool(condition(answer, "ScalingActive")))
        message = condition(scaler, "ScalingActive")["message"]
        assert message.startswith("the HPA was unable to compute the replica count: unable to get ")
        assert message.endswith(
            (
                "the server could not find the requested resource (get queue.external.metrics.k8s.io)",
                "no custom metrics API (custom.metrics.k8s.io) registered",
            )[number]
        )
        assert scaler["status"]["currentMetrics"] == [{"type": ""}]
        await client.request("DELETE", f"{AUTOSCALERS}/web")

"""Resource metrics of a node, compared with those of Docker and the kernel; `kubectl top`, and an autoscaler."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.testbed.kubectl import ALL_PROGRAMS
from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import wait_until

POD = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: load, namespace: default, labels: {{app: load}}}}
spec:
  nodeName: {NODE}
  terminationGracePeriodSeconds: 0
  containers:
  - name: busy
    image: podlane/toolbox
    imagePullPolicy: Never
    command: [sh, -c, "while true; do :; done"]
    resources: {{limits: {{cpu: 300m, memory: 64Mi}}}}
  - name: calm
    image: podlane/toolbox
    imagePullPolicy: Never
    command: [sh, -c, "dd if=/dev/zero of=/written bs=1M count=5; exec tail -f /dev/null"]
    livenessProbe: {{exec: {{command: ["true"]}}, periodSeconds: 1, timeoutSeconds: 30}}
"""


QUICK_AUTOSCALERS = (
    "--horizontal-pod-autoscaler-sync-period=1",
    "--horizontal-pod-autoscaler-cpu-initialization-period=0",
)
HUNGRY = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: hungry}
spec:
  replicas: 1
  selector: {matchLabels: {app: hungry}}
  template:
    metadata: {labels: {app: hungry}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: podlane/toolbox
        imagePullPolicy: Never
        command: [sh, -c, "while [ ! -e /dev/shm/sated ]; do :; done; exec tail -f /dev/null"]
        resources: {requests: {cpu: 100m}, limits: {cpu: 100m}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: hungry}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: hungry}
  maxReplicas: 2
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 40}}}]
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
"""


class Loaded:
    """A node with one pod, and its server as an administrator sees it."""

    def __init__(self, node: SingleNode) -> None:
        self.node = node
        with socket.create_server(("", 0)) as free:
            self._port = free.getsockname()[1]
        self._address = next(
            net_address.address
            for net_if_addr in psutil.net_if_addrs().values()
            for net_address in net_if_addr
            if net_address.family is socket.AF_INET and not net_address.address.startswith("127.")
        )
        node.agent(f"--port={self._port}", f"--address={self._address}", f"--node-ip={self._address}")
        wait_until(lambda: node.node_condition("Ready") == "True", "the node")
        node.kubectl("apply", "-f", "-", stdin=POD)
        wait_until(lambda: node.is_ready("load"), "the pod")
        user = yaml.safe_load((node.root / "admin").read_text())["users"][0]["user"]
        pem = node.root / "admin.pem"
        pem.write_bytes(b"\n".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("key", "certificate")))
        self._tls = ssl._create_unverified_context()
        self._tls.load_cert_chain(pem)

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"https://{self._address}:{self._port}{path}", context=self._tls) as answer:
            body: bytes = answer.read()
            return body

    def pod(self) -> dict[str, Any]:
        """Return the pod of the summary."""
        actual: list[dict[str, Any]] = json.loads(self.get("/stats/summary"))["pods"]
        return next(pod_stats for pod_stats in actual if pod_stats["podRef"]["name"] == "load")

    def container(self, name: str) -> dict[str, Any]:
        return next(container for container in self.pod()["containers"] if container["name"] == name)

    def value(self, path: str, name: str, **labels: str) -> float:
        """Return the value of the only sample with these labels."""
        rows = [
            sample
            for text_string_to_metric_family in text_string_to_metric_families(self.get(path).decode())
            for sample in text_string_to_metric_family.samples
        ]
        [actual] = [sample.value for sample in rows if sample.name == name and labels.items() <= sample.labels.items()]
        return actual

    def identity(self, name: str) -> str:
        return self.node.docker("ps", "-q", "--no-trunc", "--filter", f"name=k8s_{name}_load_").strip()

    def of_docker(self, name: str) -> dict[str, Any]:
        """Return Docker's statistics of a container. They have no network if the container uses that of another one."""
        url = f"http://docker/containers/{self.identity(name)}/stats?stream=false&one-shot=true"
        command = ["curl", "-s", "--unix-socket", self.node.docker_socket, url]
        stats: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return stats

    def of_process(self, name: str) -> float:
        """Return the CPU seconds of the container's first process, as ps shows them."""
        pid = self.node.docker("inspect", "-f", "{{.State.Pid}}", self.identity(name))
        times = psutil.Process(int(pid)).cpu_times()
        return times.user + times.system


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    with SingleNode(master=("--verify-node-certificates=false", *QUICK_AUTOSCALERS)) as node:
        yield Loaded(node)


def test_cpu_usage_equals_the_process_cpu_time(loaded: Loaded) -> None:
    before = loaded.of_process("busy")
    seen = loaded.container("busy")["cpu"]["usageCoreNanoSeconds"] / 1e9
    exposed = loaded.value("/metrics/resource", "container_cpu_usage_seconds_total", container="busy")
    advised = loaded.value("/metrics/cadvisor", "container_cpu_usage_seconds_total", container="busy")
    after = loaded.of_process("busy")
    assert 0 < seen <= exposed <= advised
    # The container's time before it ran this program counts too. ps shows hundredths.
    assert before - 0.02 <= seen
    assert advised <= after + 0.5


def test_busy_container_uses_its_cpu_limit(loaded: Loaded) -> None:
    """The limit is 300 millicores. A busy machine gives the container less."""
    loaded.pod()

    def rates() -> tuple[int, int, int]:
        pod_stats = loaded.pod()
        named = {container["name"]: container["cpu"]["usageNanoCores"] for container in pod_stats["containers"]}
        return named["busy"], named["calm"], pod_stats["cpu"]["usageNanoCores"]

    wait_until(lambda: 50_000_000 < rates()[0] < 350_000_000, "three tenths of a core")
    busy, calm, whole = rates()
    assert calm < busy
    assert whole >= busy


def test_memory_usage_equals_dockers(loaded: Loaded) -> None:
    reported = loaded.of_docker("POD")
    assert reported["memory_stats"]["usage"] > 0
    seen = loaded.value("/metrics/cadvisor", "container_memory_usage_bytes", container="POD")
    assert seen == pytest.approx(reported["memory_stats"]["usage"], abs=1 << 20)
    used = loaded.value("/metrics/cadvisor", "container_cpu_usage_seconds_total", container="POD")
    assert used == pytest.approx(reported["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9, abs=0.1)


def test_available_memory_is_limit_minus_working_set(loaded: Loaded) -> None:
    limited = loaded.container("busy")["memory"]
    assert limited["availableBytes"] + limited["workingSetBytes"] == 64 << 20
    assert "availableBytes" not in loaded.container("calm")["memory"]


def test_disk_usage_counts_written_bytes(loaded: Loaded) -> None:
    def used() -> int:
        return int(loaded.container("calm").get("rootfs", {}).get("usedBytes", 0))

    # The first walk may be before the container has written its file.
    wait_until(lambda: used() >= 5 << 20, "a walk after the file was written", seconds=200)
    assert used() < 6 << 20
    assert loaded.container("busy")["rootfs"]["usedBytes"] < 1 << 20


@pytest.mark.parametrize("path", ["", "/cadvisor", "/resource", "/probes"])
def test_prometheus_parses_every_metrics_page(loaded: Loaded, path: str) -> None:
    assert len(list(text_string_to_metric_families(loaded.get(f"/metrics{path}").decode()))) > 2


def test_agent_metrics_count_operations(loaded: Loaded) -> None:
    assert loaded.value("/metrics", "kubelet_running_pods") == 1
    assert loaded.value("/metrics", "kubelet_running_containers", container_state="running") == 2
    assert loaded.value("/metrics", "kubelet_pod_start_duration_seconds_count") == 1
    assert loaded.value("/metrics", "kubelet_pod_worker_duration_seconds_count", operation_type="create") == 1
    assert loaded.value("/metrics", "kubelet_runtime_operations_total", operation_type="start_container") == 3
    assert loaded.value("/metrics", "rest_client_requests_total", code="201", method="POST") > 0
    probes = {"container": "calm", "probe_type": "Liveness", "result": "successful"}
    assert loaded.value("/metrics/probes", "prober_probe_total", **probes) > 0


@pytest.mark.parametrize("program", ALL_PROGRAMS, ids=[Path(program).name for program in ALL_PROGRAMS])
def test_kubectl_top_shows_nodes_and_pods(loaded: Loaded, program: str) -> None:
    node = loaded.node

    def top(*words: str) -> list[list[str]]:
        command = [program, f"--kubeconfig={node.root}/admin", "top", *words]
        environment = {**os.environ, "HOME": str(node.root)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()[1:]]

    [columns] = top("nodes")
    assert columns[0] == NODE
    assert int(columns[1].removesuffix("m")) > 0
    assert top("node", NODE)[0][0] == NODE
    [columns] = top("pods", "-A", "--sort-by=cpu")
    assert columns[:2] == ["default", "load"]
    [columns] = top("pods", "-l", "app=load")
    assert 50 < int(columns[1].removesuffix("m")) < 400
    assert [columns[:2] for columns in top("pods", "load", "--containers", "--sort-by=cpu")] == [
        ["load", "busy"],
        ["load", "calm"],
    ]
    assert top("pods", "-l", "app=other") == []


def test_deployment_under_load_is_scaled_up_and_back_down(loaded: Loaded) -> None:
    """A tenth of a core for each pod is load enough. A busy machine gives the containers less."""
    node = loaded.node

    def replicas() -> int:
        return int(node.read("/apis/apps/v1/namespaces/default/deployments/hungry")["spec"]["replicas"])

    def ready_pods() -> list[str]:
        pods = node.kubectl("get", "pods", "-l", "app=hungry", "-o", "name").split()
        return pods if all(node.is_ready(pod.removeprefix("pod/")) for pod in pods) else []

    node.kubectl("apply", "-f", "-", stdin=HUNGRY)
    wait_until(lambda: replicas() == 2, "a second pod")
    for pod in wait_until(lambda: pods if len(pods := ready_pods()) == 2 else [], "both pods"):
        node.kubectl("exec", pod, "--", "touch", "/dev/shm/sated")
    wait_until(lambda: replicas() == 1, "one pod")

    def described() -> str:
        return node.kubectl("describe", "hpa", "hungry")

    wait_until(lambda: "New size: 1; reason: All metrics below target" in described(), "the second event")
    assert "New size: 2; reason: cpu resource utilization (percentage of request) above target" in described()
    assert "ValidMetricFound" in described()
    node.kubectl("delete", "deployment,hpa", "hungry")

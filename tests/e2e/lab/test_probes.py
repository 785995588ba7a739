"""Probes and lifecycle hooks through kubectl."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.lab.cluster import Cluster
from tests.testbed.lab.manifests import namespace
from tests.testbed.wait import wait_until

OFTEN = "periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 30"
"""On a busy machine, `docker exec` may take longer than the default timeout of 1 s."""
HEALTH_SERVER = Path(__file__).parents[2] / "testbed/node/grpc_health_server.py"


@pytest.fixture
def project(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    digest = hashlib.sha256(request.node.name.encode()).hexdigest()[:8]
    name = request.node.name.replace("_", "-").split("[")[0][:40].rstrip("-") + f"-{digest}"
    cluster.apply(namespace(name))
    yield name
    cluster.kubectl("delete", "namespace", name, "--timeout=60s")


def pod(project: str, name: str, containers: str, spec: str = "  terminationGracePeriodSeconds: 1\n") -> str:
    head = f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {project}}}\nspec:\n{spec}"
    return f"{head}  containers:\n{containers}"


def inside(cluster: Cluster, project: str, name: str, container: str, command: str) -> None:
    """Run a line of shell in a container."""
    identity = cluster.container(project, name, container)
    cluster.docker(cluster.node_of(project, name), "exec", identity, "sh", "-c", command)


def column(cluster: Cluster, project: str, name: str) -> str:
    """Return the column READY of `kubectl get pods`."""
    return cluster.kubectl("-n", project, "get", "pod", name, "--no-headers").stdout.split()[1]


def condition(cluster: Cluster, project: str, name: str, kind: str) -> tuple[str, str]:
    status_condition = next(
        candidate for candidate in cluster.status(project, name)["conditions"] if candidate["type"] == kind
    )
    return status_condition["status"], status_condition.get("message", "")


def events(cluster: Cluster, project: str) -> str:
    return cluster.kubectl("-n", project, "get", "events").stdout


def restarts(cluster: Cluster, project: str, name: str) -> int:
    rows = cluster.status(project, name).get("containerStatuses", [])
    return int(rows[0]["restartCount"]) if rows else 0


def test_readiness_follows_each_kind_of_probe(cluster: Cluster, project: str, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    sign.touch()
    cluster.apply(
        pod(
            project,
            "four",
            f"""\
  - name: program
    image: podlane/toolbox
    command: [sh, -c, "touch /tmp/sign; exec tail -f /dev/null"]
    readinessProbe: {{exec: {{command: [test, -e, /tmp/sign]}}, {OFTEN}}}
  - name: http
    image: podlane/toolbox
    command: [sh, -c, "mkdir /www; touch /www/sign; exec httpd -f -p 8080 -h /www"]
    ports: [{{name: web, containerPort: 8080}}]
    readinessProbe: {{httpGet: {{port: web, path: /sign}}, {OFTEN}}}
  - name: tcp
    image: podlane/toolbox
    command: [sh, -c, "touch /tmp/sign; while :; do test -e /tmp/sign && timeout 1 httpd -f -p 8081; done"]
    readinessProbe: {{tcpSocket: {{port: 8081}}, periodSeconds: 1, failureThreshold: 3}}
  - name: grpc
    image: podlane/toolbox
    command: [chroot, /host, {sys.executable}, {HEALTH_SERVER}, "8082", {sign}]
    volumeMounts: [{{name: host, mountPath: /host}}]
    readinessProbe: {{grpc: {{port: 8082}}, {OFTEN}}}
""",
            "  terminationGracePeriodSeconds: 1\n  volumes: [{name: host, hostPath: {path: /}}]\n",
        )
    )
    cluster.wait_running(project, "four")
    assert column(cluster, project, "four") == "4/4"
    for name, hide, show in (
        ("program", "rm /tmp/sign", "touch /tmp/sign"),
        ("http", "rm /www/sign", "touch /www/sign"),
        ("tcp", "rm /tmp/sign", "touch /tmp/sign"),
        ("grpc", f"rm /host{sign}", f"touch /host{sign}"),
    ):
        inside(cluster, project, "four", name, hide)
        wait_until(lambda: column(cluster, project, "four") == "3/4", f"{name} is not ready")
        assert condition(cluster, project, "four", "Ready") == (
            "False",
            f"containers with unready status: [{name}]",
        )
        inside(cluster, project, "four", name, show)
        wait_until(lambda: column(cluster, project, "four") == "4/4", f"{name} is ready again")
    assert condition(cluster, project, "four", "ContainersReady") == ("True", "")
    rows = cluster.status(project, "four")["containerStatuses"]
    assert [status["restartCount"] for status in rows] == [0, 0, 0, 0]
    words = "HTTP probe failed with statuscode: 404"
    wait_until(lambda: words in events(cluster, project), "the failures are told")


def test_container_restarts_when_its_liveness_probe_fails(cluster: Cluster, project: str) -> None:
    cluster.apply(
        pod(
            project,
            "alive",
            f"""\
  - name: main
    image: podlane/toolbox
    command: [sh, -c, "touch /tmp/sign; exec tail -f /dev/null"]
    livenessProbe: {{exec: {{command: [test, -e, /tmp/sign]}}, initialDelaySeconds: 1, {OFTEN}}}
""",
        )
    )
    cluster.wait_running(project, "alive")
    before = cluster.container(project, "alive")
    inside(cluster, project, "alive", "main", "rm /tmp/sign")
    wait_until(lambda: restarts(cluster, project, "alive") == 1, "it is started again")
    cluster.wait_running(project, "alive")
    assert cluster.container(project, "alive") != before
    words = "Container main failed liveness probe, will be restarted"
    wait_until(lambda: words in events(cluster, project), "the reason is told")


def test_liveness_probe_waits_for_the_startup_probe(cluster: Cluster, project: str) -> None:
    """The liveness probe would end the container at the first failure if it ran before the startup probe succeeds."""
    cluster.apply(
        pod(
            project,
            "slow",
            f"""\
  - name: main
    image: podlane/toolbox
    command: [sh, -c, "until test -e /tmp/go; do sleep 0.1; done; exec httpd -f -p 8080 -h /"]
    startupProbe: {{httpGet: {{port: 8080, path: /tmp/go}}, periodSeconds: 1, failureThreshold: 120}}
    livenessProbe: {{tcpSocket: {{port: 8080}}, {OFTEN}}}
    readinessProbe: {{tcpSocket: {{port: 8080}}, {OFTEN}}}
""",
        )
    )
    wait_until(lambda: "Startup probe failed" in events(cluster, project), "it is asked whether it is up")
    status = cluster.status(project, "slow")["containerStatuses"][0]
    assert (status["started"], status["ready"], "running" in status["state"]) == (False, False, True)
    inside(cluster, project, "slow", "main", "touch /tmp/go")
    cluster.wait_running(project, "slow")
    status = cluster.status(project, "slow")["containerStatuses"][0]
    assert (status["started"], status["ready"], status["restartCount"]) == (True, True, 0)


def test_lifecycle_hooks_run_even_when_the_agent_is_killed(cluster: Cluster, project: str, tmp_path: Path) -> None:
    cluster.apply(
        pod(
            project,
            "polite",
            """\
  - name: main
    image: podlane/toolbox
    command: [sh, -c, "trap 'echo asked >> /out/said; exit 0' TERM; while :; do sleep 0.1; done"]
    volumeMounts: [{name: out, mountPath: /out}]
    lifecycle:
      postStart: {exec: {command: [sh, -c, "echo hello >> /out/said"]}}
      preStop: {exec: {command: [sh, -c, "touch /out/here; until test -e /out/go; do :; done; echo bye >> /out/said"]}}
""",
            f"  terminationGracePeriodSeconds: 50\n  volumes: [{{name: out, hostPath: {{path: {tmp_path}}}}}]\n",
        )
    )
    cluster.wait_running(project, "polite")
    path = tmp_path / "said"
    assert path.read_text() == "hello\n"
    node = cluster.nodes[cluster.node_of(project, "polite")]
    cluster.kubectl("-n", project, "delete", "pod", "polite", "--wait=false")
    wait_until((tmp_path / "here").exists, "the hook has begun")
    cluster.kill(node.root / "node-agent.pid")
    (tmp_path / "go").touch()
    wait_until(lambda: cluster.pod(project, "polite") is None, "the pod is gone")
    lines = path.read_text().split()
    assert set(lines[1:-1]) == {"bye"}, "at least once"
    assert (lines[0], lines[-1]) == ("hello", "asked")

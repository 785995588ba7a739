"""monitoring/ with a real Prometheus and a real cluster: targets, rules and dashboards; series of deleted pods."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from lab.topology import LabNode
from tests.testbed.lab.cluster import Cluster
from tests.testbed.prometheus import MONITORING, Prometheus, alert_rules, expressions, metric_names
from tests.testbed.wait import CALL_SECONDS, wait_until

PAGES = ("", "/resource", "/cadvisor", "/probes", "/sdn")
SUFFIXES = ("_bucket", "_sum", "_count")
POD = """
apiVersion: v1
kind: Pod
metadata: {name: measured, namespace: monitored}
spec:
  terminationGracePeriodSeconds: 0
  nodeName: node-1
  containers:
  - name: main
    image: podlane/toolbox
    imagePullPolicy: Never
    command: [sleep, "3600"]
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
"""


@pytest.fixture(scope="module")
def token(cluster: Cluster) -> str:
    """Apply rbac.yaml, and return a token as the documentation makes it."""
    cluster.kubectl("apply", "-f", str(MONITORING / "rbac.yaml"))
    words = ("-n", "podlane-monitoring", "create", "token", "prometheus", "--duration=8760h")
    return cluster.kubectl(*words).stdout.strip()


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, token: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run Prometheus with the files of monitoring/, as the configuration says."""
    directory = tmp_path_factory.mktemp("prometheus")
    (directory / "podlane.token").write_text(token)
    (directory / "podlane-ca.crt").write_bytes((cluster.lab.root / "master" / "pki" / "trusted.crt").read_bytes())
    nodes = cluster.kubectl("get", "nodes", "-o", f"go-template-file={MONITORING / 'nodes.gotemplate'}").stdout
    (directory / "podlane-nodes.yaml").write_text(nodes)
    text = (MONITORING / "prometheus.yaml").read_text()
    for before, after in (
        ("/etc/prometheus", str(directory)),
        ("MASTER", str(cluster.lab.site.master)),
        ("15s", "1s"),
    ):
        assert before in text
        text = text.replace(before, after)
    (directory / "prometheus.yaml").write_text(text)
    (directory / "alerts.yaml").write_text((MONITORING / "alerts.yaml").read_text())
    with Prometheus(directory) as running:
        yield running


@pytest.fixture(scope="module")
def measured(cluster: Cluster) -> Iterator[None]:
    """Run a pod that is probed."""
    cluster.kubectl("create", "namespace", "monitored")
    cluster.apply(POD)
    cluster.wait_running("monitored", "measured")
    yield
    cluster.kubectl("delete", "namespace", "monitored")


def page(node: LabNode, path: str, *headers: str) -> tuple[str, str]:
    """Return the status and the body of a page of a node's server."""
    words = [word for header in headers for word in ("-H", header)]
    url = f"https://{node.address}:10250/metrics{path}"
    command = ("ip", "netns", "exec", node.namespace, "curl", "-sk", "-w", "\n%{http_code}", *words, url)
    body, _, code = subprocess.run(
        command, capture_output=True, text=True, timeout=CALL_SECONDS, check=True
    ).stdout.rpartition("\n")
    return code, body


def test_prometheus_scrapes_every_daemon(cluster: Cluster, prometheus: Prometheus) -> None:
    expected = {("podlane-master", "")} | {
        (f"podlane-{job}", node) for job in ("node-agent", "sdn", "resource", "cadvisor", "probes")
        for node in cluster.nodes
    }  # fmt: skip

    def healthy() -> set[tuple[str, str]]:
        targets = prometheus.get("targets")["activeTargets"]
        return {
            (target["labels"]["job"], target["labels"].get("node", ""))
            for target in targets
            if target["health"] == "up"
        }

    wait_until(lambda: healthy() == expected, f"these targets are up: {expected}")


@pytest.mark.usefixtures("measured")
def test_dashboards_and_alerts_name_only_metrics_that_exist(cluster: Cluster, prometheus: Prometheus) -> None:
    wait_until(lambda: prometheus.value("count(up == 1)") == 1 + 5 * len(cluster.nodes), "all targets are up")
    wait_until(lambda: prometheus.value("count(prober_probe_total)"), "the pod was probed")
    known = {*prometheus.get("metadata"), "up"}
    wrong = [
        f"{place}: {name}"
        for place, expression in expressions()
        for name in sorted(metric_names(expression))
        if name not in known and not any(name.removesuffix(suffix) in known for suffix in SUFFIXES)
    ]
    assert not wrong
    assert "podlane_no_such_metric" not in known
    for place, expression in expressions():
        assert prometheus.get("query", query=expression)["resultType"] == "vector", place
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(alert_rules())
    wait_until(
        lambda: all(
            rule["health"] == "ok" for group in prometheus.get("rules")["groups"] for rule in group["rules"]
        ),
        "all rules are evaluated",
    )  # fmt: skip


def test_only_authorized_clients_read_metrics_of_nodes(cluster: Cluster, token: str) -> None:
    node = cluster.nodes["node-1"]
    other = cluster.kubectl("-n", "podlane-monitoring", "create", "token", "default").stdout.strip()
    for path in PAGES:
        assert page(node, path)[0] == "401", path
        assert page(node, path, f"Authorization: Bearer {other}")[0] == "403", path
        code, text = page(node, path, f"Authorization: Bearer {token}")
        assert code == "200", path
        assert "# TYPE" in text, path


@pytest.mark.usefixtures("measured")
def test_series_of_a_pod_disappear_with_it(cluster: Cluster, token: str) -> None:
    node = cluster.nodes["node-1"]

    def pages_with_pod() -> set[str]:
        bodies = {path: page(node, path, f"Authorization: Bearer {token}")[1] for path in PAGES}
        return {path for path, body in bodies.items() if "measured" in body}

    wait_until(lambda: pages_with_pod() >= {"/resource", "/cadvisor", "/probes"}, "the pod has series")
    cluster.kubectl("-n", "monitored", "delete", "pod", "measured", "--wait=true")
    wait_until(lambda: not pages_with_pod(), "the pod has no series")

"""`kubectl describe`, events, nodes and leases."""

from __future__ import annotations

import json

from tests.testbed.lab.cluster import Cluster
from tests.testbed.wait import wait_until

WEB = """\
apiVersion: v1
kind: Namespace
metadata: {name: told}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: told}
spec:
  terminationGracePeriodSeconds: 1
  readinessGates: [{conditionType: example.com/lb}]
  containers: [{name: main, image: podlane/toolbox, imagePullPolicy: IfNotPresent, command: [tail, -f, /dev/null]}]
---
apiVersion: v1
kind: Pod
metadata: {name: broken, namespace: told}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: podlane/toolbox, imagePullPolicy: IfNotPresent, command: ["false"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: placeless, namespace: told}
spec:
  nodeSelector: {disk: ssd}
  containers: [{name: main, image: podlane/toolbox}]
"""


def events(cluster: Cluster, pod: str) -> list[tuple[str, str]]:
    """Return (type, reason) of a pod's events, as `kubectl describe` prints them."""
    reported = cluster.kubectl("-n", "told", "describe", "pod", pod).stdout.partition("Events:")[2]
    return [(line.split()[0], line.split()[1]) for line in reported.splitlines()[3:] if line.strip()]


def test_describe_and_get_events_show_the_pods_history(cluster: Cluster) -> None:
    cluster.apply(WEB)
    begun = [("Normal", reason) for reason in ("Scheduled", "Pulled", "Created", "Started")]
    wait_until(lambda: sorted(events(cluster, "web")) == sorted(begun), "what happened to web is told")
    described = cluster.kubectl("-n", "told", "describe", "pod", "web").stdout
    assert "Successfully assigned told/web to node-" in described
    assert "spec.containers{main}" in cluster.kubectl("-n", "told", "get", "events", "-o", "wide").stdout

    wait_until(lambda: ("Warning", "BackOff") in events(cluster, "broken"), "a wait after a crash is told")
    crashed = cluster.kubectl("-n", "told", "describe", "pod", "broken").stdout
    assert "Back-off restarting failed container main in pod broken_told(" in crashed
    wait_until(lambda: events(cluster, "placeless") == [("Warning", "FailedScheduling")], "why it has no node is told")

    cluster.kubectl("-n", "told", "delete", "pod", "web")
    rows = cluster.kubectl("-n", "told", "get", "events", "--field-selector=involvedObject.name=web").stdout
    wait_until(
        lambda: "Stopping container main" in cluster.kubectl("-n", "told", "get", "events").stdout, f"the end: {rows}"
    )


def test_pod_becomes_ready_when_its_readiness_gate_is_true(cluster: Cluster) -> None:
    cluster.apply(WEB)

    def ready() -> dict[str, str]:
        rows = cluster.status("told", "web").get("conditions", [])
        actual: dict[str, str] = next((condition for condition in rows if condition["type"] == "Ready"), {})
        return actual

    wait_until(lambda: ready().get("reason") == "ReadinessGatesNotReady", "the gate is closed")
    patch = '{"status": {"conditions": [{"type": "example.com/lb", "status": "True"}]}}'
    cluster.kubectl("-n", "told", "patch", "pod", "web", "--subresource=status", "--type=strategic", "-p", patch)
    wait_until(lambda: ready().get("status") == "True", "the gate is open")
    gates = cluster.kubectl("-n", "told", "get", "pod", "web", "-o", "wide").stdout
    assert "1/1" in gates.splitlines()[1].split()[-1]


def test_events_are_deleted_with_their_project(cluster: Cluster) -> None:
    cluster.apply(WEB)
    wait_until(lambda: "web" in cluster.kubectl("-n", "told", "get", "events").stdout, "something is told")
    cluster.kubectl("delete", "namespace", "told", "--timeout=60s")
    assert "No resources found" in cluster.kubectl("-n", "told", "get", "events").stderr


def test_describe_node_and_leases_show_the_nodes_state(cluster: Cluster) -> None:
    reported = cluster.kubectl("describe", "node", "node-1").stdout
    for part in (
        "beta.kubernetes.io/os=linux",
        "HolderIdentity:  node-1",
        "KubeletHasSufficientMemory",
        "KubeletReady",
        "InternalIP:",
        "hugepages-2Mi:",
        "Container Runtime Version:  docker://",
    ):
        assert part in reported, part
    assert "NodeReady" in reported.partition("Events:")[2]
    (node,) = json.loads(cluster.kubectl("get", "nodes", "-l", "kubernetes.io/hostname=node-1", "-o", "json").stdout)[
        "items"
    ]
    assert any("podlane/toolbox" in name for image in node["status"]["images"] for name in image["names"])
    header, *rows = cluster.kubectl("get", "leases", "-A").stdout.splitlines()
    assert header.split() == ["NAMESPACE", "NAME", "HOLDER", "AGE"]
    assert {tuple(line.split()[:3]) for line in rows} >= {("kube-node-lease", name, name) for name in cluster.nodes}


def test_idle_node_renews_its_lease_and_writes_nothing_else(cluster: Cluster) -> None:
    def revisions() -> tuple[str, str]:
        node = cluster.kubectl("get", "node", "node-2", "-o", "jsonpath={.metadata.resourceVersion}").stdout
        lease = cluster.kubectl("-n", "kube-node-lease", "get", "lease", "node-2", "-o", "jsonpath={.spec.renewTime}")
        return node, lease.stdout

    node, renewed = revisions()
    wait_until(lambda: revisions()[1] != renewed, "the lease is renewed")
    assert revisions()[0] == node

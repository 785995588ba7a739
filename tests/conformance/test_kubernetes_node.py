"""The node agent depends on nothing of our master: it works as a node of a Kubernetes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.build import CONTROL_PLANE, missing
from tests.conformance.kubernetes_master import NODE_IP, StockNode
from tests.testbed.node.single_node import NODE
from tests.testbed.wait import wait_until

LACKING = missing((*CONTROL_PLANE, "agnhost", "nonewprivs"))
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not built ({', '.join(LACKING)}); `make conformance` builds it")

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 2
  readinessGates: [{conditionType: example.com/served}]
  containers:
  - name: main
    image: busybox:1.29
    command: [sh, -c, "trap 'exit 5' TERM; while :; do sleep 0.1; done"]
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    volumeMounts: [{name: all, mountPath: /all}]
  volumes:
  - name: all
    projected:
      sources:
      - configMap: {name: settings}
      - secret: {name: word}
      - serviceAccountToken: {path: token, expirationSeconds: 600, audience: vault}
"""
STATIC = """
apiVersion: v1
kind: Pod
metadata: {name: fixed}
spec:
  containers: [{name: main, image: "busybox:1.29", command: [sleep, "100000"]}]
  terminationGracePeriodSeconds: 0
"""


@pytest.fixture(scope="module")
def node() -> Iterator[StockNode]:
    with StockNode() as stock_node:
        stock_node.agent()
        yield stock_node


@pytest.fixture
def web(node: StockNode) -> Iterator[StockNode]:
    """Yield a node with a pod that has files of all kinds."""
    node.kubectl("create", "configmap", "settings", "--from-literal=color=red")
    node.kubectl("create", "secret", "generic", "word", "--from-literal=password=swordfish")
    node.kubectl("apply", "-f", "-", stdin=POD)
    wait_until(lambda: node.status("web").get("phase") == "Running", "the pod runs")
    yield node
    node.kubectl("delete", "pod/web", "configmap/settings", "secret/word", "--ignore-not-found")


def inside(node: StockNode, path: str) -> str:
    """Return a file as the pod's container sees it."""
    (identity,) = node.docker("ps", "-q", "--filter", "name=k8s_main_web_").split()
    return node.docker("exec", identity, "cat", path)


def events(node: StockNode, name: str) -> set[str]:
    """Return the reasons of the agent's events about an object."""
    rows = json.loads(node.kubectl("get", "events", f"--field-selector=involvedObject.name={name}", "-o", "json"))
    return {event["reason"] for event in rows["items"] if event["source"].get("component") == "kubelet"}


def test_node_agent_registers_renews_its_lease_and_is_ready(node: StockNode) -> None:
    actual = json.loads(node.kubectl("get", "node", NODE, "-o", "json"))
    assert {"type": "InternalIP", "address": NODE_IP} in actual["status"]["addresses"]
    wait_until(lambda: "taints" not in json.loads(node.kubectl("get", "node", NODE, "-o", "json"))["spec"], "no taint")
    path = "jsonpath={.spec.renewTime}"
    first = node.kubectl("-n", "kube-node-lease", "get", "lease", NODE, "-o", path)
    wait_until(lambda: node.kubectl("-n", "kube-node-lease", "get", "lease", NODE, "-o", path) > first, "renewed")


def test_pod_runs_with_its_volumes_and_follows_its_readiness_gate(web: StockNode) -> None:
    assert (inside(web, "/all/color"), inside(web, "/all/password")) == ("red", "swordfish")
    status = web.status("web")
    assert status["podIPs"] == [{"ip": status["podIP"]}]
    assert status["hostIP"] == NODE_IP
    assert not web.is_ready("web")
    gate = {"status": {"conditions": [{"type": "example.com/served", "status": "True"}]}}
    web.put_status("web", gate)
    wait_until(lambda: web.is_ready("web"), "the pod is Ready")
    kinds = [condition["type"] for condition in web.status("web")["conditions"]]
    assert sorted(set(kinds)) == sorted(kinds)
    assert "example.com/served" in kinds
    assert {"Pulled", "Created", "Started"} <= events(web, "web")


def test_volume_files_follow_their_objects_under_the_node_authorizer(web: StockNode) -> None:
    web.kubectl("patch", "configmap", "settings", "--patch", '{"data": {"color": "blue"}}')
    wait_until(lambda: inside(web, "/all/color") == "blue", "the new setting")


def test_projected_tokens_are_bound_to_the_pod(web: StockNode) -> None:
    claims = said_by(inside(web, "/all/token"))
    assert claims["aud"] == ["vault"]
    assert claims["kubernetes.io"]["pod"]["name"] == "web"


def test_deleted_pod_ends_gracefully_and_leaves_nothing(web: StockNode) -> None:
    uid = web.kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.uid}")
    web.kubectl("delete", "pod", "web")
    assert not web.docker("ps", "-aq", "--filter", f"label=io.kubernetes.pod.uid={uid}")
    assert not (Path(web.state) / "pods" / uid).exists()
    assert "Killing" in events(web, "web")


def test_static_pod_mirror_is_admitted_by_node_restriction(node: StockNode) -> None:
    name = f"fixed-{NODE}"
    (node.root / "manifests").mkdir(exist_ok=True)
    manifest = node.root / "manifests" / "fixed.yaml"
    manifest.write_text(STATIC)
    phase = ("get", "pod", name, "--ignore-not-found", "-o", "jsonpath={.status.phase}")
    wait_until(lambda: node.kubectl(*phase) == "Running", "its mirror runs")
    shown = json.loads(node.kubectl("get", "pod", name, "-o", "json"))["metadata"]
    assert [(owner["kind"], owner["name"]) for owner in shown["ownerReferences"]] == [("Node", NODE)]
    manifest.unlink()
    wait_until(lambda: not node.kubectl(*phase), "its mirror goes")


def test_killed_agent_resumes_its_pods(web: StockNode) -> None:
    before = web.docker("ps", "-q", "--filter", "name=k8s_main_web_")
    restarts = web.status("web")["containerStatuses"][0]["restartCount"]
    web.agent()
    web.kubectl("patch", "configmap", "settings", "--patch", '{"data": {"color": "green"}}')
    wait_until(lambda: inside(web, "/all/color") == "green", "the new agent follows")
    assert web.docker("ps", "-q", "--filter", "name=k8s_main_web_") == before
    assert web.status("web")["containerStatuses"][0]["restartCount"] == restarts


def said_by(token: str) -> dict[str, Any]:
    """Return the claims of a JSON web token."""
    claims = token.split(".")[1]
    actual: dict[str, Any] = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    return actual

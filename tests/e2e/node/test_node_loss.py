"""An unreachable node: its taints, its pods and its return. The master's grace period is 2 s."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import wait_until

OTHER = """\
apiVersion: v1
kind: Node
metadata: {name: other}
status: {conditions: [{type: Ready, status: "True"}]}
"""
LEASE = """\
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {{name: other, namespace: kube-node-lease}}
spec: {{holderIdentity: other, renewTime: "{moment}"}}
"""
POD = """\
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 1
  tolerations: {tolerations}
  containers: [{{name: main, image: podlane/toolbox, imagePullPolicy: Never, command: [tail, -f, /dev/null]}}]
"""
SHORT = "[{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}]"


@pytest.fixture(scope="module")
def host() -> Iterator[SingleNode]:
    with SingleNode(master=("--node-monitor-grace-seconds=2",)) as running:
        running.agent()
        wait_until(lambda: running.node_condition("Ready") == "True", "the node")
        yield running


@pytest.fixture
def node(host: SingleNode) -> Iterator[SingleNode]:
    yield host
    host.kubectl("delete", "node", "other", "--ignore-not-found")
    host.kubectl("delete", "pods", "--all", "--timeout=60s")


def taints(node: SingleNode) -> list[str]:
    actual = json.loads(node.kubectl("get", "node", NODE, "-o", "json"))["spec"].get("taints", [])
    return sorted(f"{taint['key'].removeprefix('node.kubernetes.io/')}:{taint['effect']}" for taint in actual)


def pod(node: SingleNode, name: str) -> dict[str, Any]:
    text = node.kubectl("get", "pod", name, "--ignore-not-found", "-o", "json")
    actual: dict[str, Any] = json.loads(text) if text.strip() else {}
    return actual


def is_marked(node: SingleNode, name: str) -> bool:
    return "deletionTimestamp" in pod(node, name)["metadata"]


def runs(node: SingleNode, name: str) -> str:
    """Return the id of the pod's container."""
    return node.docker("ps", "-q", "--filter", f"name=k8s_main_{name}_").strip()


def beside(node: SingleNode, holds: Callable[[], object]) -> Callable[[], object]:
    """Return a condition that renews the lease of another node before each check."""

    def ask() -> object:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        node.kubectl("apply", "-f", "-", stdin=LEASE.format(moment=moment))
        return holds()

    return ask


def test_pods_of_an_unreachable_node_become_unready_and_are_evicted_by_tolerations(node: SingleNode) -> None:
    texts = POD.format(name="short", tolerations=SHORT) + POD.format(name="lasting", tolerations="[]")
    node.kubectl("apply", "-f", "-", stdin=texts)
    wait_until(lambda: node.is_ready("short") and node.is_ready("lasting"), "both are ready")
    assert [toleration["tolerationSeconds"] for toleration in pod(node, "lasting")["spec"]["tolerations"]] == [300, 300]
    node.kubectl("create", "-f", "-", stdin=OTHER)
    before = runs(node, "lasting")
    with node.without_agent():
        ask = beside(node, lambda: taints(node) == ["unreachable:NoExecute", "unreachable:NoSchedule"])
        wait_until(ask, "the node is tainted")
        assert node.node_condition("Ready") == "Unknown"
        wait_until(beside(node, lambda: not node.is_ready("lasting")), "nobody is sent to its pods")
        wait_until(beside(node, lambda: is_marked(node, "short")), "who bears it for a second is sent away")
        rows = {condition["type"]: condition.get("reason") for condition in node.status("short")["conditions"]}
        assert rows["DisruptionTarget"] == "DeletionByTaintManager"
        assert not is_marked(node, "lasting")
        assert runs(node, "lasting") == before
        assert runs(node, "short"), "nobody is there who could end it"
    wait_until(lambda: not pod(node, "short"), "it goes when the node is back")
    wait_until(lambda: not taints(node), "the node is well again")
    wait_until(lambda: node.is_ready("lasting"), "its pods are ready again")
    assert runs(node, "lasting") == before
    reasons = node.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}").split()
    assert {"NodeNotReady", "TaintManagerEviction"} <= set(reasons)


def test_cluster_without_any_reachable_node_loses_no_pod(node: SingleNode) -> None:
    node.kubectl("apply", "-f", "-", stdin=POD.format(name="kept", tolerations=SHORT))
    wait_until(lambda: node.is_ready("kept"), "it is ready")
    with node.without_agent():
        wait_until(lambda: taints(node) == ["unreachable:NoSchedule"], "new pods are kept off, and nobody is sent away")
    wait_until(lambda: not taints(node) and node.is_ready("kept"), "all is well again")


def test_node_taints_follow_cordon_and_kubectl_taint(node: SingleNode) -> None:
    node.kubectl("apply", "-f", "-", stdin=POD.format(name="guest", tolerations="[]"))
    wait_until(lambda: node.is_ready("guest"), "it is ready")
    node.kubectl("cordon", NODE)
    wait_until(lambda: taints(node) == ["unschedulable:NoSchedule"], "cordoned")
    node.kubectl("taint", "node", NODE, "leave=now:NoExecute")
    wait_until(lambda: not pod(node, "guest"), "who does not bear it goes")
    node.kubectl("taint", "node", NODE, "leave-")
    node.kubectl("uncordon", NODE)
    wait_until(lambda: not taints(node), "nothing is left of it")

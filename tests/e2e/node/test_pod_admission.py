"""Admission of pods by a node, and its reaction to container events."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.testbed.node.single_node import NODE, SingleNode
from tests.testbed.wait import wait_until

POD = """\
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 0
{extra}
  containers:
  - name: main
    image: podlane/toolbox
    imagePullPolicy: Never
    command: [tail, -f, /dev/null]
{more}
"""
PORT = ("  hostNetwork: true", "    ports: [{containerPort: 45080}]")
REFUSED = {
    "NodeAffinity": ("  nodeSelector: {disk: tape}", ""),
    "OutOfcpu": ("", "    resources: {requests: {cpu: 4000}}"),
    "OutOfmemory": ("", "    resources: {requests: {memory: 400Ti}}"),
    "NodePorts": PORT,
    "PodOSNotSupported": ("  os: {name: windows}", ""),
    "SysctlForbidden": ("  securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}", ""),
}


@pytest.fixture(scope="module")
def node() -> Iterator[SingleNode]:
    with SingleNode() as running:
        running.agent()
        wait_until(lambda: running.node_condition("Ready") == "True", "the node")
        yield running


def pod(name: str, extra: str = "", more: str = "") -> str:
    return POD.format(name=name, extra=extra, more=more)


def reasons(node: SingleNode) -> dict[str, str]:
    """Return the reasons of failed pods by name."""
    rows = json.loads(node.kubectl("get", "pods", "-o", "json"))["items"]
    return {
        document["metadata"]["name"]: document["status"]["reason"]
        for document in rows
        if document["status"].get("phase") == "Failed"
    }


def test_killed_container_restarts_at_once(node: SingleNode) -> None:
    node.kubectl("apply", "-f", "-", stdin=pod("killed"))
    wait_until(lambda: node.is_ready("killed"), "it runs")
    [status] = node.status("killed")["containerStatuses"]
    node.docker("kill", status["containerID"].removeprefix("docker://"))
    wait_until(lambda: node.status("killed")["containerStatuses"][0]["restartCount"] == 1, "it is started again", 30)
    node.kubectl("delete", "pod", "killed")


def test_rejected_pod_reports_why_and_stays_rejected(node: SingleNode) -> None:
    node.kubectl("apply", "-f", "-", stdin=pod("first", *PORT))
    wait_until(lambda: node.is_ready("first"), "it runs")
    desired = {reason: pod(reason.lower(), *arguments) for reason, arguments in REFUSED.items()}
    node.kubectl("apply", "-f", "-", stdin="".join(desired.values()))
    expected = {reason.lower(): reason for reason in REFUSED}
    wait_until(lambda: reasons(node) == expected, "each says why")
    assert node.status("nodeaffinity")["message"].startswith("Pod was rejected: Predicate NodeAffinity failed")
    assert "OutOfmemory" in node.kubectl("describe", "pod", "outofmemory")
    node.agent("--max-pods=2")
    wait_until(lambda: node.kubectl("get", "node", NODE, "-o", "jsonpath={.status.capacity.pods}") == "2", "a limit")
    node.kubectl("apply", "-f", "-", stdin=pod("second"))
    wait_until(lambda: node.is_ready("second"), "there is room for it")
    node.kubectl("apply", "-f", "-", stdin=pod("third"))
    wait_until(lambda: reasons(node).get("third") == "OutOfpods", "and for no more")
    node.agent()
    node.kubectl("taint", "node", NODE, "leave=now:NoExecute")
    node.kubectl("apply", "-f", "-", stdin=pod("late", "  tolerations: [{key: other, operator: Exists}]"))
    wait_until(lambda: "late" not in node.kubectl("get", "pods"), "who does not bear the taint does not stay")
    node.kubectl("taint", "node", NODE, "leave-")
    assert reasons(node).items() >= expected.items()


HOSTILE = """\
---
apiVersion: v1
kind: Pod
metadata: {name: hostile, namespace: default, annotations: {io.kubernetes.container.restartCount: abc}}
spec:
  containers: [{name: main, image: podlane/toolbox, command: [tail, -f, /dev/null]}]
  terminationGracePeriodSeconds: 0
"""


def test_pod_with_annotations_named_like_agent_labels_is_harmless(node: SingleNode) -> None:
    node.kubectl("apply", "-f", "-", stdin=HOSTILE)
    wait_until(lambda: node.is_ready("hostile"), "the pod")
    node.agent()
    node.kubectl("apply", "-f", "-", stdin=HOSTILE.replace("name: hostile", "name: neighbour"))
    wait_until(lambda: node.is_ready("neighbour"), "others run after a restart of the agent")
    node.kubectl("delete", "pod", "hostile", "neighbour", "--timeout=30s")
    huge = ("delete", "pod", "big", f"--grace-period={2**62}", "--wait=false")
    node.kubectl("apply", "-f", "-", stdin=HOSTILE.replace("name: hostile", "name: big"))
    wait_until(lambda: node.is_ready("big"), "the pod")
    assert "deleted" in node.kubectl(*huge)
    node.kubectl("delete", "pod", "big", "--grace-period=1", "--timeout=30s")

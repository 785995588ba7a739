"""Exec, logs and port forwarding through kube-apiserver give the same results on our node and on a kubelet's."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.conformance.build import CONTROL_PLANE, missing
from tests.conformance.kubelet import KUBELET
from tests.conformance.mixed_nodes import StockPair
from tests.testbed.kubectl import ALL_PROGRAMS
from tests.testbed.node.single_node import NODE
from tests.testbed.wait import wait_until

LACKING = missing((*CONTROL_PLANE, "kubelet", "agnhost", "nonewprivs"))
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not built ({', '.join(LACKING)}); `make conformance` builds it")

OURS, THEIRS = "ours", "theirs"
PLACES = {OURS: NODE, THEIRS: KUBELET}

PODS = """
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: web}
  spec:
    nodeName: NODE
    terminationGracePeriodSeconds: 0
    containers:
    - name: main
      image: busybox:1.29
      command: [sh, -c, "for n in one two three; do echo $n; done; mkdir /www; echo hi > /www/index.html; exec httpd -f -p 8080 -h /www"]
    - {name: other, image: "busybox:1.29", command: [sleep, "100000"]}
- apiVersion: v1
  kind: Pod
  metadata: {name: half}
  spec:
    nodeName: NODE
    restartPolicy: Never
    terminationGracePeriodSeconds: 0
    containers:
    - {name: dead, image: "busybox:1.29", command: [sh, -c, "echo last words; exit 3"]}
    - {name: alive, image: "busybox:1.29", command: [sleep, "100000"]}
- apiVersion: v1
  kind: Pod
  metadata: {name: done}
  spec:
    nodeName: NODE
    restartPolicy: Never
    containers: [{name: main, image: "busybox:1.29", command: [echo, bye]}]
- apiVersion: v1
  kind: Pod
  metadata: {name: imageless}
  spec:
    nodeName: NODE
    terminationGracePeriodSeconds: 0
    containers: [{name: main, image: "nowhere/none:1", imagePullPolicy: Never}]
- apiVersion: v1
  kind: Pod
  metadata: {name: starting}
  spec:
    nodeName: NODE
    terminationGracePeriodSeconds: 0
    initContainers: [{name: first, image: "busybox:1.29", command: [sleep, "100000"]}]
    containers: [{name: main, image: "busybox:1.29"}]
- apiVersion: v1
  kind: Pod
  metadata: {name: again}
  spec:
    nodeName: NODE
    terminationGracePeriodSeconds: 0
    containers:
    - name: main
      image: busybox:1.29
      command: [sh, -c, "test -e /m/x || { touch /m/x; echo before; exit 1; }; echo after; exec sleep 100000"]
      volumeMounts: [{name: mark, mountPath: /m}]
    volumes: [{name: mark, emptyDir: {}}]
"""  # noqa: E501

SAME = (
    "logs web -c main",
    "logs web -c main --tail=2",
    "logs web -c main --tail=0",
    "logs web -c main --limit-bytes=6",
    "logs web -c main --since=1h",
    "logs web -c main --since-time=2100-01-01T00:00:00Z",
    "logs web -c main --timestamps",
    "logs web -c main --previous",
    "logs web -c nobody",
    "logs web",
    "logs web --all-containers",
    "logs half -c dead",
    "logs half -c dead -f",
    "logs done",
    "logs done --previous",
    "logs again",
    "logs again --previous",
    "logs imageless",
    "logs imageless --previous",
    "logs starting",
    "logs starting -c first",
    "exec web -c main -- sh -c 'echo out; echo err >&2'",
    "exec web -c main -- sh -c 'exit 7'",
    "exec web -c main -- sh -c 'kill -9 $$'",
    "exec web -c main -- /no/such",
    "exec web -c main -- /etc",
    "exec web -c nobody -- true",
    "exec nobody -- true",
    "exec half -c dead -- true",
    "exec done -- true",
    "exec imageless -- true",
    "exec starting -c main -- true",
    "attach half -c dead",
    "attach imageless",
    "port-forward imageless :80",
    "get --raw /api/v1/namespaces/PLACE/pods/web/log?container=main&tailLines=-1",
    "get --raw /api/v1/namespaces/PLACE/pods/web/log?container=main&tailLines=x",
    "get --raw /api/v1/namespaces/PLACE/pods/web/log?container=main&sinceSeconds=0",
    "get --raw /api/v1/namespaces/PLACE/pods/web/exec?container=main&command=true",
    "get --raw /api/v1/namespaces/PLACE/pods/web/exec?container=main&command=true&stdout=1",
    "get --raw /api/v1/namespaces/PLACE/pods/web/attach?container=main&stdout=1",
    "get --raw /api/v1/namespaces/PLACE/pods/web/portforward",
    "get --raw /api/v1/nodes/NODE/proxy/containerLogs/PLACE/nobody/main",
    "get --raw /api/v1/nodes/NODE/proxy/containerLogs/PLACE/web/nobody",
    "get --raw /api/v1/nodes/NODE/proxy/containerLogs/PLACE/web/main?tailLines=1",
    "get --raw /api/v1/nodes/NODE/proxy/nothing",
    "get --raw /api/v1/nodes/NODE/proxy/healthz",
    "get --raw /api/v1/nodes/NODE/proxy/healthz/ping",
)
"""What is said to a pod of each node, word for word the same; PLACE is its namespace."""


def run(node: StockPair, words: str, namespace: str, home: Path) -> tuple[int, str, str]:
    """Run a kubectl command. Return its exit code, standard output and standard error."""
    words = words.replace("PLACE", namespace).replace("NODE", PLACES[namespace])
    raw = words.startswith("get --raw")
    command = f"{ALL_PROGRAMS[0]} --kubeconfig={node.root}/admin -n {namespace} " + (
        words.replace("&", r"\&") if raw else words
    )
    done = subprocess.run(
        [*node.command_prefix, "sh", "-c", command], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "HOME": str(home)},
    )  # fmt: skip
    return done.returncode, plain(done.stdout, namespace), plain(done.stderr, namespace)


def plain(text: str, namespace: str) -> str:
    """Return a text with placeholders for values that differ between runs."""
    text = re.sub(r"[0-9a-f]{64}", "ID", text.replace(PLACES[namespace], "NODE").replace(namespace, "PLACE"))
    text = re.sub(r"10\.24[58]\.[\d.]+", "ADDRESS", text)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", "UID", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)


@pytest.fixture(scope="module")
def node() -> Iterator[StockPair]:
    with StockPair() as pair:
        pair.agent()
        pair.kubelet()
        for namespace, name in PLACES.items():
            pair.kubectl("create", "namespace", namespace)
            account = ("-n", namespace, "get", "serviceaccount", "default", "--ignore-not-found", "-o", "name")
            wait_until(partial(pair.kubectl, *account), "an account")
            pair.kubectl("-n", namespace, "apply", "-f", "-", stdin=PODS.replace("NODE", name))
        for namespace in PLACES:
            wait_until(partial(settled, pair, namespace), f"the pods in {namespace} are as they stay", 120.0)
        yield pair


def settled(node: StockPair, namespace: str) -> bool:
    """Return whether each pod has reached its final state."""
    rows = json.loads(node.kubectl("-n", namespace, "get", "pods", "-o", "json"))["items"]
    states = {
        f"{pod['metadata']['name']}/{container['name']}": container["state"]
        for pod in rows
        for container in (*pod["status"].get("containerStatuses", []), *pod["status"].get("initContainerStatuses", []))
    }
    running = ("web/main", "web/other", "half/alive", "again/main", "starting/first")
    reason = states.get("imageless/main", {}).get("waiting", {}).get("reason")
    return (
        all("running" in states.get(name, {}) for name in running)
        and all("terminated" in states.get(name, {}) for name in ("half/dead", "done/main"))
        and reason == "ErrImageNeverPull"
    )


@pytest.mark.parametrize("words", SAME)
def test_exec_logs_and_port_forward_equal_kubelets(node: StockPair, words: str, tmp_path: Path) -> None:
    assert run(node, words, OURS, tmp_path) == run(node, words, THEIRS, tmp_path)

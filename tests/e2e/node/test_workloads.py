"""Deployments, replica sets, replication controllers, jobs and service accounts through kubectl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed.node.single_node import SingleNode
from tests.testbed.wait import wait_until

CONTROLLER = """\
apiVersion: v1
kind: ReplicationController
metadata: {name: old}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: old}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: podlane/toolbox, command: [tail, -f, /dev/null]}]
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: podlane/toolbox, command: [tail, -f, /dev/null]}]
"""


@pytest.fixture(scope="module")
def host() -> Iterator[SingleNode]:
    with SingleNode() as running:
        running.agent()
        wait_until(lambda: running.node_condition("Ready") == "True", "the node")
        yield running


def pods(host: SingleNode, label: str) -> list[Any]:
    actual: list[Any] = json.loads(host.kubectl("get", "pods", "-l", label, "-o", "json"))["items"]
    return actual


def test_deployment_is_created_scaled_rolled_and_deleted_by_kubectl(host: SingleNode) -> None:
    host.kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    assert "successfully rolled out" in host.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert host.kubectl("get", "deployment", "web", "--no-headers").split()[:4] == ["web", "2/2", "2", "2"]
    host.kubectl("set", "env", "deployment/web", "COLOUR=red")
    host.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    history = host.kubectl("rollout", "history", "deployment/web").split()
    assert [word for word in history if word.isdecimal()] == ["1", "2"]
    host.kubectl("rollout", "undo", "deployment/web")
    host.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert not any("env" in pod["spec"]["containers"][0] for pod in pods(host, "app=web"))
    host.kubectl("scale", "deployment/web", "--replicas=3")
    wait_until(lambda: host.kubectl("get", "deployment", "web", "--no-headers").split()[1] == "3/3", "three")
    host.kubectl("rollout", "restart", "deployment/web")
    host.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert "NewReplicaSetAvailable" in host.kubectl("describe", "deployment", "web")
    host.kubectl("delete", "deployment", "web", "--timeout=60s")
    wait_until(lambda: not pods(host, "app=web"), "its pods go, too")
    assert not json.loads(host.kubectl("get", "rs", "-o", "json"))["items"]


def test_replication_controller_orphans_its_pods_when_asked(host: SingleNode) -> None:
    host.kubectl("apply", "-f", "-", stdin=CONTROLLER)
    wait_until(lambda: host.kubectl("get", "rc", "old", "--no-headers").split()[1:4] == ["2", "2", "2"], "two pods")
    before = {pod["metadata"]["uid"] for pod in pods(host, "app=old")}
    host.kubectl("delete", "rc", "old", "--cascade=orphan", "--timeout=60s")
    wait_until(lambda: not host.kubectl("get", "rc", "-o", "name"), "the controller is gone")
    left = pods(host, "app=old")
    assert len(left) == 2
    assert all("ownerReferences" not in pod["metadata"] for pod in left)
    host.kubectl("apply", "-f", "-", stdin=CONTROLLER)
    wait_until(lambda: host.kubectl("get", "rc", "old", "--no-headers").split()[1:4] == ["2", "2", "2"], "adopted")
    assert {pod["metadata"]["uid"] for pod in pods(host, "app=old")} == before
    host.kubectl("delete", "rc", "old", "--cascade=foreground", "--timeout=60s")
    assert not pods(host, "app=old")


JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: sums}
spec:
  completions: 3
  parallelism: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: podlane/toolbox
        command: [sh, -c, 'test "$(hostname)" = "sums-$JOB_COMPLETION_INDEX"']
"""


def test_job_runs_from_creation_to_completion(host: SingleNode) -> None:
    host.kubectl("apply", "-f", "-", stdin=JOB)
    host.kubectl("wait", "--for=condition=complete", "job/sums", "--timeout=60s")
    assert host.kubectl("get", "job", "sums", "--no-headers").split()[:3] == ["sums", "Complete", "3/3"]
    status = json.loads(host.kubectl("get", "job", "sums", "-o", "json"))["status"]
    assert (status["succeeded"], status["completedIndexes"], "failed" in status) == (3, "0-2", False)
    host.kubectl("delete", "job", "sums", "--timeout=60s")
    wait_until(lambda: not pods(host, "job-name=sums"), "its pods go, too")


def test_job_counts_a_deleted_pod_as_failed(host: SingleNode) -> None:
    endless = JOB.replace("name: sums", "name: long").replace("completions: 3", "completions: 1")
    host.kubectl("apply", "-f", "-", stdin=endless.replace("'test ", "'tail -f /dev/null; test "))
    wait_until(lambda: [pod["status"].get("phase") for pod in pods(host, "job-name=long")] == ["Running"], "its pod")
    (first,) = (pod["metadata"]["name"] for pod in pods(host, "job-name=long"))
    host.kubectl("delete", "pod", first, "--grace-period=1", "--timeout=60s")
    host.kubectl("wait", "--for=jsonpath={.status.failed}=1", "job/long", "--timeout=60s")
    wait_until(lambda: [pod["status"].get("phase") for pod in pods(host, "job-name=long")] == ["Running"], "another")
    host.kubectl("patch", "job", "long", "-p", '{"spec": {"suspend": true}}')
    host.kubectl("wait", "--for=condition=suspended", "job/long", "--timeout=60s")
    host.kubectl("delete", "job", "long", "--timeout=60s")
    wait_until(lambda: not pods(host, "job-name=long"), "its pods go, too", 60)


DAEMON_SET = """\
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: log}
spec:
  selector: {matchLabels: {app: log}}
  template:
    metadata: {labels: {app: log}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: podlane/toolbox, command: [tail, -f, /dev/null]}]
"""


def test_daemon_set_runs_on_a_cordoned_node(host: SingleNode) -> None:
    host.kubectl("cordon", "node-1")
    host.kubectl("apply", "-f", "-", stdin=DAEMON_SET)
    host.kubectl("rollout", "status", "ds/log", "--timeout=60s")
    host.kubectl("uncordon", "node-1")
    host.kubectl("set", "env", "ds/log", "COLOUR=red")
    host.kubectl("rollout", "status", "ds/log", "--timeout=60s")
    host.kubectl("rollout", "undo", "ds/log")
    host.kubectl("rollout", "status", "ds/log", "--timeout=60s")
    (pod,) = pods(host, "app=log")
    assert "env" not in pod["spec"]["containers"][0]
    assert host.kubectl("get", "ds", "log", "--no-headers").split()[:6] == ["log", *"11111"]
    host.kubectl("delete", "ds", "log", "--timeout=60s")
    wait_until(lambda: not pods(host, "app=log"), "its pod goes, too")


STATEFUL_SET = """\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: dbs
  selector: {matchLabels: {app: db}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: podlane/toolbox
        command: [sh, -c, 'hostname >> /data/names; exec tail -f /dev/null']
        volumeMounts: [{name: data, mountPath: /data}]
"""
VOLUME = """\
apiVersion: v1
kind: PersistentVolume
metadata: {name: data-NUMBER}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  claimRef: {namespace: default, name: data-db-NUMBER}
  hostPath: {path: ROOT/volume-NUMBER, type: Directory}
---
"""


def test_stateful_set_pods_return_with_their_names_and_data(host: SingleNode) -> None:
    for number in "01":
        (host.root / f"volume-{number}").mkdir()
        (host.root / f"volume-{number}").chmod(0o777)  # The pods run with the user ID of their namespace.
    volumes = "".join(VOLUME.replace("NUMBER", number).replace("ROOT", str(host.root)) for number in "01")
    host.kubectl("apply", "-f", "-", stdin=volumes + STATEFUL_SET)
    host.kubectl("rollout", "status", "sts/db", "--timeout=60s")
    assert [pod["metadata"]["name"] for pod in pods(host, "app=db")] == ["db-0", "db-1"]
    host.kubectl("rollout", "restart", "sts/db")
    host.kubectl("rollout", "status", "sts/db", "--timeout=60s")
    assert (host.root / "volume-1/names").read_text() == "db-1\ndb-1\n"
    host.kubectl("scale", "sts/db", "--replicas=1")
    wait_until(lambda: [pod["metadata"]["name"] for pod in pods(host, "app=db")] == ["db-0"], "the last one goes")
    host.kubectl("delete", "sts", "db", "--timeout=60s")
    wait_until(lambda: not pods(host, "app=db"), "its pods go, too")
    assert host.kubectl("get", "pvc", "--no-headers").split()[:2] == ["data-db-0", "Bound"]
    host.kubectl("delete", "pvc,pv", "--all", "--timeout=60s")


WITH_TOKEN = """\
apiVersion: v1
kind: Pod
metadata: {name: known}
spec:
  serviceAccountName: robot
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: podlane/toolbox
    command: [tail, -f, /dev/null]
"""


def test_pod_authenticates_to_the_api_by_its_token(host: SingleNode) -> None:
    host.kubectl("create", "serviceaccount", "robot")
    host.kubectl("apply", "-f", "-", stdin=WITH_TOKEN)
    wait_until(lambda: host.is_ready("known"), "the pod")
    (container,) = host.docker("ps", "-q", "--filter", "name=k8s_main_known").split()
    token = host.docker("exec", container, "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token").strip()
    assert "BEGIN CERTIFICATE" in host.docker(
        "exec", container, "cat", "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    )
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    command = ("create", "-f", "-", "-o", "json")
    status = json.loads(host.kubectl(*command, stdin=json.dumps(review)))["status"]
    assert status["authenticated"]
    assert status["user"]["username"] == "system:serviceaccount:default:robot"
    host.kubectl("delete", "pod", "known", "--timeout=30s")
    removed = json.loads(host.kubectl(*command, stdin=json.dumps(review)))["status"]
    assert "does not exist" in removed["error"]

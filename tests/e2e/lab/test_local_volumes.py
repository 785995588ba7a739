"""Claims of the default class on a lab: data outlives pods and agents, and every reclaim policy does what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.lab.cluster import Cluster
from tests.testbed.lab.manifests import namespace
from tests.testbed.wait import wait_until

STATEFUL_SET = """\
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: disks, namespace: PROJECT}
spec:
  hard:
    persistentvolumeclaims: 3
    requests.storage: 1Gi
    local.storageclass.storage.k8s.io/requests.storage: 1Gi
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: PROJECT}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: podlane/toolbox
        imagePullPolicy: Never
        command: [sh, -c, "exec httpd -f -p 8080 -h /"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 200Mi}}}
"""
CLAIM = """\
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME, namespace: PROJECT}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: SIZE}}}
"""
USER = """\
---
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: PROJECT}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: podlane/toolbox
    imagePullPolicy: Never
    command: [sh, -c, "exec httpd -f -p 8080 -h /"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: NAME}}]
"""


def policy(name: str) -> str:
    """Return the patch of a volume's reclaim policy."""
    return json.dumps({"spec": {"persistentVolumeReclaimPolicy": name}})


class Storage:
    """The claims of a project, and the directories of its volumes on the nodes."""

    def __init__(self, cluster: Cluster, project: str) -> None:
        self.cluster = cluster
        self.project = project

    def apply(self, manifest: str, name: str = "", size: str = "200Mi") -> None:
        self.cluster.apply(manifest.replace("PROJECT", self.project).replace("NAME", name).replace("SIZE", size))

    def get(self, *words: str) -> Any:
        """Return an object, None if it does not exist."""
        done = self.cluster.kubectl("-n", self.project, "get", *words, "-o", "json", "--ignore-not-found")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def volume_of(self, claim: str) -> str:
        name: str = self.get("pvc", claim)["spec"]["volumeName"]
        return name

    def phase(self, volume: str) -> str:
        found = self.get("pv", volume)
        return found["status"]["phase"] if found is not None else "gone"

    def directory(self, volume: str) -> Path:
        """Return the directory of a volume on the host of the lab."""
        return Path(self.get("pv", volume)["spec"]["local"]["path"])

    def runs(self, pod: str, command: str) -> str:
        done = self.cluster.execute(self.project, pod, "sh", "-c", command)
        return done.stdout.strip() if done.returncode == 0 else f"failed: {done.stderr.strip()}"

    def reasons(self, name: str) -> set[str]:
        events = self.get("events", f"--field-selector=involvedObject.name={name}")["items"]
        return {event["reason"] for event in events}

    def kill_agents(self) -> None:
        for node in self.cluster.nodes.values():
            self.cluster.kill(node.root / "node-agent.pid")

    def delete(self, *words: str) -> None:
        self.cluster.kubectl("-n", self.project, "delete", *words, "--wait=false")


@pytest.fixture
def storage(cluster: Cluster) -> Iterator[Storage]:
    cluster.apply(namespace("storage"))
    yield Storage(cluster, "storage")
    cluster.kubectl("delete", "namespace", "storage", "--timeout=90s")
    volumes = json.loads(cluster.kubectl("get", "pv", "-o", "json").stdout)["items"]
    for volume in volumes:
        cluster.kubectl("delete", "pv", volume["metadata"]["name"], "--ignore-not-found", "--timeout=60s")


def test_stateful_set_keeps_its_data_until_its_claims_are_deleted(storage: Storage) -> None:
    cluster, project = storage.cluster, storage.project
    storage.apply(STATEFUL_SET)
    cluster.wait_running(project, "db-0", "db-1")
    for pod in ("db-0", "db-1"):
        assert storage.runs(pod, f"echo of {pod} > /data/file; cat /data/file") == f"of {pod}"
        claim = storage.get("pvc", f"data-{pod}")
        assert (claim["status"]["capacity"], claim["spec"]["storageClassName"]) == ({"storage": "200Mi"}, "local")
        assert claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == cluster.node_of(project, pod)
    assert storage.runs("db-0", "id -u") != "0", "the pod has no rights but those of its project"
    group, mode = storage.runs("db-0", "stat -c '%g %a' /data").split()
    assert (group in storage.runs("db-0", "id -G").split(), mode) == (True, "2777")

    node, uid = cluster.node_of(project, "db-0"), storage.get("pod", "db-0")["metadata"]["uid"]
    storage.kill_agents()
    assert storage.runs("db-0", "cat /data/file") == "of db-0", "the mount stays without an agent"
    storage.delete("pod", "db-0")
    wait_until(
        lambda: (storage.get("pod", "db-0") or {"metadata": {}})["metadata"].get("uid") not in (None, uid), "new"
    )
    cluster.wait_running(project, "db-0")
    assert (storage.runs("db-0", "cat /data/file"), cluster.node_of(project, "db-0")) == ("of db-0", node)
    first, second = storage.volume_of("data-db-0"), storage.volume_of("data-db-1")
    assert [(storage.directory(volume) / "file").read_text() for volume in (first, second)] == [
        "of db-0\n",
        "of db-1\n",
    ]

    denied = cluster.kubectl(
        "apply", "-f", "-", stdin=CLAIM.replace("PROJECT", project).replace("NAME", "big").replace("SIZE", "700Mi"),
        check=False,
    )  # fmt: skip
    assert "exceeded quota: disks" in denied.stderr
    assert "requests.storage=700Mi" in denied.stderr
    storage.apply(CLAIM, "small", "100Mi")
    wait_until(lambda: "WaitForFirstConsumer" in storage.reasons("small"), "the claim says what it waits for")

    # In use, a claim stays until its pod has ended. Then its directory is deleted, also by another agent process.
    gone = storage.directory(second)
    storage.delete("pvc", "data-db-1")
    assert (gone / "file").exists()
    cluster.kubectl("-n", project, "scale", "statefulset", "db", "--replicas=1")
    storage.kill_agents()
    wait_until(lambda: storage.phase(second) == "gone", "the volume is deleted with its claim")
    assert not gone.exists()
    assert (storage.directory(first) / "file").exists(), "the volume of another claim stays"
    assert not [each for each in gone.parent.iterdir() if each.name.startswith(".deleting-")]


def test_released_volume_is_retained_then_recycled_for_another_claim(storage: Storage) -> None:
    cluster, project = storage.cluster, storage.project
    for name in ("first", "next"):
        storage.apply(CLAIM, name)
    storage.apply(USER, "first")
    cluster.wait_running(project, "first")
    assert storage.runs("first", "echo of first > /data/file; cat /data/file") == "of first"
    volume, node = storage.volume_of("first"), cluster.node_of(project, "first")
    directory = storage.directory(volume)

    cluster.kubectl("patch", "pv", volume, "-p", policy("Retain"))
    storage.delete("pod", "first")
    storage.delete("pvc", "first")
    wait_until(lambda: storage.phase(volume) == "Released", "the volume is released")
    assert (directory / "file").read_text() == "of first\n"

    cluster.kubectl("patch", "pv", volume, "-p", policy("Recycle"))
    wait_until(lambda: storage.phase(volume) == "Available", "the volume is available again")
    assert (list(directory.iterdir()), storage.get("pv", volume)["spec"].get("claimRef")) == ([], None)
    storage.apply(USER, "next")
    cluster.wait_running(project, "next")
    assert storage.volume_of("next") == volume, "a volume that exists is used before a new one"
    assert (storage.runs("next", "ls /data"), cluster.node_of(project, "next")) == ("", node)

    # An administrator deletes a volume. In use it stays; with Retain, its directory stays in any case.
    cluster.kubectl("delete", "pv", volume, "--wait=false")
    assert storage.phase(volume) == "Bound"
    cluster.kubectl("patch", "pv", volume, "-p", policy("Retain"))
    storage.delete("pod", "next")
    storage.delete("pvc", "next")
    wait_until(lambda: storage.phase(volume) == "gone", "the volume is deleted")
    assert directory.is_dir()
    assert storage.get("localvolumes", volume) is None
    directory.rmdir()


def test_pod_with_an_absent_claim_says_so_and_starts_when_it_exists(storage: Storage) -> None:
    storage.apply(USER, "late")

    def message() -> str:
        conditions = storage.cluster.status(storage.project, "late").get("conditions", [])
        return "".join(str(each.get("message")) for each in conditions if each["type"] == "PodScheduled")

    wait_until(lambda: 'persistentvolumeclaim "late" not found' in message(), "the pod says what it lacks")
    storage.apply(CLAIM, "late")
    storage.cluster.wait_running(storage.project, "late")

"""Volumes of every type inside a pod, and their remains on the node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.volumes import mounts
from tests.testbed.lab.cluster import Cluster
from tests.testbed.lab.manifests import namespace
from tests.testbed.wait import wait_until

OBJECTS = """\
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: PROJECT}
data: {color: blue, size: large}
---
apiVersion: v1
kind: Secret
metadata: {name: password, namespace: PROJECT}
stringData: {word: hidden}
"""
POD = """\
---
apiVersion: v1
kind: Pod
metadata: {name: reader, namespace: PROJECT, labels: {app: reader, tier: front}}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 2000}
  volumes:
  - {name: settings, configMap: {name: settings}}
  - {name: password, secret: {secretName: password, defaultMode: 256}}
  - {name: absent, configMap: {name: absent, optional: true}}
  - name: about
    downwardAPI:
      items:
      - {path: labels, fieldRef: {fieldPath: metadata.labels}}
      - {path: memory, mode: 256, resourceFieldRef: {containerName: main, resource: limits.memory, divisor: 1Mi}}
  - name: all
    projected:
      sources:
      - {configMap: {name: settings, items: [{key: color, path: deep/color}]}}
      - {secret: {name: password}}
      - {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
  - {name: scratch, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: host, hostPath: {path: HOST/made, type: DirectoryOrCreate}}
  - {name: data, persistentVolumeClaim: {claimName: data}}
  containers:
  - name: main
    image: podlane/toolbox
    command: [sh, -c, "exec httpd -f -p 8080 -h /"]
    env: [{name: WHO, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    resources: {limits: {memory: 32Mi}}
    volumeMounts:
    - {name: settings, mountPath: /settings}
    - {name: settings, mountPath: /etc/color, subPath: color}
    - {name: password, mountPath: /password}
    - {name: absent, mountPath: /absent}
    - {name: about, mountPath: /about}
    - {name: all, mountPath: /all}
    - {name: scratch, mountPath: /scratch}
    - {name: scratch, mountPath: /mine, subPathExpr: of/$(WHO)}
    - {name: memory, mountPath: /memory}
    - {name: host, mountPath: /host, readOnly: true}
    - {name: data, mountPath: /data}
"""
STORAGE = """\
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: e2e-disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  hostPath: {path: HOST/disk, type: DirectoryOrCreate}
  claimRef: {namespace: PROJECT, name: data}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: PROJECT}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""


@pytest.fixture
def project(cluster: Cluster) -> Iterator[str]:
    cluster.apply(namespace("volumes"))
    yield "volumes"
    cluster.kubectl("delete", "namespace", "volumes", "--timeout=60s")
    cluster.kubectl("delete", "persistentvolume", "e2e-disk", "--ignore-not-found")


class Reader:
    """A pod that reads its volumes."""

    def __init__(self, cluster: Cluster, project: str) -> None:
        self._cluster = cluster
        self._project = project

    def runs(self, *command: str) -> str:
        """Run a program and return its output, or its error if it fails."""
        done = self._cluster.execute(self._project, "reader", *command)
        return done.stdout.strip() if done.returncode == 0 else f"failed: {done.stderr.strip()}"

    def reads(self, path: str) -> str:
        return self.runs("cat", path)

    def sees(self, path: str) -> str:
        """Return mode, owner and group of a file."""
        return self.runs("stat", "-L", "-c", "%a %u %g", path)


def mounted(cluster: Cluster) -> list[Path]:
    return mounts.mount_points(cluster.nodes["node-1"].root / "node-agent" / "pods")


def test_pod_sees_its_volumes_and_leaves_nothing_on_the_node(cluster: Cluster, project: str, tmp_path: Path) -> None:
    before, mounted_before = cluster.settled_traces("node-1"), mounted(cluster)
    cluster.apply(POD.replace("PROJECT", project).replace("HOST", str(tmp_path)))
    lacks = 'configmap "settings" not found'

    def waits() -> bool:
        rows = cluster.status(project, "reader").get("containerStatuses", [])
        return any(lacks in status["state"].get("waiting", {}).get("message", "") for status in rows)

    wait_until(waits, "the pod says what it lacks")
    wait_until(lambda: "FailedMount" in cluster.kubectl("-n", project, "get", "events").stdout, "an event says it too")
    cluster.apply((OBJECTS + STORAGE).replace("PROJECT", project).replace("HOST", str(tmp_path)))
    cluster.wait_running(project, "reader")
    reader = Reader(cluster, project)
    first = cluster.container(project, "reader")

    assert (reader.reads("/settings/color"), reader.sees("/settings/color")) == ("blue", "644 0 2000")
    assert (reader.reads("/password/word"), reader.sees("/password/word")) == ("hidden", "440 0 2000")
    assert reader.reads("/about/labels") == 'app="reader"\ntier="front"'
    assert (reader.reads("/about/memory"), reader.sees("/about/memory")) == ("32", "440 0 2000")
    assert [reader.reads(f"/all/{name}") for name in ("deep/color", "word", "name")] == ["blue", "hidden", "reader"]
    assert reader.runs("ls", "/absent") == ""
    assert (reader.sees("/scratch"), reader.sees("/mine")) == ("2777 0 2000", "2777 0 2000")
    assert reader.runs("stat", "-f", "-c", "%T", "/password") == "tmpfs"
    assert reader.runs("sh", "-c", "df -k /memory | tail -n 1 | awk '{print $2}'") == "1024"
    assert "Read-only file system" in reader.runs("touch", "/settings/x")
    assert "Read-only file system" in reader.runs("touch", "/host/x")
    assert reader.runs("sh", "-c", "echo kept > /mine/file; cat /scratch/of/reader/file") == "kept"
    assert (tmp_path / "made").is_dir()
    assert reader.runs("sh", "-c", "echo saved > /data/file; cat /data/file") == "saved"
    table = cluster.kubectl("-n", project, "get", "pv,pvc").stdout
    assert table.count("Bound") == 2, table

    cluster.kill(cluster.nodes["node-1"].root / "node-agent.pid")
    cluster.kubectl("-n", project, "patch", "configmap", "settings", "-p", '{"data": {"color": "green"}}')
    wait_until(lambda: reader.reads("/settings/color") == "green", "the change is seen")
    wait_until(lambda: reader.reads("/all/deep/color") == "green", "the change is seen in the projected volume")
    cluster.kubectl("-n", project, "label", "pod", "reader", "tier=back", "--overwrite")
    wait_until(lambda: reader.reads("/about/labels") == 'app="reader"\ntier="back"', "the label is seen")
    assert reader.reads("/etc/color") == "blue", "a part of a volume stays what it was"
    assert cluster.container(project, "reader") == first, "nothing was restarted"

    cluster.kubectl("-n", project, "delete", "pod", "reader", "--wait=false")
    cluster.kill(cluster.nodes["node-1"].root / "node-agent.pid")
    wait_until(lambda: cluster.pod(project, "reader") is None, "the pod goes")
    wait_until(lambda: cluster.traces("node-1") == before, "the node is as before")
    assert mounted(cluster) == mounted_before
    assert (tmp_path / "disk" / "file").read_text() == "saved\n", "storage outlives the pod"

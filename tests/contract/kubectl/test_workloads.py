"""Workloads by the oldest and the newest kubectl, against a real master; the test sets the status of the pods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.testbed.kubectl import (
    NAMESPACE_MANIFEST,
    OLDEST_AND_NEWEST,
    RunKubectl,
)

pytestmark = pytest.mark.parametrize("kubectl", OLDEST_AND_NEWEST, indirect=True, ids=lambda path: Path(path).name)


def patched(program: RunKubectl, space: str, pod: str, status: Mapping[str, object]) -> None:
    program("-n", space, "patch", pod, "--subresource=status", "-p", json.dumps({"status": status}))


def test_job_runs_from_creation_to_completion(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    kubectl("-n", project, "create", "job", "sum", "--image=toolbox:1", "--", "sh", "-c", "true")
    kubectl("-n", project, "wait", "--for=jsonpath={.status.active}=1", "job/sum", "--timeout=20s")
    assert kubectl("-n", project, "get", "jobs", "--no-headers").stdout.split()[:3] == ["sum", "Running", "0/1"]
    (pod,) = kubectl("-n", project, "get", "pods", "-l", "job-name=sum", "-o", "name").stdout.split()
    kubectl("-n", project, "delete", pod, "--wait=false")
    kubectl("-n", project, "wait", "--for=jsonpath={.status.failed}=1", "job/sum", "--timeout=20s")
    (pod,) = kubectl("-n", project, "get", "pods", "-l", "job-name=sum", "-o", "name").stdout.split()
    patched(kubectl, project, pod, {"phase": "Succeeded"})
    kubectl("-n", project, "wait", "--for=condition=complete", "job/sum", "--timeout=20s")
    reported = kubectl("-n", project, "describe", "job", "sum").stdout
    assert "0 Active (0 Ready) / 1 Succeeded / 1 Failed" in reported
    assert "Job completed" in reported
    kubectl("-n", project, "delete", "job", "sum")
    kubectl("-n", project, "wait", "--for=delete", pod, "--timeout=20s")


NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker"}}
WELL = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"pods": "100"}}
DAEMON_SET = """\
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: log}
spec:
  selector: {matchLabels: {app: log}}
  template:
    metadata: {labels: {app: log}}
    spec: {containers: [{name: main, image: "toolbox:1"}]}
"""
STATEFUL_SET = """\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
  template:
    metadata: {labels: {app: db}}
    spec: {nodeName: worker, containers: [{name: main, image: "toolbox:1"}]}
"""


def start(program: RunKubectl, space: str, desired: str) -> None:
    """Act as the node until the rollout is complete: remove ending pods, and make the others ready."""
    for _ in range(20):
        listed = program("-n", space, "get", "pods", "-o", "json").stdout
        for pod in json.loads(listed)["items"]:
            name = pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"]:
                program("-n", space, "delete", "pod", name, "--force", "--grace-period=0", "--ignore-not-found")
            elif pod["spec"].get("nodeName"):
                status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                patched(program, space, f"pod/{name}", status)
        reported = program("-n", space, "rollout", "status", desired, "--watch=false").stdout
        if "successfully rolled out" in reported or "partitioned roll out complete" in reported:
            return
    raise AssertionError(reported)


def test_daemon_set_is_created_rolled_and_deleted(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    kubectl("apply", "-f", "-", text=json.dumps(NODE))
    kubectl("patch", "node", "worker", "--subresource=status", "-p", json.dumps({"status": WELL}))
    kubectl("-n", project, "apply", "-f", "-", text=DAEMON_SET)
    start(kubectl, project, "ds/log")
    assert kubectl("-n", project, "get", "ds", "--no-headers").stdout.split()[:7] == ["log", *"11111", "<none>"]
    kubectl("-n", project, "set", "image", "ds/log", "main=toolbox:2")
    start(kubectl, project, "ds/log")
    history = kubectl("-n", project, "rollout", "history", "ds/log").stdout.split()
    assert [word for word in history if word.isdecimal()] == ["1", "2"]
    assert "toolbox:1" in kubectl("-n", project, "rollout", "history", "ds/log", "--revision=1").stdout
    kubectl("-n", project, "rollout", "undo", "ds/log")
    start(kubectl, project, "ds/log")
    assert "toolbox:1" in kubectl("-n", project, "get", "pods", "-o", "yaml").stdout
    kubectl("-n", project, "rollout", "restart", "ds/log")
    start(kubectl, project, "ds/log")
    assert "SuccessfulCreate" in kubectl("-n", project, "describe", "ds", "log").stdout
    kubectl("-n", project, "delete", "ds", "log")


def test_stateful_set_is_created_scaled_rolled_and_deleted(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    kubectl("-n", project, "apply", "-f", "-", text=STATEFUL_SET)
    start(kubectl, project, "sts/db")
    assert kubectl("-n", project, "get", "sts", "--no-headers").stdout.split()[:2] == ["db", "2/2"]
    assert kubectl("-n", project, "get", "pvc", "-o", "name").stdout.split() == [
        "persistentvolumeclaim/data-db-0",
        "persistentvolumeclaim/data-db-1",
    ]
    kubectl("-n", project, "set", "image", "sts/db", "main=toolbox:2")
    start(kubectl, project, "sts/db")
    kubectl("-n", project, "rollout", "undo", "sts/db")
    start(kubectl, project, "sts/db")
    assert "toolbox:1" in kubectl("-n", project, "get", "pods", "-o", "yaml").stdout
    history = kubectl("-n", project, "rollout", "history", "sts/db").stdout.split()
    assert [word for word in history if word.isdecimal()] == ["2", "3"]
    skipped = kubectl("-n", project, "rollout", "undo", "sts/db", "--to-revision=3").stdout
    assert "skipped rollback (current template already matches revision 3)" in skipped
    kubectl("-n", project, "annotate", "controllerrevisions", "--all", "seen=yes")
    kubectl("-n", project, "scale", "sts/db", "--replicas=3")
    start(kubectl, project, "sts/db")
    assert "pod/db-2" in kubectl("-n", project, "get", "pods", "-o", "name").stdout
    refused = kubectl("-n", project, "patch", "sts", "db", "-p", '{"spec": {"serviceName": "x"}}', code=1).stderr
    assert "updates to statefulset spec for fields other than" in refused
    kubectl("-n", project, "delete", "sts", "db")


def test_cron_job_is_created_and_run_by_hand(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    nightly = ("--image=toolbox:1", "--schedule=@yearly", "--", "true")
    kubectl("-n", project, "create", "cronjob", "tidy", *nightly)
    columns = kubectl("-n", project, "get", "cronjobs", "--no-headers").stdout.split()
    assert columns[:6] == ["tidy", "@yearly", "<none>", "False", "0", "<none>"]
    kubectl("-n", project, "create", "job", "now", "--from=cronjob/tidy")
    kubectl("-n", project, "wait", "--for=jsonpath={.status.active}=1", "job/now", "--timeout=20s")
    assert "Schedule:" in kubectl("-n", project, "describe", "cronjob", "tidy").stdout
    refused = kubectl("-n", project, "create", "cronjob", "x", "--image=i", "--schedule=never", code=1).stderr
    assert "spec.schedule: Invalid value" in refused
    kubectl("-n", project, "delete", "cronjob", "tidy")
    kubectl("-n", project, "wait", "--for=delete", "job/now", "--timeout=20s")

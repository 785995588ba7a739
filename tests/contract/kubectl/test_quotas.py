"""Quotas and limit ranges by the oldest and the newest kubectl, against a real master."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.kubectl import (
    NAMESPACE_MANIFEST,
    OLDEST_AND_NEWEST,
    RunKubectl,
)

pytestmark = pytest.mark.parametrize("kubectl", OLDEST_AND_NEWEST, indirect=True, ids=lambda path: Path(path).name)


BOUNDS = """\
apiVersion: v1
kind: LimitRange
metadata: {name: l}
spec:
  limits:
  - {type: Container, max: {cpu: 1, memory: 512Mi}, default: {cpu: 200m}, defaultRequest: {cpu: 100m}}
  - {type: PersistentVolumeClaim, max: {storage: 1Gi}}
"""


def test_quotas_and_limit_ranges_are_created_shown_and_enforced(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    on = ("-n", project)
    kubectl(*on, "create", "quota", "q", "--hard=pods=1,limits.memory=1Gi,count/deployments.apps=2")
    kubectl(*on, "create", "quota", "s", "--hard=pods=2", "--scopes=BestEffort")
    kubectl(*on, "apply", "-f", "-", text=BOUNDS)
    kubectl(*on, "run", "p", "--image=toolbox:1")
    quota_line = kubectl(*on, "get", "quota", "q", "--no-headers").stdout
    assert "count/deployments.apps: 0/2, pods: 1/1 " in quota_line
    assert "limits.memory: 512Mi/1Gi" in quota_line
    refused = kubectl(*on, "run", "r", "--image=toolbox:1", code=1).stderr
    assert "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1" in refused
    reported = [" ".join(line.split()) for line in kubectl("describe", "namespace", project).stdout.splitlines()]
    for line in (
        "Resource Quotas",
        "limits.memory 512Mi 1Gi",
        "Scopes: BestEffort",
        "Container cpu - 1 100m 200m -",
        "Container memory - 512Mi 512Mi 512Mi -",
        "PersistentVolumeClaim storage - 1Gi - - -",
    ):
        assert line in reported, reported
    described = [" ".join(line.split()) for line in kubectl(*on, "describe", "limitrange", "l").stdout.splitlines()]
    assert "Container cpu - 1 100m 200m -" in described
    kubectl(*on, "patch", "quota", "q", "-p", '{"spec": {"hard": {"pods": "2"}}}')
    kubectl(*on, "run", "r", "--image=toolbox:1")
    kubectl("delete", "namespace", project, "--timeout=30s")

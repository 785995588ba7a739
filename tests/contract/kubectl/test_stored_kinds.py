"""Kinds that are stored without effect, by the oldest and the newest kubectl, against a real master."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.kubectl import NAMESPACE_MANIFEST, OLDEST_AND_NEWEST, RunKubectl

pytestmark = pytest.mark.parametrize("kubectl", OLDEST_AND_NEWEST, indirect=True, ids=lambda path: Path(path).name)


ATTACHMENT = """\
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: disk}
"""
POLICY = """\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: web}}, ingress: []}
"""


def test_stored_kinds_are_created_with_a_warning_that_nothing_acts_on_them(kubectl: RunKubectl, project: str) -> None:
    """The oldest kubectl speaks autoscaling/v1 and JSON, the newest protobuf."""
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    kubectl("-n", project, "create", "deployment", "web", "--image=toolbox:1")
    created = kubectl("-n", project, "autoscale", "deployment", "web", "--min=1", "--max=3", "--cpu-percent=50")
    assert "autoscaled" in created.stdout
    assert "Warning" not in created.stderr
    columns = kubectl("-n", project, "get", "hpa", "--no-headers").stdout.split()
    assert columns[:7] == ["web", "Deployment/web", "cpu:", "<unknown>/50%", "1", "3", "0"]
    spec = "jsonpath={.spec}"
    older = kubectl("-n", project, "get", "horizontalpodautoscalers.v1.autoscaling", "web", "-o", spec).stdout
    assert '"targetCPUUtilizationPercentage":50' in older
    created = kubectl("-n", project, "create", "ingress", "in", "--rule=a.example.org/x*=web:80")
    assert "no controller of this master acts on an Ingress" in created.stderr
    columns = kubectl("-n", project, "get", "ingress", "--no-headers").stdout.split()
    assert columns[:4] == ["in", "<none>", "a.example.org", "80"]
    kubectl("create", "priorityclass", f"high-{project}", "--value=1000", "--description=much")
    assert kubectl("get", "pc", f"high-{project}", "--no-headers").stdout.split()[1:3] == ["1000", "false"]
    created = kubectl("-n", project, "apply", "-f", "-", text=POLICY)
    assert "it keeps no packet out" in created.stderr
    assert kubectl("-n", project, "get", "netpol", "--no-headers").stdout.split()[:2] == ["closed", "app=web"]


@pytest.mark.parametrize("verb", ["apply", "create", "apply --server-side"])
def test_volume_attachments_are_rejected_with_a_reason(kubectl: RunKubectl, verb: str) -> None:
    refused = kubectl(*verb.split(), "-f", "-", text=ATTACHMENT, code=1).stderr
    assert "MethodNotAllowed" in refused
    assert "CSI volumes are not supported" in refused
    assert "No resources found" in kubectl("get", "volumeattachments,csr").stderr
    removed = kubectl("delete", "volumeattachment", "x", code=1).stderr
    assert 'volumeattachments.storage.k8s.io "x" not found' in removed


def test_events_are_equal_in_both_groups(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    kubectl("-n", project, "create", "deployment", "told", "--image=toolbox:1")
    kubectl("-n", project, "wait", "--for=jsonpath={.status.updatedReplicas}=1", "deployment/told", "--timeout=20s")
    names = "jsonpath={.items[*].metadata.name}"
    core = kubectl("-n", project, "get", "events", "--field-selector=involvedObject.name=told", "-o", names).stdout
    newer = kubectl(
        "-n", project, "get", "events.v1.events.k8s.io", "--field-selector=regarding.name=told", "-o", names
    ).stdout
    assert core
    assert newer == core

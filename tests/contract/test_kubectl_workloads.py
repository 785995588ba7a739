"""Jobs as people drive them: every kubectl on this machine against a real master, with pods that a test lets end."""

from __future__ import annotations

import json

from tests.contract.test_kubectl import NAMESPACE, Kubectl, kubectl, project, server  # noqa: F401


def patched(program: Kubectl, space: str, pod: str, status: dict[str, object]) -> None:
    program("-n", space, "patch", pod, "--subresource=status", "-p", json.dumps({"status": status}))


def test_a_job_from_its_making_to_its_end(kubectl: Kubectl, project: str) -> None:  # noqa: F811
    kubectl("apply", "-f", "-", text=NAMESPACE.replace("PROJECT", project))
    kubectl("-n", project, "create", "job", "sum", "--image=toolbox:1", "--", "sh", "-c", "true")
    kubectl("-n", project, "wait", "--for=jsonpath={.status.active}=1", "job/sum", "--timeout=20s")
    assert kubectl("-n", project, "get", "jobs", "--no-headers").stdout.split()[:3] == ["sum", "Running", "0/1"]
    (pod,) = kubectl("-n", project, "get", "pods", "-l", "job-name=sum", "-o", "name").stdout.split()
    kubectl("-n", project, "delete", pod, "--wait=false")
    kubectl("-n", project, "wait", "--for=jsonpath={.status.failed}=1", "job/sum", "--timeout=20s")
    (pod,) = kubectl("-n", project, "get", "pods", "-l", "job-name=sum", "-o", "name").stdout.split()
    patched(kubectl, project, pod, {"phase": "Succeeded"})
    kubectl("-n", project, "wait", "--for=condition=complete", "job/sum", "--timeout=20s")
    told = kubectl("-n", project, "describe", "job", "sum").stdout
    assert "0 Active (0 Ready) / 1 Succeeded / 1 Failed" in told
    assert "Job completed" in told
    kubectl("-n", project, "delete", "job", "sum")
    kubectl("-n", project, "wait", "--for=delete", pod, "--timeout=20s")

"""What an installation of many charts sends: 300 documents in one stream, definitions of 900 KB, Secrets of 1 MB.

The manifests are generated. They have the sizes and features of those of popular operators, all kinds that these
install, and values that only some parsers of YAML take.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.apiserver.large_definitions import PROSE, large_definition
from tests.testbed.kubectl import OLDEST_AND_NEWEST, RunKubectl
from tests.testbed.wait import wait_until

POD = {
    "serviceAccountName": "operator",
    "containers": [
        {
            "name": "manager", "image": "operator:1", "args": ["--leader-elect"],
            "ports": [{"name": "metrics", "containerPort": 8080}],
            "env": [{"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": "metrics"}},
            "resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "10m"}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}  # fmt: skip


def installation(namespace: str, number: int) -> list[dict[str, Any]]:
    """Return the objects of an operator."""
    app = {"app": f"operator-{number}"}
    template = {"metadata": {"labels": app}, "spec": POD}
    rule = {"apiGroups": [f"{namespace}.example.com"], "resources": ["*"], "verbs": ["*"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "name": f"{namespace}-operator-{number}"}
    subjects = [{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}]
    webhook = {
        "name": "check.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": f"operator-{number}", "namespace": namespace, "path": "/check"}},
        "rules": [
            {"apiGroups": [f"{namespace}.example.com"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}
        ],
    }  # fmt: skip

    def obj(version: str, kind: str, is_cluster_wide: bool = False, **parts: Any) -> dict[str, Any]:
        name = f"operator-{number}"
        metadata = {"name": f"{namespace}-{name}"} if is_cluster_wide else {"name": name, "namespace": namespace}
        return {"apiVersion": version, "kind": kind, "metadata": {**metadata, "labels": app}, **parts}

    selector = {"matchLabels": app}
    size = {"requests": {"storage": "1Gi"}}
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": size}}
    rbac, admission = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
    return [
        obj("v1", "ServiceAccount"),
        obj("v1", "ConfigMap", data={"config.yaml": "a: 1\n"}),
        obj("v1", "Secret", stringData={"token": "x"}),
        obj(rbac, "ClusterRole", True, rules=[rule]),
        obj(rbac, "ClusterRoleBinding", True, roleRef={**role, "kind": "ClusterRole"}, subjects=subjects),
        obj(rbac, "Role", rules=[rule]),
        obj(rbac, "RoleBinding", roleRef={**role, "kind": "ClusterRole"}, subjects=subjects),
        obj("v1", "Service", spec={"selector": app, "ports": [{"name": "https", "port": 443, "targetPort": 9443}]}),
        # Without replicas the revisions stay.
        obj("apps/v1", "Deployment", spec={"replicas": 0, "selector": selector, "template": template}),
        obj(
            "apps/v1", "StatefulSet",
            spec={
                "replicas": 0, "selector": selector, "template": template, "serviceName": "operator",
                "volumeClaimTemplates": [claim],
            },
        ),
        obj("apps/v1", "DaemonSet", spec={"selector": selector, "template": template}),
        obj("batch/v1", "Job", spec={"suspend": True, "template": {"spec": {**POD, "restartPolicy": "OnFailure"}}}),
        obj("policy/v1", "PodDisruptionBudget", spec={"selector": selector, "minAvailable": 1}),
        obj("networking.k8s.io/v1", "NetworkPolicy", spec={"podSelector": selector, "ingress": [{}]}),
        obj(admission, "ValidatingWebhookConfiguration", True, webhooks=[webhook]),
        obj(admission, "MutatingWebhookConfiguration", True, webhooks=[{**webhook, "reinvocationPolicy": "IfNeeded"}]),
        obj("scheduling.k8s.io/v1", "PriorityClass", True, value=1000),
        obj("networking.k8s.io/v1", "IngressClass", True, spec={"controller": f"example.com/{namespace}"}),
    ]  # fmt: skip


def stream(namespace: str) -> str:
    """Return 300 documents: JSON is YAML, too."""
    documents: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]
    documents += [large_definition(f"{namespace}.example.com", number) for number in range(20)]
    number = 0
    while len(documents) < 300:
        documents += installation(namespace, number)
        number += 1
    return "".join(f"---\n{json.dumps(document)}\n" for document in documents[:300])


KINDS = "crd,serviceaccounts,cm,secrets,clusterroles,clusterrolebindings,roles,rolebindings,services,deployments," + (
    "statefulsets,daemonsets,jobs,pdb,networkpolicies,validatingwebhookconfigurations,mutatingwebhookconfigurations,"
    "priorityclasses,ingressclasses"
)


def revisions(kubectl: RunKubectl, namespace: str) -> dict[str, str]:
    """Return the revisions of all objects of a stream but its namespace."""
    listed = json.loads(kubectl("-n", namespace, "get", KINDS, "-o", "json").stdout)["items"]
    return {
        f"{obj['kind']}/{obj['metadata']['name']}": obj["metadata"]["resourceVersion"]
        for obj in listed
        if obj["metadata"]["name"].startswith(("operator-", f"{namespace}-operator-"))
        or obj.get("spec", {}).get("group") == f"{namespace}.example.com"
    }


def count(output: str, word: str) -> int:
    return sum(line.endswith(word) for line in output.splitlines())


@pytest.mark.parametrize("kubectl", OLDEST_AND_NEWEST[-1:], indirect=True, ids=["newest"])
def test_300_documents_in_one_stream(kubectl: RunKubectl) -> None:
    namespace = "charts"
    manifest = stream(namespace)
    assert count(kubectl("apply", "-f", "-", text=manifest).stdout, "created") == 300
    assert len(revisions(kubectl, namespace)) == 299
    # Another manager finds what it wants, and has no conflicts, not even of volumeClaimTemplates.
    again = ("apply", "--server-side", "--field-manager=other", "-f", "-")
    assert count(kubectl(*again, text=manifest).stdout, "serverside-applied") == 300

    def changes_nothing() -> bool:
        before = revisions(kubectl, namespace)
        kubectl(*again, text=manifest)
        return revisions(kubectl, namespace) == before

    # The controllers may still write statuses at first.
    wait_until(changes_nothing, "an apply that writes nothing")
    kubectl("delete", "--timeout=60s", "--ignore-not-found", "-f", "-", text=manifest)
    assert revisions(kubectl, namespace) == {}


@pytest.mark.parametrize("kubectl", OLDEST_AND_NEWEST, indirect=True, ids=lambda path: Path(path).name)
def test_large_definitions_and_secrets(kubectl: RunKubectl, project: str) -> None:
    group = f"{project}.example.com"
    definition = large_definition(group, 1)
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    parts = schema["properties"]["spec"]["properties"]
    # A plain = is a value of its own in YAML 1.1, and a text here.
    schema["properties"]["matcher"] = {"type": "string", "enum": ["=", "!=", "=~", "!~"]}
    while len(json.dumps(definition)) < 900_000:
        parts[f"more{len(parts)}"] = parts["part0"]
    manifest = "---\n" + json.dumps(definition).replace('"enum": ["=",', '"enum": [=,')
    assert "created" in kubectl("create", "-f", "-", text=manifest).stdout
    kubectl("wait", "--for", "condition=established", "--timeout=60s", f"crd/large1s.{group}")
    for _ in range(2):
        assert "serverside-applied" in kubectl("apply", "--server-side", "-f", "-", text=manifest).stdout
    too_long = kubectl("apply", "-f", "-", text=manifest, code=1).stderr
    assert "metadata.annotations: Too long: may not be more than 262144 bytes" in too_long
    kubectl("create", "namespace", project)
    custom = {
        "apiVersion": f"{group}/v1", "kind": "Large1", "metadata": {"name": "one", "namespace": project},
        "matcher": "=", "spec": {"more7": {"port": 80, "labels": {"a": PROSE[:60]}}},
    }  # fmt: skip
    kubectl("apply", "-f", "-", text=json.dumps(custom))
    assert (
        kubectl("-n", project, "get", f"large1s.{group}", "one", "-o", "jsonpath={.matcher}{.spec.more7.kind}").stdout
        == "=Service"
    )
    secret = {
        "apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
        "metadata": {"name": "release", "namespace": project}, "stringData": {"release": "x" * (1 << 20)},
    }  # fmt: skip
    assert "serverside-applied" in kubectl("apply", "--server-side", "-f", "-", text=json.dumps(secret)).stdout
    secret["stringData"] = {"release": "x" * ((1 << 20) + 1)}
    refused = kubectl("apply", "--server-side", "-f", "-", text=json.dumps(secret), code=1).stderr
    assert "data: Too long: may not be more than 1048576 bytes" in refused
    kubectl("delete", "--timeout=60s", f"crd/large1s.{group}")

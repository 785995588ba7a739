"""Helm 3 and 4 against a real master: a chart is installed, upgraded, rolled back and uninstalled.

The chart has definitions, an object of its own kind, hooks, a webhook and workloads; its releases take 1 MB. `make
contract` unpacks the programs.
"""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from tests.testbed.apiserver.large_definitions import large_definition
from tests.testbed.apiserver.process import ApiServer

PROGRAMS = Path(__file__).resolve().parents[3] / ".helm"
GROUP, RELEASE = "charts.example.org", "lamp"
RELEASE_BYTES = 700_000
"""Of the chart. Helm compresses it and encodes it twice in base64: its Secret has 950 KB."""

TEMPLATES = {
    "workloads.yaml": """
apiVersion: v1
kind: ServiceAccount
metadata: {name: lamp}
---
apiVersion: v1
kind: Service
metadata: {name: lamp}
spec: {selector: {app: lamp}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: lamp}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: lamp}}
  template:
    metadata: {labels: {app: lamp}}
    spec: {containers: [{name: main, image: "lamp:{{ .Values.tag }}"}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: lamp}
spec:
  replicas: 0
  serviceName: lamp
  selector: {matchLabels: {app: lamp}}
  template:
    metadata: {labels: {app: lamp}}
    spec: {containers: [{name: main, image: "lamp:{{ .Values.tag }}"}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
""",
    "rules.yaml": """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: lamp}
rules: [{apiGroups: [charts.example.org], resources: ["*"], verbs: ["*"]}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: lamp}
webhooks:
- name: check.charts.example.org
  failurePolicy: Ignore
  sideEffects: None
  admissionReviewVersions: [v1]
  clientConfig: {service: {name: lamp, namespace: "{{ .Release.Namespace }}"}}
  rules: [{apiGroups: [charts.example.org], apiVersions: ["*"], operations: ["*"], resources: ["*"]}]
""",
    "own.yaml": """
apiVersion: charts.example.org/v1
kind: Large0
metadata: {name: lamp}
spec: {part0: {port: {{ .Values.port }}}}
""",
    "hooks.yaml": """
apiVersion: v1
kind: ConfigMap
metadata:
  name: before-{{ .Release.Revision }}
  annotations:
    helm.sh/hook: pre-install,pre-upgrade,pre-rollback
    helm.sh/hook-delete-policy: before-hook-creation
data: {revision: "{{ .Release.Revision }}"}
""",
}
VALUES = {"replicas": 0, "tag": "1", "port": 80}

Helm = Callable[..., str]


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("chart")
    for name, text in {
        "Chart.yaml": "apiVersion: v2\nname: lamp\nversion: 1.0.0\n",
        "values.yaml": yaml.safe_dump(VALUES),
        "crds/large.yaml": yaml.safe_dump(large_definition(GROUP, 0)),
        # It cannot be compressed.
        "files/random": base64.b64encode(random.Random(1).randbytes(RELEASE_BYTES * 3 // 4)).decode(),
        **{f"templates/{name}": text for name, text in TEMPLATES.items()},
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path)
    api_server.start()
    yield api_server
    assert api_server.stop() == 0


@pytest.fixture
def api(server: ApiServer) -> Iterator[client.ApiClient]:
    with config.new_client_from_config(str(server.kubeconfig)) as actual:
        yield actual


def helm_of(version: str, server: ApiServer) -> Helm:
    """Return a function that runs a Helm and returns its output."""

    homes = {f"HELM_{each}_HOME": str(server.root / each) for each in ("CACHE", "CONFIG", "DATA")}

    def run(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [PROGRAMS / version, "--kubeconfig", server.kubeconfig, "--namespace", "charts", *words],
            capture_output=True, text=True, check=False, timeout=120,
            env={**os.environ, **homes},
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.stdout} {done.stderr}"
        return done.stdout

    return run


def state(api: client.ApiClient) -> dict[str, Any]:
    """Return what the release has made of its values."""
    apps, objects = client.AppsV1Api(api), client.CustomObjectsApi(api)
    deployment = apps.read_namespaced_deployment("lamp", "charts").spec
    stateful_set = apps.read_namespaced_stateful_set("lamp", "charts").spec
    own = objects.get_namespaced_custom_object(GROUP, "v1", "charts", "large0s", "lamp")
    images = {each.template.spec.containers[0].image for each in (deployment, stateful_set)}
    return {"replicas": deployment.replicas, "images": images, "port": own["spec"]["part0"]["port"]}


def statuses(helm: Helm) -> list[str]:
    """Return the status of each revision of the release."""
    return [revision["status"] for revision in json.loads(helm("history", RELEASE, "-o", "json"))]


@pytest.mark.parametrize("version", ["helm3", "helm4"])
def test_a_chart_is_installed_upgraded_rolled_back_and_uninstalled(
    server: ApiServer, api: client.ApiClient, chart: Path, version: str
) -> None:
    helm, core = helm_of(version, server), client.CoreV1Api(api)
    helm("install", RELEASE, str(chart), "--create-namespace", "--wait", "--timeout=60s")
    assert state(api) == {"replicas": 0, "images": {"lamp:1"}, "port": 80}
    (secret,) = core.list_namespaced_secret("charts", label_selector=f"name={RELEASE},owner=helm").items
    assert (secret.type, secret.metadata.labels["status"]) == ("helm.sh/release.v1", "deployed")
    assert len(secret.data["release"]) > RELEASE_BYTES

    helm("upgrade", RELEASE, str(chart), "--set", "tag=2,port=81", "--wait", "--timeout=60s")
    assert state(api) == {"replicas": 0, "images": {"lamp:2"}, "port": 81}
    assert core.read_namespaced_config_map("before-2", "charts").data == {"revision": "2"}, "the hook"
    helm("rollback", RELEASE, "1", "--wait", "--timeout=60s")
    assert state(api) == {"replicas": 0, "images": {"lamp:1"}, "port": 80}
    refused = helm("upgrade", RELEASE, str(chart), "--set", "port=0", code=1)
    assert refused == ""
    helm("rollback", RELEASE, "3")
    assert statuses(helm) == ["superseded", "superseded", "superseded", "failed", "deployed"]

    helm("uninstall", RELEASE, "--wait")
    assert core.list_namespaced_secret("charts", label_selector="owner=helm").items == []
    assert client.AppsV1Api(api).list_namespaced_deployment("charts").items == []
    with pytest.raises(ApiException) as caught:
        client.CustomObjectsApi(api).get_namespaced_custom_object(GROUP, "v1", "charts", "large0s", "lamp")
    assert caught.value.status == 404
    definition = client.ApiextensionsV1Api(api).read_custom_resource_definition(f"large0s.{GROUP}")
    assert definition.metadata.name, "Helm leaves definitions of `crds/`"


def test_helm_4_goes_on_with_a_release_of_helm_3(server: ApiServer, api: client.ApiClient, chart: Path) -> None:
    helm_of("helm3", server)("install", RELEASE, str(chart), "--create-namespace")
    helm = helm_of("helm4", server)
    helm("upgrade", RELEASE, str(chart), "--set", "tag=2,port=81")
    assert state(api) == {"replicas": 0, "images": {"lamp:2"}, "port": 81}
    helm("rollback", RELEASE, "1")
    assert state(api) == {"replicas": 0, "images": {"lamp:1"}, "port": 80}
    assert statuses(helm) == ["superseded", "superseded", "deployed"]

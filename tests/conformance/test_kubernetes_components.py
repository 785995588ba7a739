"""The components of Kubernetes join our master and work, each with its own kind of user."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from api.core.certificates import KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER
from api.pki import keys
from tests.conformance.build import CONTROL_PLANE, NODE_COMPONENTS, missing
from tests.conformance.components import SCHEDULER, Components
from tests.conformance.kubelet import KUBELET
from tests.testbed.node.single_node import NODE
from tests.testbed.wait import wait_until

LACKING = missing((*CONTROL_PLANE, *NODE_COMPONENTS, "agnhost", "nonewprivs"))
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not built ({', '.join(LACKING)}); `make conformance` builds it")

JOINING = {"system:bootstrappers", "system:nodes"}
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  {spec}
  terminationGracePeriodSeconds: 0
  serviceAccountName: default
  containers:
  - name: main
    image: nginx:1.14-alpine
    ports: [{{containerPort: 80}}]
    readinessProbe: {{tcpSocket: {{port: 80}}, periodSeconds: 1}}
    resources: {{requests: {{cpu: {cpu}}}}}
    volumeMounts: [{{name: all, mountPath: /all}}]
  volumes:
  - name: all
    projected:
      sources:
      - configMap: {{name: settings}}
      - serviceAccountToken: {{path: token, expirationSeconds: 600}}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Components]:
    with Components() as running:
        running.agent()
        running.kubectl("create", "configmap", "settings", "--from-literal=color=red")
        yield running


def pod(cluster: Components, name: str, spec: str, cpu: str = "10m") -> None:
    cluster.kubectl("apply", "-f", "-", stdin=POD.format(name=name, spec=spec, cpu=cpu))


def reasons(cluster: Components, name: str, component: str) -> set[str]:
    """Return the reasons of a component's events about an object."""
    actual = json.loads(cluster.kubectl("get", "events", f"--field-selector=involvedObject.name={name}", "-o", "json"))
    tellers = (
        (event["reason"], event.get("reportingComponent") or event["source"]["component"]) for event in actual["items"]
    )
    return {reason for reason, teller in tellers if teller == component}


def test_kube_scheduler_binds_pods_that_name_it(cluster: Components) -> None:
    cluster.scheduler()
    pod(cluster, "placed", f"schedulerName: {SCHEDULER}")
    pod(cluster, "large", f"schedulerName: {SCHEDULER}", cpu="1000")
    wait_until(lambda: cluster.is_ready("placed"), "the pod runs where the scheduler has put it")
    assert "Scheduled" in reasons(cluster, "placed", SCHEDULER)
    wait_until(lambda: "FailedScheduling" in reasons(cluster, "large", SCHEDULER), "the event says why")
    assert "Insufficient cpu" in cluster.status("large")["conditions"][0]["message"]
    assert cluster.refusals("kube-scheduler") == []
    cluster.kubectl("delete", "pod", "placed", "large")


def test_kube_controller_manager_informers_sync(cluster: Components) -> None:
    cluster.controllers()
    path = r"jsonpath={.metadata.annotations.node\.alpha\.kubernetes\.io/ttl}"
    wait_until(lambda: cluster.kubectl("get", "node", NODE, "-o", path) == "0", "the controller of the nodes' TTL")
    cluster.kubectl("create", "serviceaccount", "robot")
    wait_until(lambda: cluster.kubectl("get", "sa", "robot", "-o", "jsonpath={.secrets[*].name}"), "its secret")
    wait_until(lambda: not cluster.unsynced("kube-controller-manager"), "all caches are synced")
    assert cluster.refusals("kube-controller-manager") == []


def test_kube_proxy_connects_to_pods_of_a_service(cluster: Components) -> None:
    cluster.proxy()
    pod(cluster, "web", f"nodeName: {NODE}")
    cluster.kubectl("expose", "pod", "web", "--port=8080", "--target-port=80", "--name=web")
    address = cluster.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
    wait_until(lambda: cluster.is_ready("web"), "the pod is ready")
    wait_until(lambda: "It works!" in cluster.answer(f"http://{address}:8080"), "an answer by the service")
    assert cluster.refusals("kube-proxy") == []
    cluster.kubectl("delete", "service/web", "pod/web")


def test_kubelet_registers_with_the_master_and_runs_pods(cluster: Components) -> None:
    cluster.kubelet()
    wait_until(lambda: cluster.node_condition("Ready", KUBELET) == "True", "the node is Ready")
    pod(cluster, "theirs", f"nodeName: {KUBELET}")
    wait_until(lambda: cluster.is_ready("theirs"), "the pod is ready")
    assert {"Pulled", "Created", "Started"} <= reasons(cluster, "theirs", "kubelet")
    cluster.kubectl("delete", "pod", "theirs", "--grace-period=1")
    assert cluster.refusals("kubelet") == []
    rows = json.loads(cluster.kubectl("get", "csr", "-o", "json"))["items"]
    requested = {csr["spec"]["signerName"]: csr for csr in rows if JOINING & set(csr["spec"]["groups"])}
    assert requested[KUBELET_CLIENT_SIGNER]["status"]["conditions"][0]["reason"] == "AutoApproved"
    assert requested[KUBELET_CLIENT_SIGNER]["spec"]["username"].startswith("system:bootstrap:")
    # Two nodes are at this address: somebody has to say that it is the kubelet's.
    assert "conditions" not in requested[KUBELET_SERVING_SIGNER]["status"]
    name = requested[KUBELET_SERVING_SIGNER]["metadata"]["name"]
    cluster.kubectl("certificate", "approve", name)
    current = cluster.root / "kubelet" / "pki" / "kubelet-server-current.pem"
    wait_until(current.exists, "it has a serving certificate")
    assert keys.parse_certificate(current.read_bytes()).subject.user == f"system:node:{KUBELET}"

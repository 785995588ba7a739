"""Services by the oldest and the newest kubectl, against a real master."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.kubectl import (
    NAMESPACE_MANIFEST,
    OLDEST_AND_NEWEST,
    RunKubectl,
)

FLAGS = ("--external-ip-network-cidrs=[203.0.113.0/24]", "--services-node-port-range=31000-31099")
by_both = pytest.mark.parametrize("kubectl", OLDEST_AND_NEWEST, indirect=True, ids=lambda path: Path(path).name)

BALANCED = """\
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  sessionAffinity: ClientIP
  externalIPs: [203.0.113.7]
  ports: [{name: t, port: 53}, {name: u, port: 53, protocol: UDP}]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path_factory.mktemp("master"), *FLAGS)
    api_server.start()
    yield api_server
    assert api_server.stop() == 0


def spec_of(program: RunKubectl, space: str) -> dict[str, Any]:
    actual: dict[str, Any] = json.loads(program("-n", space, "get", "service", "web", "-o", "json").stdout)
    return {**actual["spec"], "status": actual["status"]}


@by_both
def test_service_changes_through_all_types(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    on = ("-n", project)
    kubectl(*on, "apply", "-f", "-", text=BALANCED)
    kubectl(*on, "wait", "--for=jsonpath={.status.loadBalancer.ingress[0].ipMode}=VIP", "svc/web", "--timeout=20s")
    assert "unchanged" in kubectl(*on, "apply", "-f", "-", text=BALANCED).stdout
    spec = spec_of(kubectl, project)
    number, health = spec["ports"][0]["nodePort"], spec["healthCheckNodePort"]
    address = spec["status"]["loadBalancer"]["ingress"][0]["ip"]
    columns = kubectl(*on, "get", "svc", "web", "--no-headers").stdout.split()
    assert columns[1:5] == [
        "LoadBalancer",
        spec["clusterIP"],
        f"{address},203.0.113.7",
        f"53:{number}/TCP,53:{number}/UDP",
    ]
    reported = [" ".join(line.split()) for line in kubectl(*on, "describe", "svc", "web").stdout.splitlines()]
    for line in (
        f"HealthCheck NodePort: {health}",
        "Session Affinity: ClientIP",
        "External Traffic Policy: Local",
    ):
        assert line in reported, reported
    assert 31000 <= number != health <= 31099
    patch = {"spec": {"type": "NodePort", "sessionAffinity": "None", "externalIPs": None}}
    kubectl(*on, "patch", "svc", "web", "--type=merge", "-p", json.dumps(patch))
    spec = spec_of(kubectl, project)
    assert spec["status"] == {"loadBalancer": {}}
    assert (spec["ports"][1]["nodePort"], "healthCheckNodePort" in spec) == (number, False)
    kubectl(*on, "patch", "svc", "web", "-p", json.dumps({"spec": {"type": "ClusterIP"}}))
    spec = spec_of(kubectl, project)
    removed = {"externalTrafficPolicy", "sessionAffinityConfig", "allocateLoadBalancerNodePorts"}
    assert not removed & spec.keys()
    assert spec["ports"][0] == {"name": "t", "port": 53, "protocol": "TCP", "targetPort": 53}
    name_only = {"spec": {"type": "ExternalName", "externalName": "example.org", "clusterIP": None}}
    kubectl(*on, "patch", "svc", "web", "--type=merge", "-p", json.dumps(name_only))
    assert kubectl(*on, "get", "svc", "web", "--no-headers").stdout.split()[1:4] == [
        "ExternalName",
        "<none>",
        "example.org",
    ]
    kubectl("delete", "namespace", project, "--timeout=30s")


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"externalIPs": ["198.51.100.1"]}, "externalIP is not allowed: an address in 203.0.113.0/24 is accepted"),
    ({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30000}]}, "The range of valid ports is 31000-31099"),
    ({"clusterIP": "10.1.1.1"}, "the provided network does not match the current range"),
    ({"externalTrafficPolicy": "Local"}, "may only be set for externally-accessible services"),
)


@by_both
def test_invalid_service_fields_are_rejected(kubectl: RunKubectl, project: str) -> None:
    kubectl("apply", "-f", "-", text=NAMESPACE_MANIFEST.replace("PROJECT", project))
    on = ("-n", project)
    for desired, words in REFUSED:
        spec = {"ports": [{"port": 80}], **desired}
        manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
        refused = kubectl(*on, "create", "-f", "-", text=json.dumps(manifest), code=1).stderr
        assert words in refused, refused
    kubectl("delete", "namespace", project, "--timeout=30s")


async def test_freed_service_addresses_are_not_reused_at_once_even_after_a_restart(tmp_path: Path) -> None:
    path = "/api/v1/namespaces/default/services"
    desired = {"type": "LoadBalancer", "ports": [{"port": 80}]}
    actual = []
    server = ApiServer(tmp_path)
    for number in range(2):
        server.start()
        async with Client(Kubeconfig.load(server.kubeconfig)) as client:
            api_client = UntypedClient(client)
            await api_client.create(path, name="web", spec=desired)
            web = await api_client.wait_until(
                f"{path}/web", lambda service: service["status"]["loadBalancer"].get("ingress")
            )
            ingress = web["status"]["loadBalancer"]["ingress"][0]["ip"]
            actual.append((web["spec"]["clusterIP"], web["spec"]["ports"][0]["nodePort"], ingress))
            if not number:
                await api_client.request("DELETE", f"{path}/web")
        server.stop()
    assert actual == [("172.30.0.2", 30000, "172.29.0.1"), ("172.30.0.3", 30001, "172.29.0.2")]

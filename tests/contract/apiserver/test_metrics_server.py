"""metrics-server: what it asks of the master from its installation on, and what clients get through it.

The requests are those of metrics-server 0.8: of its manifest, of the library for aggregated API servers, of its own
informers. A server of the test is in its place.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.apiserver.users import user_session
from tests.testbed.extension_server import ExtensionServer, running_extension
from tests.testbed.streaming.fake_kubelet import NODE, ProxyTestbed, proxy_testbed
from tests.testbed.tls_connector import tls_connector

CORE, RBAC = "/api/v1/namespaces/kube-system", "/apis/rbac.authorization.k8s.io/v1"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
NAME, ROOT = "v1beta1.metrics.k8s.io", "/apis/metrics.k8s.io/v1beta1"
CONFIGURATION = f"{CORE}/configmaps/extension-apiserver-authentication"
ACCOUNT = {"kind": "ServiceAccount", "name": "metrics-server", "namespace": "kube-system"}
LABELS = {"k8s-app": "metrics-server"}
METADATA = (
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,"
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
)
READ = ["get", "list", "watch"]

RESOURCES = [
    {"name": "nodes", "singularName": "", "namespaced": False, "kind": "NodeMetrics", "verbs": ["get", "list"]},
    {"name": "pods", "singularName": "", "namespaced": True, "kind": "PodMetrics", "verbs": ["get", "list"]},
]


def binding(kind: str, role: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {"roleRef": {"apiGroup": group, "kind": kind, "name": role}, "subjects": [ACCOUNT]}


def manifest(port: int) -> list[tuple[str, dict[str, Any]]]:
    """Return (path of the collection, object) of everything in the manifest but the Deployment."""
    meta = {"labels": LABELS}
    return [
        (f"{CORE}/serviceaccounts", {"metadata": {"name": "metrics-server", **meta}}),
        (
            f"{RBAC}/clusterroles",
            {
                "metadata": {"name": "system:metrics-server", **meta},
                "rules": [
                    {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
                    {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": READ},
                ],
            },
        ),
        (
            f"{RBAC}/namespaces/kube-system/rolebindings",
            {"metadata": {"name": "metrics-server-auth-reader", **meta}}
            | binding("Role", "extension-apiserver-authentication-reader"),
        ),
        (
            f"{RBAC}/clusterrolebindings",
            {"metadata": {"name": "metrics-server:system:auth-delegator", **meta}}
            | binding("ClusterRole", "system:auth-delegator"),
        ),
        (
            f"{RBAC}/clusterrolebindings",
            {"metadata": {"name": "system:metrics-server", **meta}} | binding("ClusterRole", "system:metrics-server"),
        ),
        (
            f"{CORE}/services",
            {
                "metadata": {"name": "metrics-server", **meta},
                "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}], "selector": LABELS},
            },
        ),
        (
            API_SERVICES,
            {
                "metadata": {"name": NAME, **meta},
                "spec": {
                    "group": "metrics.k8s.io",
                    "version": "v1beta1",
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "insecureSkipTLSVerify": True,
                    "service": {"name": "metrics-server", "namespace": "kube-system"},
                },
            },
        ),
    ]


@pytest.fixture
async def testbed(server: ApiServer, api_client: UntypedClient, tmp_path: Path) -> AsyncIterator[ProxyTestbed]:
    async with proxy_testbed(server, api_client, tmp_path) as new_testbed:
        yield new_testbed


@pytest.fixture
async def metrics_server(testbed: ProxyTestbed, tmp_path: Path) -> AsyncIterator[ExtensionServer]:
    """Install metrics-server, with a server of the test in place of its pod."""
    client = testbed.api_client
    configuration = (await client.request("GET", CONFIGURATION))["data"]
    async with running_extension(tmp_path, configuration, "localhost") as running:
        running.group, running.version, running.resources = "metrics.k8s.io", "v1beta1", RESOURCES
        usage = {"cpu": "123m", "memory": "4Mi"}
        running.answers[f"{ROOT}/nodes"] = {
            "kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {},
            "items": [{"metadata": {"name": NODE}, "usage": usage, "window": "10s"}],
        }  # fmt: skip
        for path, document in manifest(running.port):
            await client.create(path, **document)
        await pod_of_metrics_server(client)
        yield running
        for path, document in reversed(manifest(running.port)):
            await client.request("DELETE", f"{path}/{document['metadata']['name']}")
        await client.request("DELETE", f"{CORE}/pods/metrics-server", gracePeriodSeconds="0")


async def pod_of_metrics_server(client: UntypedClient) -> None:
    """Create the pod that the Deployment of the manifest would create, as its node reports it."""
    spec = {"containers": [{"name": "metrics-server", "image": "i"}], "nodeName": NODE}
    await client.create(f"{CORE}/pods", name="metrics-server", metadata={"labels": LABELS}, spec=spec)
    status = {
        "podIP": "10.128.0.7", "podIPs": [{"ip": "10.128.0.7"}], "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
    }  # fmt: skip
    await client.request("PATCH", f"{CORE}/pods/metrics-server/status", {"status": status})


@asynccontextmanager
async def account_session(server: ApiServer, client: UntypedClient) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a session with a token of the service account of metrics-server, as its pod has one."""
    made = await client.request("POST", f"{CORE}/serviceaccounts/metrics-server/token", {"spec": {}})
    config = Kubeconfig.load(server.kubeconfig)
    headers = {"Authorization": f"Bearer {made['status']['token']}"}
    connector = tls_connector(ssl.create_default_context(cadata=config.ca.decode()))
    async with aiohttp.ClientSession(config.server, connector=connector, headers=headers) as session:
        yield session


async def test_what_metrics_server_asks_at_its_start(
    server: ApiServer, testbed: ProxyTestbed, api_client: UntypedClient, metrics_server: ExtensionServer
) -> None:
    async with account_session(server, api_client) as session:
        async with session.get(CONFIGURATION) as response:
            data = (await response.json())["data"]
        assert json.loads(data["requestheader-allowed-names"]) == ["front-proxy-client"]
        name = {"fieldSelector": "metadata.name=extension-apiserver-authentication"}
        async with session.get(
            f"{CORE}/configmaps", params={**name, "limit": "500", "resourceVersion": "0"}
        ) as response:
            listed = await response.json()
            assert [item["data"] for item in listed["items"]] == [data]
        since = {"resourceVersion": listed["metadata"]["resourceVersion"], "watch": "true", "timeoutSeconds": "1"}
        async with session.get(f"{CORE}/configmaps", params={**name, **since}) as response:
            assert response.status == 200
        async with session.get(f"{CORE}/configmaps") as response:
            assert response.status == 403, "no other ConfigMap"
        for path in ("/api/v1/nodes", "/api/v1/pods"):
            parameters = {"limit": "500", "resourceVersion": "0"}
            async with session.get(path, params=parameters, headers={"Accept": METADATA}) as response:
                assert response.status == 200
        review = {
            "kind": "SubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "spec": {
                "user": "system:admin", "groups": ["system:masters"],
                "resourceAttributes": {"group": "metrics.k8s.io", "resource": "nodes", "verb": "list"},
            },
        }  # fmt: skip
        async with session.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review) as response:
            assert (response.status, (await response.json())["status"]["allowed"]) == (201, True)
        token = {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": {"token": "x"}}
        async with session.post("/apis/authentication.k8s.io/v1/tokenreviews", json=token) as response:
            assert response.status == 201
        # The kubelet asks this before it shows /metrics/resource.
        review["spec"] = {
            "user": "system:serviceaccount:kube-system:metrics-server",
            "resourceAttributes": {"resource": "nodes", "subresource": "metrics", "verb": "get", "name": NODE},
        }
        async with session.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review) as response:
            assert (await response.json())["status"]["allowed"]


async def test_metrics_server_takes_over_the_metrics_until_it_is_removed(
    server: ApiServer,
    testbed: ProxyTestbed,
    api_client: UntypedClient,
    metrics_server: ExtensionServer,
    tmp_path: Path,
) -> None:
    def is_available(api: Any) -> bool:
        return any(each["reason"] == "Passed" for each in api.get("status", {}).get("conditions", ()))

    await api_client.wait_until(f"{API_SERVICES}/{NAME}", is_available)
    top = await api_client.request("GET", f"{ROOT}/nodes")
    assert [item["usage"]["cpu"] for item in top["items"]] == ["123m"]
    selected = await api_client.request("GET", f"{ROOT}/nodes", labelSelector="a=b")
    assert selected == top, "the server selects"
    assert metrics_server.asked(f"{ROOT}/nodes")[-1].query == "labelSelector=a%3Db"
    async with user_session(server, tmp_path, "ann") as ann, ann.get(f"{ROOT}/nodes") as response:
        assert response.status == 403, "as without metrics-server"
    # A namespace does not wait for a server that has no objects.
    await api_client.create("/api/v1/namespaces", name="gone")
    await api_client.request("DELETE", "/api/v1/namespaces/gone")
    await api_client.wait_until("/api/v1/namespaces/gone", lambda found: found.get("code") == 404)
    await api_client.request("DELETE", f"{API_SERVICES}/{NAME}")
    async with asyncio.timeout(10):
        while (await api_client.request("GET", f"{ROOT}/nodes"))["items"] == top["items"]:
            await asyncio.sleep(0.02)


async def test_metrics_are_served_here_while_the_pod_of_metrics_server_restarts(
    testbed: ProxyTestbed, api_client: UntypedClient, metrics_server: ExtensionServer
) -> None:
    top = f"{ROOT}/nodes"
    await api_client.wait_until(top, lambda found: [item["usage"]["cpu"] for item in found["items"]] == ["123m"])
    await api_client.request("DELETE", f"{CORE}/pods/metrics-server", gracePeriodSeconds="0")
    await api_client.wait_until(top, lambda found: found["kind"] == "NodeMetricsList" and not found["items"])
    await pod_of_metrics_server(api_client)
    await api_client.wait_until(
        top, lambda found: [item["usage"]["cpu"] for item in found.get("items", ())] == ["123m"]
    )

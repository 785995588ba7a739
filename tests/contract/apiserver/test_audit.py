"""The audit log of a running master: who did what, from where, allowed by what."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.apiserver.users import user_session

Event = dict[str, Any]
SECONDS = 20.0

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: None, users: ["system:admin"], resources: [{group: "", resources: [events]}]}
- {level: RequestResponse, namespaces: [detailed]}
- {level: Metadata, omitStages: [RequestReceived]}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    root = tmp_path_factory.mktemp("master")
    (root / "policy.yaml").write_text(POLICY)
    api_server = ApiServer(root, "--audit-policy-file", str(root / "policy.yaml"))
    api_server.start()
    yield api_server
    assert api_server.stop() == 0


@pytest.fixture
async def ann(server: ApiServer, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with user_session(server, tmp_path, "ann", "dev") as session:
        yield session


def audit_file(server: ApiServer) -> Path:
    return server.kubeconfig.parent / "state" / "audit" / "audit.log"


def events(server: ApiServer) -> list[Event]:
    path = audit_file(server)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def wait_for(server: ApiServer, good: Callable[[Event], bool]) -> Event:
    """Return the first event that is as required."""
    deadline = time.monotonic() + SECONDS
    while not (found := [event for event in events(server) if good(event)]):
        assert time.monotonic() < deadline, events(server)[-3:]
        await asyncio.sleep(0.02)
    return found[0]


async def test_event_says_who_did_what_from_where_and_by_which_binding(
    server: ApiServer, ann: aiohttp.ClientSession, api_client: UntypedClient
) -> None:
    await api_client.create("/api/v1/namespaces", name="red")
    await api_client.create(
        "/apis/rbac.authorization.k8s.io/v1/namespaces/red/rolebindings",
        name="editors",
        subjects=[{"kind": "Group", "name": "dev", "apiGroup": "rbac.authorization.k8s.io"}],
        roleRef={"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"},
    )
    pod = {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "a", "image": "i"}]}}
    async with ann.post("/api/v1/namespaces/red/pods?fieldManager=x", json=pod) as answer:
        assert answer.status == 201
        audit_id = answer.headers["Audit-Id"]
    event = await wait_for(server, lambda event: bool(event["auditID"] == audit_id))
    assert (event["stage"], event["level"], event["verb"]) == ("ResponseComplete", "Metadata", "create")
    assert event["requestURI"] == "/api/v1/namespaces/red/pods?fieldManager=x"
    assert event["user"] == {"username": "ann", "groups": ["dev", "system:authenticated"]}
    assert event["sourceIPs"] == ["127.0.0.1"]
    assert event["objectRef"] == {"resource": "pods", "namespace": "red", "name": "web", "apiVersion": "v1"}
    assert event["responseStatus"] == {"metadata": {}, "code": 201}
    annotations = event["annotations"]
    assert annotations["authorization.k8s.io/decision"] == "allow"
    assert (
        'RoleBinding "editors/red" of ClusterRole "edit" to Group "dev"' in annotations["authorization.k8s.io/reason"]
    )
    assert annotations["securitycontextconstraints.admission.openshift.io/chosen"] == "restricted-v2"
    assert annotations["pod-security.kubernetes.io/enforce-policy"] == "privileged:latest"


async def test_forbidden_and_unauthenticated_requests_are_recorded(
    server: ApiServer, ann: aiohttp.ClientSession
) -> None:
    async with ann.delete("/api/v1/nodes/n1") as answer:
        assert answer.status == 403
        forbidden = answer.headers["Audit-Id"]
    async with ann.get("/api/v1/secrets", headers={"Authorization": "Bearer wrong"}) as answer:
        assert answer.status == 403, "the certificate has precedence"
    config = Kubeconfig.load(server.kubeconfig)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{config.server}/api/v1/secrets", ssl=False, headers={"Authorization": "Bearer wrong"}) as answer,
    ):
        assert answer.status == 401
        unauthenticated = answer.headers["Audit-Id"]
    event = await wait_for(server, lambda event: bool(event["auditID"] == forbidden))
    assert event["annotations"]["authorization.k8s.io/decision"] == "forbid"
    assert event["responseStatus"]["reason"] == "Forbidden"
    event = await wait_for(server, lambda event: bool(event["auditID"] == unauthenticated))
    assert (event["user"]["username"], event["responseStatus"]["code"]) == ("system:anonymous", 401)
    assert "wrong" not in json.dumps(event)


async def test_impersonated_user_is_recorded_beside_the_real_one(server: ApiServer) -> None:
    headers = [("Impersonate-User", "bob"), ("Impersonate-Group", "system:masters")]
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        await client.request("GET", "/api/v1/namespaces", headers=headers, query={"limit": "7"})
    event = await wait_for(server, lambda event: "limit=7" in event["requestURI"])
    assert (event["user"]["username"], event["impersonatedUser"]["username"]) == ("system:admin", "bob")


async def test_malformed_requests_are_recorded(server: ApiServer, ann: aiohttp.ClientSession) -> None:
    for url in (
        "/api/v1/pods?fieldSelector=nothing",
        "/api/v1/pods?watch=perhaps",
        "/api/v1/namespaces/%FF%FE/pods",
        "/api/v1/namespaces/a%0Ab/pods",
    ):
        async with ann.get(
            URL(str(ann._base_url).rstrip("/") + url, encoded=True), headers={"User-Agent": url}
        ) as answer:
            assert answer.status in (400, 403)
            audit_id = answer.headers["Audit-Id"]
        event = await wait_for(server, lambda event, audit_id=audit_id: bool(event["auditID"] == audit_id))  # type: ignore[misc]
        assert (event["user"]["username"], event["responseStatus"]["code"]) == ("ann", answer.status)


async def test_watch_is_recorded_when_it_starts_and_when_it_ends(server: ApiServer, api_client: UntypedClient) -> None:
    await api_client.watch("/api/v1/limitranges", "0")
    stages = []
    for stage in ("ResponseStarted", "ResponseComplete"):
        event = await wait_for(
            server,
            lambda event, stage=stage: bool("limitranges?" in event["requestURI"] and event["stage"] == stage),  # type: ignore[misc]
        )
        stages.append((event["stage"], event["verb"], event["responseStatus"]["code"]))
    assert stages == [("ResponseStarted", "watch", 200), ("ResponseComplete", "watch", 200)]


async def test_objects_are_recorded_where_the_policy_says_so_and_secrets_nowhere(
    server: ApiServer, api_client: UntypedClient
) -> None:
    await api_client.create("/api/v1/namespaces", name="detailed")
    await api_client.create("/api/v1/namespaces/detailed/configmaps", name="c", data={"a": "visible"})
    await api_client.create("/api/v1/namespaces/detailed/secrets", name="s", stringData={"a": "SECRET-1"})
    token = await api_client.create("/api/v1/namespaces/detailed/serviceaccounts/default/token", spec={})
    await api_client.request("GET", "/api/v1/namespaces/detailed/secrets/s")

    def of(resource: str) -> Callable[[Event], bool]:
        return lambda event: bool(
            event.get("objectRef", {}).get("resource") == resource and event["stage"] == "ResponseComplete"
            and event["objectRef"].get("namespace") == "detailed"
        )  # fmt: skip

    recorded = await wait_for(server, of("configmaps"))
    assert recorded["requestObject"]["data"] == recorded["responseObject"]["data"] == {"a": "visible"}
    await wait_for(server, lambda event: of("secrets")(event) and event["verb"] == "get")
    await wait_for(server, of("serviceaccounts"))
    text = audit_file(server).read_text()
    assert "SECRET-1" not in text
    assert "U0VDUkVULTE" not in text
    assert token["status"]["token"] not in text


async def test_health_checks_and_events_of_the_policy_are_not_recorded(
    server: ApiServer, api_client: UntypedClient
) -> None:
    await api_client.request("GET", "/api/v1/events", limit="3")
    await api_client.request("GET", "/api/v1/endpoints", limit="3")
    await wait_for(server, lambda event: "/api/v1/endpoints" in event["requestURI"])
    assert not [event for event in events(server) if event["requestURI"].startswith("/api/v1/events")]


async def test_counters_of_the_log_are_metrics(server: ApiServer) -> None:
    await wait_for(server, lambda event: bool(event["auditID"]))
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        lines = (await client.request("GET", "/metrics")).decode().splitlines()
    values = dict(line.split(" ") for line in lines if line.startswith("apiserver_audit_"))
    assert int(values["apiserver_audit_event_total"]) > 0
    assert values["apiserver_audit_dropped_total"] == "0"


def test_invalid_policy_keeps_the_master_from_starting(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Everything}]\n")
    server = ApiServer(tmp_path, "--audit-policy-file", str(tmp_path / "policy.yaml"))
    server.launch()
    assert server.wait() == 2
    accepted = "None, Metadata, Request, RequestResponse are accepted"
    assert f"auditPolicyFile: {tmp_path}/policy.yaml: rules[0].level: found 'Everything'; {accepted}" in server.log()


async def test_strict_log_that_cannot_be_written_rejects_requests(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("")
    path = tmp_path / "blocked" / "audit.log"
    server = ApiServer(tmp_path, "--audit-log-mode", "blocking-strict", "--audit-log-path", str(path))
    server.start()
    try:
        async with Client(Kubeconfig.load(server.kubeconfig)) as client:
            api_client = UntypedClient(client)
            deadline = time.monotonic() + SECONDS
            while (await api_client.request("GET", "/api/v1/namespaces")).get("code") != 503:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            refused = await api_client.request("POST", "/api/v1/namespaces", {"metadata": {"name": "red"}})
            assert (refused["code"], refused["message"]) == (503, "the audit log cannot record more requests")
            (tmp_path / "blocked").unlink()
            await api_client.wait_until("/api/v1/namespaces", lambda actual: actual["kind"] == "NamespaceList")
            assert "red" not in path.read_text()
    finally:
        server.stop()

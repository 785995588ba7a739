"""/metrics of the master: who may read it, and that its series are those of what is there."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.raw_requests import RawClient
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.apiserver.users import user_session
from tests.testbed.tls_connector import tls_connector

SECONDS = 20.0

NAMES = {
    "apiserver_request_total",
    "apiserver_request_duration_seconds_bucket",
    "apiserver_current_inflight_requests",
    "apiserver_storage_objects",
    "apiserver_storage_size_bytes",
    "apiserver_admission_controller_admission_duration_seconds_count",
    "authentication_attempts",
    "authenticated_user_requests",
    "kubernetes_build_info",
    "podlane_certificate_expiration_timestamp_seconds",
    "podlane_store_transaction_duration_seconds_count",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "workqueue_adds_total",
    "workqueue_depth",
    "workqueue_retries_total",
    "workqueue_work_duration_seconds_count",
}


async def read(server: ApiServer) -> str:
    async with RawClient(server.kubeconfig) as client:
        answer = await client.request("GET", "/metrics")
    assert answer.code == 200
    return str(answer.document)


def value(text: str, name: str, /, **labels: str) -> float:
    """Return the sum of the samples with these labels. The parser appends `_total` to the names of counters."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def wait_for(server: ApiServer, is_good: Callable[[str], bool]) -> str:
    deadline = time.monotonic() + SECONDS
    while not is_good(text := await read(server)):
        assert time.monotonic() < deadline, text
        await asyncio.sleep(0.05)
    return text


async def test_only_authorized_users_read_metrics(server: ApiServer, api_client: UntypedClient, tmp_path: Path) -> None:
    async with RawClient(server.kubeconfig) as admin:
        assert (await admin.request("GET", "/metrics")).code == 200
        assert (await admin.request("POST", "/metrics")).code == 405
    async with user_session(server, tmp_path, "bob") as bob:
        async with bob.get("/metrics") as refused:
            assert refused.status == 403
        binding = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:monitoring"}
        await api_client.create(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            name="monitors",
            roleRef=binding,
            subjects=[{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
        )
        async with bob.get("/metrics") as allowed:
            assert allowed.status == 200
            assert allowed.headers["Content-Type"].startswith("text/plain")
        async with bob.get("/api/v1/secrets") as refused:
            assert refused.status == 403


@pytest.mark.parametrize(("headers", "code"), [({}, 403), ({"Authorization": "Bearer made-up"}, 401)])
async def test_requests_without_a_valid_credential_are_refused(
    server: ApiServer, headers: dict[str, str], code: int
) -> None:
    config = Kubeconfig.load(server.kubeconfig)
    context = ssl.create_default_context(cadata=config.ca.decode())
    async with aiohttp.ClientSession(config.server, connector=tls_connector(context), headers=headers) as session:
        async with session.get("/version") as answer:
            assert answer.status == (200 if code == 403 else 401)
        async with session.get("/metrics") as answer:
            assert answer.status == code
            assert "apiserver_request_total" not in await answer.text()


async def test_requests_and_their_parts_are_counted(server: ApiServer, api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/namespaces", name="counted")
    before = await read(server)
    assert {re.split(r"[{ ]", line)[0] for line in before.splitlines()} >= NAMES
    path = "/api/v1/namespaces/counted/configmaps"
    for number in range(3):
        await api_client.create(path, name=f"c{number}")
    assert (await api_client.request("POST", path, {"metadata": {"name": "c0"}}))["code"] == 409
    assert (await api_client.request("POST", "/api/v1/namespaces/nope/configmaps", {"metadata": {"name": "c"}}))[
        "code"
    ] == 404
    listed = await api_client.request("GET", path)
    after = await read(server)

    def change(name: str, /, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    creates = {"verb": "POST", "resource": "configmaps", "version": "v1", "scope": "resource"}
    assert change("apiserver_request_total", code="201", **creates) == 3
    assert change("apiserver_request_total", code="409", **creates) == 1
    assert change("apiserver_request_duration_seconds_count", **creates) == 5
    assert change("apiserver_storage_objects", resource="configmaps") >= 3
    admission = "apiserver_admission_controller_admission_duration_seconds_count"
    assert change(admission, name="NamespaceLifecycle", rejected="true") == 1
    assert change(admission, name="NamespaceLifecycle", rejected="false") >= 3
    assert change("podlane_store_transaction_duration_seconds_count") >= 1
    assert change("podlane_store_revisions_total") >= 3
    assert change("authentication_attempts_total", result="success") >= 6

    watched = await api_client.watch(path, listed["metadata"]["resourceVersion"])
    assert watched == []
    await api_client.watch(path, str(int(listed["metadata"]["resourceVersion"]) - 1))
    final = await read(server)
    assert value(final, "apiserver_watch_events_total", kind="ConfigMap", version="v1") >= 1
    assert value(final, "apiserver_request_total", verb="WATCH", resource="configmaps", code="200") == 2


async def test_open_watch_is_counted_until_it_ends(server: ApiServer, tmp_path: Path) -> None:
    labels = {"verb": "WATCH", "resource": "limitranges"}

    def watches(text: str) -> tuple[float, float]:
        running = value(text, "apiserver_longrunning_requests", **labels)
        return running, value(text, "apiserver_registered_watchers", kind="LimitRange")

    async with (
        user_session(server, tmp_path, "root", "system:masters") as root,
        root.get("/api/v1/limitranges?watch=1") as answer,
    ):
        assert answer.status == 200
        text = await wait_for(server, lambda text: watches(text) == (1, 1))
        assert value(text, "apiserver_current_inflight_requests", request_kind="readOnly") == 1, "the request itself"
    await wait_for(server, lambda text: watches(text) == (0, 0))


async def test_series_of_a_node_disappear_with_it(server: ApiServer, api_client: UntypedClient) -> None:
    await api_client.create("/api/v1/nodes", name="short-lived")
    await api_client.request(
        "PATCH", "/api/v1/nodes/short-lived/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    )
    text = await read(server)
    assert value(text, "kube_node_status_condition", node="short-lived", condition="Ready", status="false") == 1
    await api_client.request("DELETE", "/api/v1/nodes/short-lived")
    await wait_for(server, lambda text: "short-lived" not in text)


async def test_clients_cannot_make_series(server: ApiServer) -> None:
    """Positive control: a path that is served and was not requested before adds one."""
    async with RawClient(server.kubeconfig) as client:

        async def hostile(first: int) -> None:
            for number in range(first, first + 50):
                word = f"w{number}"
                await client.request("GET", f"/{word}")
                await client.request("GET", f"/apis/{word}/v1/{word}")
                await client.request(word.upper(), f"/api/v1/namespaces/{word}/pods/{word}")
                await client.request("GET", f"/api/v1/namespaces/{word}/pods/{word}/{word}")

        await hostile(0)
        before = await read(server)
        await hostile(50)
        after = await read(server)
        assert (await client.request("GET", "/apis/policy/v1/poddisruptionbudgets")).code == 200
    lines = [
        {line.partition("} ")[0] for line in text.splitlines() if line.startswith("apiserver_request_total{")}
        for text in (before, after, await read(server))
    ]
    assert lines[1] - lines[0] <= {line for line in lines[1] if 'subresource="/metrics"' in line}
    assert any('resource="poddisruptionbudgets"' in line for line in lines[2] - lines[1])
    assert "w99" not in after

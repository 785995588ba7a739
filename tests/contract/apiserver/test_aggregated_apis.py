"""API versions that another server serves, behind a service: a real master, a double of the node, a real server."""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.apiserver.users import user_session
from tests.testbed.extension_server import GROUP, ROOT, ExtensionServer, running_extension
from tests.testbed.kubectl import ALL_PROGRAMS
from tests.testbed.streaming.fake_kubelet import PODS, PROJECT, ProxyTestbed, proxy_testbed, until

API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
NAME = f"v1.{GROUP}"
API = f"{API_SERVICES}/{NAME}"
AUTHENTICATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
TOYS = f"{ROOT}/namespaces/{PROJECT}/toys"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
POD_IP = "10.128.0.8"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Run a master that evaluates autoscalers each second."""
    api_server = ApiServer(tmp_path_factory.mktemp("master"), "--horizontal-pod-autoscaler-sync-period", "1")
    api_server.start()
    yield api_server
    api_server.stop()


@pytest.fixture
async def testbed(server: ApiServer, api_client: UntypedClient, tmp_path: Path) -> AsyncIterator[ProxyTestbed]:
    async with proxy_testbed(server, api_client, tmp_path) as new_testbed:
        yield new_testbed


@pytest.fixture
async def extension(testbed: ProxyTestbed, tmp_path: Path) -> AsyncIterator[ExtensionServer]:
    """Run the server in place of the pod of the service `toys`, without an APIService."""
    client = testbed.api_client
    configuration = (await client.request("GET", AUTHENTICATION))["data"]
    async with running_extension(tmp_path, configuration, f"toys.{PROJECT}.svc") as running:
        await testbed.pod("toys", ip=POD_IP)
        services = f"/api/v1/namespaces/{PROJECT}/services"
        await client.request("DELETE", f"{services}/toys")
        endpoints = f"/api/v1/namespaces/{PROJECT}/endpoints/toys"
        await client.wait_until(endpoints, lambda found: found.get("code") == 404)
        ports = [{"port": 443, "targetPort": running.port}]
        await client.create(services, name="toys", spec={"selector": {"app": "toys"}, "ports": ports})
        await client.wait_until(
            endpoints, lambda found: [each["ports"][0]["port"] for each in found.get("subsets", ())] == [running.port]
        )
        yield running


def spec(extension: ExtensionServer, group: str = GROUP, version: str = "v1", **changes: Any) -> dict[str, Any]:
    """Return the spec of an APIService for the server."""
    return {
        "group": group, "version": version, "groupPriorityMinimum": 2000, "versionPriority": 15,
        "service": {"namespace": PROJECT, "name": "toys"}, "caBundle": extension.ca_bundle, **changes,
    }  # fmt: skip


def condition(api: dict[str, Any]) -> tuple[str, str]:
    """Return status and reason of the condition Available."""
    conditions = api.get("status", {}).get("conditions", ())
    return next(((each["status"], each["reason"]) for each in conditions if each["type"] == "Available"), ("", ""))


@asynccontextmanager
async def registered(
    client: UntypedClient, extension: ExtensionServer, name: str = NAME, expected: str = "Passed", **changes: Any
) -> AsyncIterator[dict[str, Any]]:
    """Register the server during the block, and wait until the check has this result."""
    version, _, group = name.partition(".")
    await client.create(API_SERVICES, name=name, spec=spec(extension, group, version, **changes))
    try:
        yield await client.wait_until(f"{API_SERVICES}/{name}", lambda api: condition(api)[1] == expected)
    finally:
        extension.released.set()
        await client.request("DELETE", f"{API_SERVICES}/{name}")


async def get(testbed: ProxyTestbed, path: str, **headers: str) -> tuple[int, str]:
    """Return status and text of the response to a GET of an administrator."""
    async with testbed.session.get(path, headers=headers) as response:
        return response.status, await response.text()


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_requests_arrive_with_the_certificate_and_the_user_of_the_client(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    async with registered(api_client, extension):
        body = {"kind": "Toy", "metadata": {"name": "bear"}}
        headers = {
            "X-Remote-User": "forged", "X-Remote-Group": "forged", "x-remote-extra-a": "forged",
            "X-Remote-Uid": "forged", "X_Remote_User": "forged", "Connection": "X-Remote-User", "X-Other": "kept",
        }  # fmt: skip
        async with testbed.session.post(f"{TOYS}?fieldManager=me", json=body, headers=headers) as response:
            assert response.status == 201
            assert (await response.json())["metadata"] == {"name": "bear", "namespace": PROJECT}
            audit_id = response.headers["Audit-Id"]
    (seen,) = extension.asked(TOYS)
    assert seen.user == ("system:admin", ["system:authenticated", "system:masters"])
    assert not [name for name, value in seen.headers.items() if "forged" in value]
    assert (seen.method, seen.query, json.loads(seen.body)) == ("POST", "fieldManager=me", body)
    assert (seen.headers["Host"], seen.headers["X-Other"]) == (f"toys.{PROJECT}.svc", "kept")
    assert seen.headers["Audit-Id"] == audit_id
    assert not {"Cookie", "Impersonate-User"} & set(seen.headers)
    assert extension.refused == 0


async def test_user_and_impersonated_user_are_named_and_authorized_here_first(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient, server: ApiServer, tmp_path: Path
) -> None:
    async with registered(api_client, extension), user_session(server, tmp_path, "ann", "dev") as ann:
        async with ann.get(TOYS) as response:
            assert response.status == 403
            refused = await response.json()
        assert refused["message"].endswith(
            f'User "ann" cannot list resource "toys" in API group "{GROUP}" in the namespace "{PROJECT}"'
        )
        assert extension.asked(TOYS) == []
        roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{PROJECT}"
        rule = {"apiGroups": [GROUP], "resources": ["toys"], "verbs": ["list"]}
        await api_client.create(f"{roles}/roles", name="toys", rules=[rule])
        await api_client.create(
            f"{roles}/rolebindings",
            name="toys",
            subjects=[{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}],
            roleRef={"kind": "Role", "apiGroup": "rbac.authorization.k8s.io", "name": "toys"},
        )
        async with ann.get(TOYS) as response:
            assert response.status == 200
        for denied in (f"{TOYS}/bear", f"{TOYS}?watch=1", f"{ROOT}/watch/namespaces/{PROJECT}/toys", f"{ROOT}/boxes"):
            async with ann.get(denied) as response:
                assert response.status == 403, denied
        async with ann.get(ROOT) as response:
            assert response.status == 200, "discovery is for everybody"
        for kind in ("rolebindings", "roles"):
            await api_client.request("DELETE", f"{roles}/{kind}/toys")
        impersonation = {
            "Impersonate-User": "bob",
            "Impersonate-Group": "system:masters",
            "Impersonate-Extra-A%2fB": "c",
        }
        assert (await get(testbed, TOYS, **impersonation))[0] == 200
    users = [seen.user for seen in extension.asked(TOYS)]
    assert users == [("ann", ["dev", "system:authenticated"]), ("bob", ["system:authenticated", "system:masters"])]
    assert extension.asked(TOYS)[1].headers["X-Remote-Extra-a%2Fb"] == "c"


async def test_watch_is_streamed_and_ends_with_its_client(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    async with registered(api_client, extension):
        async with testbed.session.get(f"{TOYS}?watch=true") as response:
            lines = [json.loads(await response.content.readline()) for _ in range(3)]
        assert [line["object"]["number"] for line in lines] == [0, 1, 2]
        await until(lambda: extension.watchers == 0)


async def test_many_watches_leave_room_for_other_requests(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    """Connections to a webhook are limited to 100; those of users are not."""
    async with registered(api_client, extension):
        watches = [await testbed.session.get(f"{TOYS}?watch=true") for _ in range(105)]
        assert extension.watchers == 105
        async with asyncio.timeout(5):
            assert (await get(testbed, TOYS))[0] == 200
        for response in watches:
            response.close()


async def test_connection_can_be_upgraded(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    async with registered(api_client, extension):
        headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Remote-User": "forged"}
        response = await testbed.session.post(f"{TOYS}/bear/play", headers=headers)
        assert response.status == 101
        assert response.connection is not None
        response.close()
        (seen,) = extension.asked(f"{TOYS}/bear/play")
        assert seen.headers.getall("X-Remote-User") == ["system:admin"]


@pytest.mark.parametrize(
    ("behaviour", "status", "text"),
    [
        ("redirect", 502, "the backend attempted to redirect this request, which is not permitted"),
        ("switch", 503, "error trying to reach service: unexpected upgrade\n"),
        ("close", 503, "error trying to reach service: EOF\n"),
        ("fail", 500, "out of order"),
    ],
)
async def test_responses_that_are_not_forwarded(
    testbed: ProxyTestbed,
    extension: ExtensionServer,
    api_client: UntypedClient,
    behaviour: str,
    status: int,
    text: str,
) -> None:
    async with registered(api_client, extension):
        extension.behaviour = behaviour
        assert await get(testbed, TOYS) == (status, text)
        writes = len([seen for seen in extension.requests if seen.method == "POST"])
        async with testbed.session.post(TOYS, json={}) as response:
            assert response.status == status
        assert len([seen for seen in extension.requests if seen.method == "POST"]) == writes + 1, "sent once"


async def test_path_arrives_as_it_was_authorized(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient, server: ApiServer
) -> None:
    async with registered(api_client, extension):
        echo = f"{ROOT}/echo"
        url = URL(f"{server.url}{echo}/a%20b*/c?x=%2F", encoded=True)
        async with testbed.session.get(url) as response:
            assert (await response.json())["path"] == f"{echo}/a%20b%2A/c?x=%2F"
        url = URL(f"{server.url}{ROOT}/namespaces/{PROJECT}/%2e%2e/%2e%2e/boxes", encoded=True)
        async with testbed.session.get(url) as response:
            assert response.status == 400
        url = URL(f"{server.url}{ROOT}/echo/a%2Fb", encoded=True)
        async with testbed.session.get(url) as response:
            assert (await response.json())["path"] == f"{echo}/a/b", "as Go's URL.Path"


async def test_large_bodies_are_streamed(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    body = io.BytesIO(b"x" * (5 << 20))
    async with registered(api_client, extension), testbed.session.post(f"{ROOT}/echo", data=body) as response:
        assert (await response.json())["body"] == 5 << 20


# --- availability -----------------------------------------------------------------------------------------------------


async def test_api_without_a_server_says_why_and_recovers(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    absent = {"namespace": PROJECT, "name": "absent"}
    async with registered(api_client, extension, expected="ServiceNotFound", service=absent):
        assert await get(testbed, TOYS) == (503, "service unavailable\n")
        await api_client.request("PATCH", API, {"spec": {"service": {"name": "toys", "port": 444}}})
        await api_client.wait_until(API, lambda api: condition(api) == ("False", "ServicePortError"))
        await api_client.request("PATCH", API, {"spec": {"service": {"port": 443}}})
        await api_client.wait_until(API, lambda api: condition(api) == ("True", "Passed"))
        assert (await get(testbed, TOYS))[0] == 200
        pod = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        await api_client.request("PATCH", f"{PODS}/toys/status", pod)
        await api_client.wait_until(API, lambda api: condition(api) == ("False", "MissingEndpoints"))
        pod = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await api_client.request("PATCH", f"{PODS}/toys/status", pod)
        await api_client.wait_until(API, lambda api: condition(api) == ("True", "Passed"))
    await api_client.wait_until(API, lambda api: api.get("code") == 404)
    assert (await get(testbed, TOYS))[0] == 404


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("fail", "bad status from https://toys.red.svc:443/apis/toys.example.org/v1: 500"),
        ("redirect", "bad status from https://toys.red.svc:443/apis/toys.example.org/v1: 302"),
        ("close", "EOF"),
        ("hang", "context deadline exceeded"),
        ("drip", "context deadline exceeded"),
    ],
)
async def test_check_that_fails_is_reported_within_its_time(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient, behaviour: str, message: str
) -> None:
    extension.behaviour = behaviour
    async with registered(api_client, extension, expected="FailedDiscoveryCheck") as api:
        text = next(each["message"] for each in api["status"]["conditions"] if each["type"] == "Available")
        start = "failing or missing response from https://toys.red.svc:443/apis/toys.example.org/v1: "
        assert text.startswith(start)
        assert text.endswith(message)
        assert (await get(testbed, "/apis"))[0] == 200


async def test_unknown_authority_is_refused_unless_any_certificate_is_accepted(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    async with registered(api_client, extension, expected="FailedDiscoveryCheck", caBundle="") as api:
        assert "certificate signed by unknown authority" in str(api["status"])
        await api_client.request("PATCH", API, {"spec": {"insecureSkipTLSVerify": True}})
        await api_client.wait_until(API, lambda api: condition(api) == ("True", "Passed"))
        assert (await get(testbed, TOYS))[0] == 200


async def test_slow_server_delays_no_other_check(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    extension.behaviour = "hang"
    absent = {"namespace": PROJECT, "name": "absent"}
    await api_client.create(API_SERVICES, name=NAME, spec=spec(extension))
    await until(lambda: bool(extension.requests))
    async with asyncio.timeout(3):
        async with registered(api_client, extension, "v1.other.example.org", "ServiceNotFound", service=absent):
            pass
    await api_client.request("DELETE", API)


# --- discovery --------------------------------------------------------------------------------------------------------


async def aggregated_group(testbed: ProxyTestbed, name: str) -> dict[str, Any]:
    """Return the entry of a group in aggregated discovery; empty if there is none."""
    items = json.loads((await get(testbed, "/apis", Accept=AGGREGATED))[1])["items"]
    return next((item for item in items if item["metadata"]["name"] == name), {})


async def test_discovery_shows_the_version_until_it_is_gone(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    async with registered(api_client, extension):
        groups = [group["name"] for group in json.loads((await get(testbed, "/apis"))[1])["groups"]]
        assert groups[-1] == GROUP
        group = json.loads((await get(testbed, f"/apis/{GROUP}"))[1])
        assert group["preferredVersion"] == {"groupVersion": f"{GROUP}/v1", "version": "v1"}
        listed = json.loads((await get(testbed, ROOT))[1])
        assert [resource["name"] for resource in listed["resources"]] == ["toys", "toys/play", "boxes"]
        (version,) = (await aggregated_group(testbed, GROUP))["versions"]
        assert (version["version"], version["freshness"]) == ("v1", "Current")
        toys, boxes = version["resources"]
        assert (toys["resource"], toys["scope"], boxes["scope"]) == ("toys", "Namespaced", "Cluster")
        assert toys["responseKind"] == {"group": GROUP, "version": "v1", "kind": "Toy"}
        assert [part["subresource"] for part in toys["subresources"]] == ["play"]
        assert toys["shortNames"] == ["ty"]
    await api_client.wait_until(API, lambda api: api.get("code") == 404)
    assert await aggregated_group(testbed, GROUP) == {}
    assert (await get(testbed, f"/apis/{GROUP}"))[0] == 404


async def test_unavailable_version_stays_in_discovery_as_stale(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    async with registered(api_client, extension):
        extension.behaviour = "fail"
        await api_client.request("PATCH", API, {"spec": {"versionPriority": 16}})
        await api_client.wait_until(API, lambda api: condition(api) == ("False", "FailedDiscoveryCheck"))
        (version,) = (await aggregated_group(testbed, GROUP))["versions"]
        assert version["freshness"] == "Stale"
        assert [resource["resource"] for resource in version["resources"]] == ["toys", "boxes"]
        assert await get(testbed, ROOT) == (503, "service unavailable\n")
        assert (await get(testbed, f"/apis/{GROUP}"))[0] == 200


@pytest.mark.parametrize("behaviour", ["not-json", "huge"])
async def test_unusable_discovery_is_stale_and_hurts_nobody_else(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient, behaviour: str
) -> None:
    extension.behaviour = behaviour
    async with registered(api_client, extension):
        (version,) = (await aggregated_group(testbed, GROUP))["versions"]
        assert (version["freshness"], version["resources"]) == ("Stale", [])
        assert (await aggregated_group(testbed, "apps"))["versions"][0]["freshness"] == "Current"


async def test_openapi_document_of_the_server_is_in_the_index_and_kept(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    async with registered(api_client, extension):
        paths = json.loads((await get(testbed, "/openapi/v3"))[1])["paths"]
        url = paths[ROOT[1:]]["serverRelativeURL"]
        assert url.startswith(f"/openapi/v3{ROOT}?hash=")
        assert "api/v1" in paths
        assert paths["api/v1"]["serverRelativeURL"].startswith("/openapi/v3/api/v1?hash="), "not that of the server"
        for _ in range(2):
            status, text = await get(testbed, url)
            assert (status, json.loads(text)["info"]["title"]) == (200, "toys")
        assert len(extension.asked(f"/openapi/v3{ROOT}")) == 1


@pytest.mark.parametrize("program", ALL_PROGRAMS, ids=[Path(program).name for program in ALL_PROGRAMS])
async def test_kubectl_lists_explains_and_says_what_is_not_available(
    testbed: ProxyTestbed,
    extension: ExtensionServer,
    api_client: UntypedClient,
    server: ApiServer,
    tmp_path: Path,
    program: str,
) -> None:
    async def kubectl(*words: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            program, f"--kubeconfig={server.kubeconfig}", *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        )  # fmt: skip
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()

    extension.toys[PROJECT, "bear"] = {
        "apiVersion": f"{GROUP}/v1", "kind": "Toy", "metadata": {"name": "bear", "namespace": PROJECT},
    }  # fmt: skip
    async with registered(api_client, extension):
        code, text = await kubectl("get", "apiservices", NAME, "v1.apps")
        assert code == 0, text
        assert [line.split()[:3] for line in text.splitlines()[1:]] == [
            [NAME, f"{PROJECT}/toys", "True"],
            ["v1.apps", "Local", "True"],
        ]
        assert await kubectl("get", "ty", "-n", PROJECT, "-o", "name") == (0, f"toy.{GROUP}/bear\n")
        code, text = await kubectl("api-resources", f"--api-group={GROUP}", "-o", "name")
        assert (code, sorted(text.split())) == (0, [f"boxes.{GROUP}", f"toys.{GROUP}"])
        extension.behaviour = "fail"
        await api_client.request("PATCH", API, {"spec": {"versionPriority": 16}})
        await api_client.wait_until(API, lambda api: condition(api) == ("False", "FailedDiscoveryCheck"))
        code, text = await kubectl("get", "--raw", TOYS)
        assert (code, "the server is currently unable to handle the request" in text) == (1, True), text
        code, text = await kubectl("get", f"toys.{GROUP}", "-n", PROJECT, "-o", "name")
        assert (code, 'the server doesn\'t have a resource type "toys"' in text) == (1, True), "as with kube-apiserver"
        code, text = await kubectl("get", "pods", "-n", PROJECT, "-o", "name")
        assert (code, "pod/toys" in text) == (0, True), text


# --- versions that this server has, too -------------------------------------------------------------------------------


async def test_metrics_of_another_server_are_served_while_it_is_available(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    name, root = "v1beta1.metrics.k8s.io", "/apis/metrics.k8s.io/v1beta1"
    own = json.loads((await get(testbed, root))[1])["resources"]
    assert {resource["name"] for resource in own} == {"nodes", "pods"}
    extension.group, extension.version = "metrics.k8s.io", "v1beta1"
    async with registered(api_client, extension, name):
        assert json.loads((await get(testbed, root))[1])["resources"] == extension.resources
        (version,) = (await aggregated_group(testbed, "metrics.k8s.io"))["versions"]
        assert [resource["resource"] for resource in version["resources"]] == ["toys", "boxes"]
        extension.behaviour = "fail"
        await api_client.request("PATCH", f"{API_SERVICES}/{name}", {"spec": {"versionPriority": 16}})
        await api_client.wait_until(f"{API_SERVICES}/{name}", lambda api: condition(api)[0] == "False")
        assert json.loads((await get(testbed, root))[1])["resources"] == own
        (version,) = (await aggregated_group(testbed, "metrics.k8s.io"))["versions"]
        assert version["freshness"] == "Current"
    await api_client.wait_until(f"{API_SERVICES}/{name}", lambda api: api.get("code") == 404)
    assert json.loads((await get(testbed, root))[1])["resources"] == own


# --- what controllers do with it --------------------------------------------------------------------------------------


async def terminated(client: UntypedClient, name: str) -> None:
    await client.wait_until(f"/api/v1/namespaces/{name}", lambda found: found.get("code") == 404)


def deletion_condition(namespace: dict[str, Any], kind: str) -> tuple[str, str]:
    rows = namespace.get("status", {}).get("conditions", ())
    return next(((row["status"], row["reason"]) for row in rows if row["type"] == kind), ("", ""))


async def test_contents_of_a_deleted_namespace_are_deleted_on_the_server(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    async with registered(api_client, extension):
        await api_client.create("/api/v1/namespaces", name="ending")
        extension.toys = {
            ("ending", "bear"): {"metadata": {"name": "bear", "finalizers": ["example.org/a"]}},
            ("ending", "doll"): {"metadata": {"name": "doll"}},
            ("other", "doll"): {"metadata": {"name": "doll"}},
        }
        await api_client.request("DELETE", "/api/v1/namespaces/ending")
        found = await api_client.wait_until(
            "/api/v1/namespaces/ending",
            lambda found: deletion_condition(found, "NamespaceFinalizersRemaining")[0] == "True",
        )
        assert f"toys.{GROUP} has 1 resource instances" in str(found["status"])
        assert sorted(extension.toys) == [("ending", "bear"), ("other", "doll")]
        del extension.toys["ending", "bear"]
        await terminated(api_client, "ending")
    deletes = [seen for seen in extension.requests if seen.method == "DELETE"]
    assert {seen.user[0] for seen in deletes} == {"system:serviceaccount:kube-system:namespace-controller"}


async def test_server_that_is_unavailable_holds_a_namespace_and_says_so(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    extension.behaviour = "hang"
    async with registered(api_client, extension, expected="FailedDiscoveryCheck"):
        await api_client.create("/api/v1/namespaces", name="waiting")
        await api_client.request("DELETE", "/api/v1/namespaces/waiting")
        found = await api_client.wait_until(
            "/api/v1/namespaces/waiting",
            lambda found: deletion_condition(found, "NamespaceDeletionDiscoveryFailure") == ("True", "DiscoveryFailed"),
        )
        assert f"stale GroupVersion discovery: {GROUP}/v1" in str(found["status"])
    await terminated(api_client, "waiting")


async def test_server_that_hangs_delays_no_namespace_without_its_objects(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    """Metrics have no objects, so namespaces do not wait for servers of metrics."""
    extension.behaviour, extension.group = "hang", "custom.metrics.k8s.io"
    async with registered(api_client, extension, "v1beta1.custom.metrics.k8s.io", "FailedDiscoveryCheck"):
        await api_client.create("/api/v1/namespaces", name="quick")
        await api_client.request("DELETE", "/api/v1/namespaces/quick")
        await terminated(api_client, "quick")


def metric_list(api_version: str, **item: Any) -> dict[str, Any]:
    kind = "ExternalMetricValueList" if "external" in api_version else "MetricValueList"
    return {"kind": kind, "apiVersion": api_version, "metadata": {}, "items": [item]}


async def test_workload_is_scaled_by_metrics_of_the_server(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    """The metrics are those that prometheus-adapter and KEDA serve."""
    extension.group, extension.version = "external.metrics.k8s.io", "v1beta1"
    root = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{PROJECT}/queue"
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    extension.answers[root] = metric_list(
        "external.metrics.k8s.io/v1beta1", metricName="queue", metricLabels={}, timestamp=now, value="30"
    )
    deployments = f"/apis/apps/v1/namespaces/{PROJECT}/deployments"
    labels = {"app": "scaled"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "i"}], "schedulerName": "nobody"},
    }
    await api_client.create(
        deployments, name="scaled", spec={"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    )
    metric = {"name": "queue", "selector": {"matchLabels": {"a": "b"}}}
    target = {"type": "AverageValue", "averageValue": "10"}
    scalers = f"/apis/autoscaling/v2/namespaces/{PROJECT}/horizontalpodautoscalers"
    async with registered(api_client, extension, "v1beta1.external.metrics.k8s.io"):
        spec = {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"},
            "maxReplicas": 4,
            "metrics": [{"type": "External", "external": {"metric": metric, "target": target}}],
        }
        await api_client.create(scalers, name="scaled", spec=spec)
        await api_client.wait_until(f"{deployments}/scaled", lambda found: found["spec"]["replicas"] == 3)
    asked = extension.asked(root)[-1]
    assert asked.query == "labelSelector=a%3Db"
    assert asked.user == (
        "system:serviceaccount:kube-system:horizontal-pod-autoscaler",
        ["system:authenticated", "system:serviceaccounts", "system:serviceaccounts:kube-system"],
    )
    review = {
        "spec": {
            "user": asked.user[0],
            "groups": asked.user[1],
            "resourceAttributes": {
                "group": "external.metrics.k8s.io", "resource": "queue", "verb": "get", "namespace": PROJECT
            },
        }
    }  # fmt: skip
    answer = await api_client.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer["status"]["allowed"], "what a metrics server asks"
    await api_client.request("DELETE", f"{scalers}/scaled")
    await api_client.request("DELETE", f"{deployments}/scaled")


# --- who may do what --------------------------------------------------------------------------------------------------


async def test_only_cluster_administrators_register_servers(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient, server: ApiServer, tmp_path: Path
) -> None:
    bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{PROJECT}/rolebindings"
    await api_client.create(
        bindings,
        name="admin-ann",
        subjects=[{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}],
        roleRef={"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "admin"},
    )
    async with user_session(server, tmp_path, "ann") as ann:
        document = {"metadata": {"name": NAME}, "spec": spec(extension)}
        async with ann.post(API_SERVICES, json=document) as response:
            assert response.status == 403
        async with registered(api_client, extension):
            for method in ("PUT", "DELETE"):
                async with ann.request(method, API, json=document if method == "PUT" else None) as response:
                    assert response.status == 403
            async with ann.get(AUTHENTICATION) as response:
                assert response.status == 403
    await api_client.request("DELETE", f"{bindings}/admin-ann")


async def test_headers_that_name_users_mean_nothing_to_the_master_itself(
    testbed: ProxyTestbed, server: ApiServer
) -> None:
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(ssl=False)) as anonymous:
        forged = {"X-Remote-User": "system:admin", "X-Remote-Group": "system:masters"}
        async with anonymous.get("/api/v1/nodes", headers=forged) as response:
            assert response.status in (401, 403)


# --- daemons that are killed ------------------------------------------------------------------------------------------


async def test_master_that_was_killed_serves_at_once_what_was_available(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient, server: ApiServer
) -> None:
    async with registered(api_client, extension):
        watch = await testbed.session.get(f"{TOYS}?watch=true")
        await watch.content.readline()
        authority = (server.root / "state/pki/front-proxy-ca.crt").read_bytes()
        server.stop(signal.SIGKILL)
        with pytest.raises(aiohttp.ClientError):
            await watch.content.read()
        await until(lambda: extension.watchers == 0)
        server.start()
        assert (server.root / "state/pki/front-proxy-ca.crt").read_bytes() == authority
        assert (await get(testbed, TOYS))[0] == 200
        assert condition(await api_client.request("GET", API)) == ("True", "Passed")
        assert extension.refused == 0


async def test_server_that_was_replaced_is_used_again(
    testbed: ProxyTestbed, extension: ExtensionServer, api_client: UntypedClient
) -> None:
    """Kept connections to the former process are dead: a question is repeated, a write is not."""
    async with registered(api_client, extension):
        assert (await get(testbed, TOYS))[0] == 200
        extension.behaviour = "close"
        async with testbed.session.post(TOYS, json={"metadata": {"name": "a"}}) as response:
            assert (response.status, await response.text()) == (503, "error trying to reach service: EOF\n")
        extension.behaviour = ""
        async with testbed.session.post(TOYS, json={"metadata": {"name": "a"}}) as response:
            assert response.status == 201
        assert (await get(testbed, TOYS))[0] == 200

"""Admission webhooks behind a service, reached through the node of their pod: a real master, a double of the node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.apiserver.custom_kind import establish
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.streaming.fake_kubelet import PODS, PROJECT, ProxyTestbed, own_address, proxy_testbed
from tests.testbed.webhook_server import LYING, WebhookServer, running_webhooks

CONFIG_MAPS = f"/api/v1/namespaces/{PROJECT}/configmaps"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POD_IP = "10.128.0.9"


@pytest.fixture
async def testbed(server: ApiServer, api_client: UntypedClient, tmp_path: Path) -> AsyncIterator[ProxyTestbed]:
    async with proxy_testbed(server, api_client, tmp_path) as new_testbed:
        yield new_testbed


@pytest.fixture
async def hooks(testbed: ProxyTestbed, tmp_path: Path) -> AsyncIterator[WebhookServer]:
    """Run a webhook server in place of the pod of the service `hook`."""
    names = (f"hook.{PROJECT}.svc", own_address())
    async with running_webhooks(tmp_path, *names, address="0.0.0.0") as webhooks:
        await testbed.pod("hook", ip=POD_IP)
        await testbed.api_client.request("DELETE", f"/api/v1/namespaces/{PROJECT}/services/hook")
        # Those of the test before would be taken for the new ones, and then go.
        endpoints = f"/api/v1/namespaces/{PROJECT}/endpoints/hook"
        await testbed.api_client.wait_until(endpoints, lambda found: found.get("code") == 404)
        await testbed.api_client.create(
            f"/api/v1/namespaces/{PROJECT}/services",
            name="hook",
            spec={"selector": {"app": "hook"}, "ports": [{"port": 443, "targetPort": webhooks.port}]},
        )
        await testbed.api_client.wait_until(
            f"/api/v1/namespaces/{PROJECT}/endpoints/hook",
            lambda found: [subset["ports"][0]["port"] for subset in found.get("subsets", ())] == [webhooks.port],
        )
        yield webhooks


def webhook(hooks: WebhookServer, path: str, *resources: str, **changes: Any) -> dict[str, Any]:
    """Return a webhook at a path of the service."""
    rule = {
        "operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": list(resources or ("configmaps",)),
    }  # fmt: skip
    service = {"namespace": PROJECT, "name": "hook", "path": f"/{path}"}
    return {
        "name": f"{path}.example.org", "clientConfig": {"service": service, "caBundle": hooks.ca_bundle},
        "rules": [rule], "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": PROJECT}}, **changes,
    }  # fmt: skip


@asynccontextmanager
async def configured(client: UntypedClient, kind: str, *webhooks: dict[str, Any]) -> AsyncIterator[None]:
    """Configure webhooks during the block: `mutating` or `validating` ones."""
    path = f"{ADMISSION}/{kind}webhookconfigurations"
    await client.create(path, name="test", webhooks=list(webhooks))
    try:
        yield
    finally:
        deleted = await client.request("DELETE", f"{path}/test")
        assert deleted["status"] == "Success", deleted


async def create(client: UntypedClient, **document: Any) -> Any:
    """Try to create the ConfigMap `one`, and remove it."""
    created = await client.request("POST", CONFIG_MAPS, {"metadata": {"name": "one"}, **document})
    await client.request("DELETE", f"{CONFIG_MAPS}/one")
    return created


async def test_mutating_webhooks_change_the_object_in_their_order(
    testbed: ProxyTestbed, hooks: WebhookServer, api_client: UntypedClient
) -> None:
    async with configured(api_client, "mutating", webhook(hooks, "append-a"), webhook(hooks, "append-b")):
        created = await create(api_client)
    assert created["data"] == {"seen": "ab"}
    (_, first), (_, second) = hooks.reviews[:2]
    assert second["request"]["object"]["data"] == {"seen": "a"}
    assert first["request"]["operation"] == "CREATE"
    assert first["request"]["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert first["request"]["userInfo"]["username"] == "system:admin"
    assert not {"Authorization", "X-Remote-User", "Cookie"} & set(hooks.headers[0])
    assert hooks.headers[0]["Host"] == f"hook.{PROJECT}.svc"
    forwards = [request for request in testbed.node.requests if request.path == f"/portForward/{PROJECT}/hook"]
    assert len(forwards) == 1, "the connection is kept"


async def test_webhook_with_if_needed_is_called_once_more_after_a_later_change(
    hooks: WebhookServer, api_client: UntypedClient
) -> None:
    first = webhook(hooks, "append-a", reinvocationPolicy="IfNeeded")
    second = webhook(hooks, "append-b", reinvocationPolicy="IfNeeded")
    async with configured(api_client, "mutating", first, second):
        created = await create(api_client)
    assert created["data"] == {"seen": "abab"}


async def test_sidecar_gets_defaults_and_what_built_in_plugins_add(
    testbed: ProxyTestbed, hooks: WebhookServer, api_client: UntypedClient
) -> None:
    async with configured(api_client, "mutating", webhook(hooks, "sidecar", "pods")):
        await testbed.pod("web")
    pod = await api_client.request("GET", f"{PODS}/web")
    names = [container["name"] for container in pod["spec"]["containers"]]
    assert names == ["main", "sidecar"]
    assert pod["spec"]["containers"][1]["terminationMessagePolicy"] == "File"
    assert pod["spec"]["containers"][1]["volumeMounts"]


async def test_pods_that_a_controller_makes_pass_webhooks(hooks: WebhookServer, api_client: UntypedClient) -> None:
    template = {
        "metadata": {"labels": {"app": "made"}},
        "spec": {"containers": [{"name": "main", "image": "image"}], "schedulerName": "nobody"},
    }
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "made"}}, "template": template}
    replica_sets = f"/apis/apps/v1/namespaces/{PROJECT}/replicasets"
    async with configured(api_client, "mutating", webhook(hooks, "sidecar", "pods")):
        await api_client.create(replica_sets, name="made", spec=spec)
        await api_client.wait_until(f"{replica_sets}/made", lambda found: found["status"].get("replicas") == 2)
        made = await api_client.request("GET", PODS, labelSelector="app=made")
    await api_client.request("DELETE", f"{replica_sets}/made")
    names = [[container["name"] for container in pod["spec"]["containers"]] for pod in made["items"]]
    assert names == [["main", "sidecar"]] * 2
    asked = [review["request"] for path, review in hooks.reviews if path == "sidecar"]
    creates = [request for request in asked if request["operation"] == "CREATE"]
    assert len(creates) == 2, "each pod is asked about once"
    assert {request["userInfo"]["username"] for request in creates} == {"system:kube-controller-manager"}


@pytest.mark.parametrize(
    ("path", "code", "reason", "words"),
    [
        ("deny", 403, "Forbidden", 'admission webhook "deny.example.org" denied the request: not here'),
        ("deny-without-words", 400, "", "denied the request without explanation"),
    ],
)
async def test_validating_webhook_rejects_a_write_with_its_own_code_and_words(
    hooks: WebhookServer, api_client: UntypedClient, path: str, code: int, reason: str, words: str
) -> None:
    async with configured(api_client, "validating", webhook(hooks, path)):
        refused = await create(api_client)
    assert (refused["code"], refused["reason"]) == (code, reason)
    assert words in refused["message"]
    assert (await create(api_client))["kind"] == "ConfigMap"


WORDS = {
    "other-uid": "expected response.uid=",
    "other-version": "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview",
    "no-response": "webhook response was absent",
    "patch-without-type": "response.patch but not response.patchType",
    "patch-not-base64": "received undecodable patch in webhook response",
    "patch-not-json": "received undecodable patch in webhook response",
    "html": "json parse error",
    "huge": "the response is larger than",
    "redirect": "status code 302",
    "fail": 'an error on the server ("out of order")',
    "close": "EOF",
    "gzip": "the response is compressed",
}


@pytest.mark.parametrize(("path", "words"), WORDS.items())
async def test_unusable_response_fails_or_is_ignored_as_the_policy_says(
    hooks: WebhookServer, api_client: UntypedClient, path: str, words: str
) -> None:
    async with configured(api_client, "mutating", webhook(hooks, path)):
        refused = await create(api_client)
    assert refused["code"] == 500
    assert refused["message"].startswith(f'Internal error occurred: failed calling webhook "{path}.example.org": ')
    assert words in refused["message"]
    async with configured(api_client, "mutating", webhook(hooks, path, failurePolicy="Ignore")):
        assert (await create(api_client))["kind"] == "ConfigMap"


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("inapplicable", 500, "cannot be applied"),
        ("bad-type", 500, "cannot be decoded"),
        ("rename", 422, "metadata.name"),
        ("move", 422, "metadata.namespace"),
    ],
)
async def test_patch_that_does_not_fit_is_an_error_whatever_the_policy_says(
    hooks: WebhookServer, api_client: UntypedClient, path: str, code: int, words: str
) -> None:
    assert path in LYING
    async with configured(api_client, "mutating", webhook(hooks, path, failurePolicy="Ignore")):
        refused = await create(api_client)
    assert refused["code"] == code, refused
    assert words in refused["message"]


async def test_patch_of_a_validating_webhook_is_an_error(hooks: WebhookServer, api_client: UntypedClient) -> None:
    async with configured(api_client, "validating", webhook(hooks, "append-a")):
        assert "validating webhook may not return response.patch" in (await create(api_client))["message"]


async def test_hanging_webhook_ends_at_its_deadline(hooks: WebhookServer, api_client: UntypedClient) -> None:
    async with configured(api_client, "validating", webhook(hooks, "hang", timeoutSeconds=1)):
        refused = await create(api_client)
    assert "/hang?timeout=1s" in refused["message"]
    assert refused["message"].endswith("context deadline exceeded")


async def test_request_ends_at_the_deadline_of_its_client(hooks: WebhookServer, api_client: UntypedClient) -> None:
    async with configured(api_client, "validating", webhook(hooks, "hang", timeoutSeconds=30)):
        refused = await api_client.request("POST", CONFIG_MAPS, {"metadata": {"name": "one"}}, timeout="100ms")
        assert (refused["code"], refused["reason"]) == (504, "Timeout")
        assert "request did not complete within requested timeout" in refused["message"]
        invalid = await api_client.request("POST", CONFIG_MAPS, {"metadata": {"name": "one"}}, timeout="soon")
        assert invalid["code"] == 400


async def test_webhook_at_a_url_is_called_directly(
    testbed: ProxyTestbed, hooks: WebhookServer, api_client: UntypedClient
) -> None:
    config = {"url": f"https://{own_address()}:{hooks.port}/deny", "caBundle": hooks.ca_bundle}
    async with configured(api_client, "validating", webhook(hooks, "deny", clientConfig=config)):
        assert "denied the request: not here" in (await create(api_client))["message"]
    assert not [request for request in testbed.node.requests if "portForward" in request.path]


async def test_webhook_of_a_pod_in_the_network_of_its_node_is_called_at_the_address_of_the_node(
    testbed: ProxyTestbed, hooks: WebhookServer, api_client: UntypedClient
) -> None:
    await testbed.pod("hook", ip=own_address(), hostNetwork=True)
    await api_client.wait_until(
        f"/api/v1/namespaces/{PROJECT}/endpoints/hook",
        lambda found: [subset["addresses"][0]["ip"] for subset in found.get("subsets", ())] == [own_address()],
    )
    async with configured(api_client, "validating", webhook(hooks, "deny")):
        assert "denied the request: not here" in (await create(api_client))["message"]
    assert not [request for request in testbed.node.requests if "portForward" in request.path]


async def test_webhook_that_cannot_be_reached_is_named_with_the_reason(
    hooks: WebhookServer, api_client: UntypedClient
) -> None:
    service = {"namespace": PROJECT, "name": "hook", "path": "/accept"}
    for config, words in (
        ({"service": {**service, "name": "nobody"}, "caBundle": hooks.ca_bundle}, 'service "nobody" not found'),
        (
            {"service": {**service, "port": 444}, "caBundle": hooks.ca_bundle},
            'no service port 444 found for service "hook"',
        ),
        ({"service": service}, "x509: certificate signed by unknown authority"),
        ({"url": f"https://127.0.0.1:{hooks.port}/accept"}, "address not allowed"),
        ({"url": "https://169.254.169.254/accept"}, "address not allowed"),
        ({"url": "https://a..b/accept"}, "failed calling webhook"),
        ({"url": "https://a|b/accept"}, "failed calling webhook"),
        ({"url": f"https://{'a' * 70}.example/accept"}, "failed calling webhook"),
    ):
        async with configured(api_client, "validating", webhook(hooks, "accept", clientConfig=config)):
            refused = await create(api_client)
        assert refused["code"] == 500, refused
        assert words in refused["message"]
    assert hooks.reviews == []


async def test_subresources_deletes_and_connections_reach_webhooks(
    testbed: ProxyTestbed, hooks: WebhookServer, api_client: UntypedClient
) -> None:
    await testbed.pod("web")
    await create(api_client)
    deny = webhook(hooks, "deny", "*/*", namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": PROJECT}})
    sent = {
        "pods/binding": ("POST", f"{PODS}/web/binding", {"target": {"kind": "Node", "name": "n1"}}),
        "pods/eviction": ("POST", f"{PODS}/web/eviction", {"metadata": {"name": "web"}}),
        "pods/status": ("PATCH", f"{PODS}/web/status", {"status": {"message": "m"}}),
        "serviceaccounts/token": ("POST", f"/api/v1/namespaces/{PROJECT}/serviceaccounts/default/token", {"spec": {}}),
        "pods/exec": ("POST", f"{PODS}/web/exec?command=true&stdout=true", None),
        "pods/attach": ("POST", f"{PODS}/web/attach?stdout=true", None),
        "pods/portforward": ("POST", f"{PODS}/web/portforward?ports=80", None),
        "pods/proxy": ("GET", f"{PODS}/web:80/proxy/x", None),
        "pods/": ("DELETE", f"{PODS}/web", None),
    }  # fmt: skip
    for kind in ("validating", "mutating"):
        hooks.reviews.clear()
        async with configured(api_client, kind, deny):
            for name, (method, path, document) in sent.items():
                refused = await api_client.request(method, path, document)
                assert "denied the request: not here" in refused.get("message", ""), (name, refused)
        seen = [
            f"{asked['request']['resource']['resource']}/{asked['request'].get('subResource', '')}"
            for _, asked in hooks.reviews
        ]
        assert seen == list(sent)
    connect = next(asked["request"] for _, asked in hooks.reviews if asked["request"].get("subResource") == "exec")
    assert (connect["operation"], connect["object"]["command"]) == ("CONNECT", ["true"])
    deleted = hooks.reviews[-1][1]["request"]
    assert (deleted["operation"], deleted["object"], deleted["oldObject"]["kind"]) == ("DELETE", None, "Pod")


async def test_no_webhook_keeps_its_configuration_from_being_repaired_or_nodes_from_beating(
    testbed: ProxyTestbed, api_client: UntypedClient, hooks: WebhookServer
) -> None:
    unreachable = {"service": {"namespace": PROJECT, "name": "nobody"}}
    broken = webhook(hooks, "all", "*/*", clientConfig=unreachable, namespaceSelector={})
    async with configured(api_client, "validating", broken):
        assert (await create(api_client))["code"] == 500
        path = f"{ADMISSION}/validatingwebhookconfigurations/test"
        changed = await api_client.request("PATCH", path, {"metadata": {"labels": {"a": "b"}}})
        assert changed["kind"] == "ValidatingWebhookConfiguration"


async def test_custom_resources_pass_webhooks(hooks: WebhookServer, api_client: UntypedClient) -> None:
    group = await establish(api_client, "hooks.example.org")
    lamps = f"{group}/namespaces/{PROJECT}/lamps"
    lamp = {"apiVersion": "hooks.example.org/v1", "kind": "Lamp", "metadata": {"name": "one"}, "spec": {}}
    async with configured(api_client, "mutating", webhook(hooks, "annotate", "lamps")):
        made = await api_client.request("POST", lamps, lamp)
    assert made["metadata"]["annotations"] == {"seen": "yes"}
    assert made["spec"] == {"color": "white"}
    (_, review) = hooks.reviews[0]
    assert review["request"]["object"]["spec"] == {"color": "white"}
    assert review["request"]["kind"] == {"group": "hooks.example.org", "version": "v1", "kind": "Lamp"}
    async with configured(api_client, "validating", webhook(hooks, "deny", "lamps")):
        for method in ("PUT", "DELETE"):
            denied = await api_client.request(method, f"{lamps}/one", made if method == "PUT" else None)
            assert "denied the request" in denied["message"], denied
    gone = await api_client.request("DELETE", f"{lamps}/one")
    assert gone["status"] == "Success"


async def test_match_conditions_choose_requests(hooks: WebhookServer, api_client: UntypedClient) -> None:
    conditions = [{"name": "not-skipped", "expression": "object.metadata.name != 'skip-me'"}]
    for kind in ("validating", "mutating"):
        async with configured(api_client, kind, webhook(hooks, "deny", matchConditions=conditions)):
            skipped = await api_client.request("POST", CONFIG_MAPS, {"metadata": {"name": "skip-me"}})
            assert skipped["kind"] == "ConfigMap"
            assert (await create(api_client))["code"] == 403
        await api_client.request("DELETE", f"{CONFIG_MAPS}/skip-me")
    broken = [{"name": "fails", "expression": "object.data.missing == 'x'"}]
    async with configured(api_client, "validating", webhook(hooks, "accept", matchConditions=broken)):
        assert "failed to evaluate match conditions" in (await create(api_client))["message"]
    async with configured(
        api_client, "validating", webhook(hooks, "deny", matchConditions=broken, failurePolicy="Ignore")
    ):
        assert (await create(api_client))["kind"] == "ConfigMap"


async def test_match_condition_that_does_not_compile_is_refused(
    hooks: WebhookServer, api_client: UntypedClient
) -> None:
    invalid = webhook(hooks, "accept", matchConditions=[{"name": "bad", "expression": "object.metadata.name =="}])
    path = f"{ADMISSION}/validatingwebhookconfigurations"
    refused = await api_client.request("POST", path, {"metadata": {"name": "bad"}, "webhooks": [invalid]})
    assert refused["code"] == 422
    assert "webhooks[0].matchConditions[0].expression" in refused["message"]
    assert "compilation failed" in refused["message"]


async def test_dry_run_tells_the_webhook(hooks: WebhookServer, api_client: UntypedClient) -> None:
    async with configured(api_client, "validating", webhook(hooks, "accept")):
        await api_client.request("POST", CONFIG_MAPS, {"metadata": {"name": "dry"}}, dryRun="All")
    ((_, asked),) = hooks.reviews
    assert asked["request"]["dryRun"] is True
    assert asked["request"]["options"] == {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"]}

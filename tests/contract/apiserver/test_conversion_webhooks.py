"""Kinds whose versions are converted by a webhook: a real master and a real webhook server."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.streaming.fake_kubelet import own_address
from tests.testbed.webhook_server import MISCONVERTING, WebhookServer, running_webhooks

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "/apis/example.com"
MERGE_PATCH = "application/merge-patch+json"


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[WebhookServer]:
    async with running_webhooks(tmp_path, own_address(), address="0.0.0.0") as webhooks:
        yield webhooks


def version(name: str, *, storage: bool, **properties: Any) -> dict[str, Any]:
    spec = {"type": "object", "properties": {**properties, "size": {"type": "integer", "default": 3}}}
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
        "subresources": {"scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
    }


def definition(hooks: WebhookServer, plural: str, path: str) -> dict[str, Any]:
    """Return a definition that stores v1 and serves v2, too. `path` is that of its webhook."""
    config = {"url": f"https://{own_address()}:{hooks.port}/{path}", "caBundle": hooks.ca_bundle}
    text = {"type": "string"}
    return {
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": plural.capitalize()},
            "versions": [
                version("v1", storage=True, color=text),
                version("v2", storage=False, paint={"type": "object", "properties": {"color": text}}),
            ],
            "conversion": {
                "strategy": "Webhook",
                "webhook": {"clientConfig": config, "conversionReviewVersions": ["v9", "v1"]},
            },
        },
    }


async def define(client: UntypedClient, body: dict[str, Any]) -> tuple[str, str]:
    """Define a kind. Return the paths of its objects in v1 and v2."""
    made = await client.request("POST", DEFINITIONS, body)
    assert made["kind"] == "CustomResourceDefinition", made
    plural = body["spec"]["names"]["plural"]
    for name in ("v1", "v2"):
        await client.wait_until(f"{GROUP}/{name}/{plural}", lambda found: "items" in found)
    return f"{GROUP}/v1/namespaces/default/{plural}", f"{GROUP}/v2/namespaces/default/{plural}"


async def change_webhook(client: UntypedClient, plural: str, hooks: WebhookServer, path: str) -> None:
    """Let another path of the server convert the objects of a kind."""
    changes = {"spec": {"conversion": definition(hooks, plural, path)["spec"]["conversion"]}}
    assert "code" not in await client.request("PATCH", f"{DEFINITIONS}/{plural}.example.com", changes)


async def test_objects_are_written_and_read_in_each_version(hooks: WebhookServer, api_client: UntypedClient) -> None:
    v1, v2 = await define(api_client, definition(hooks, "lights", "convert"))
    old = await api_client.create(v1, name="old", spec={"color": "red"})
    new = await api_client.create(v2, name="new", spec={"paint": {"color": "blue"}})
    assert new["apiVersion"] == "example.com/v2"
    assert new["spec"] == {"paint": {"color": "blue"}, "size": 3}
    assert new["metadata"]["resourceVersion"]
    assert (await api_client.request("GET", f"{v1}/new"))["spec"] == {"color": "blue", "size": 3}
    shown = await api_client.request("GET", f"{v2}/old")
    assert shown["spec"] == {"paint": {"color": "red"}, "size": 3}
    assert shown["metadata"] == old["metadata"]
    updated = await api_client.request("PUT", f"{v2}/old", {**shown, "spec": {"paint": {"color": "green"}, "size": 5}})
    assert updated["spec"] == {"paint": {"color": "green"}, "size": 5}
    assert updated["metadata"]["generation"] == 2
    patched = await api_client._send("PATCH", f"{v2}/old", {"spec": {"paint": {"color": "grey"}}}, MERGE_PATCH, {})
    assert patched["spec"] == {"paint": {"color": "grey"}, "size": 5}
    applied = await api_client.apply(
        f"{v2}/applied",
        {"apiVersion": "example.com/v2", "kind": "Lights", "metadata": {"name": "applied"}, "spec": {"size": 1}},
    )
    assert applied["spec"] == {"size": 1}
    listed = await api_client.request("GET", v1)
    assert {each["metadata"]["name"]: each["spec"] for each in listed["items"]} == {
        "old": {"color": "grey", "size": 5}, "new": {"color": "blue", "size": 3}, "applied": {"size": 1},
    }  # fmt: skip
    scale = await api_client.request("GET", f"{v2}/old/scale")
    assert scale["spec"]["replicas"] == 5
    deleted = await api_client.request("DELETE", f"{v2}/old")
    assert deleted["status"] == "Success", deleted
    deleted = await api_client.request("DELETE", v2)
    assert {each["apiVersion"] for each in deleted["items"]} == {"example.com/v2"}
    reviews = [review["request"] for _, review in hooks.reviews]
    assert {review["desiredAPIVersion"] for review in reviews} == {"example.com/v1", "example.com/v2"}
    assert {review["apiVersion"] for _, review in hooks.reviews} == {"apiextensions.k8s.io/v1"}


async def test_list_is_converted_in_one_review_and_only_once(hooks: WebhookServer, api_client: UntypedClient) -> None:
    v1, v2 = await define(api_client, definition(hooks, "beams", "convert"))
    for number in range(20):
        await api_client.create(v1, name=f"n{number:02}", spec={"color": f"c{number}"})
    hooks.reviews.clear()
    for _ in range(2):
        listed = await api_client.request("GET", v2)
        assert [each["spec"]["paint"]["color"] for each in listed["items"]] == [f"c{number}" for number in range(20)]
    assert [len(review["request"]["objects"]) for _, review in hooks.reviews] == [20]
    assert (await api_client.request("GET", v1))["items"][3]["spec"]["color"] == "c3"
    assert len(hooks.reviews) == 1, "those of the stored version are not sent"


async def test_watch_converts_the_first_objects_and_each_change(
    hooks: WebhookServer, api_client: UntypedClient
) -> None:
    v1, v2 = await define(api_client, definition(hooks, "rays", "convert"))
    await api_client.create(v1, name="first", spec={"color": "red"})
    watches = [asyncio.create_task(events_of(api_client, v2, seconds)) for seconds in (2, 2)]
    await asyncio.sleep(0.2)
    for number in range(10):
        await api_client.create(v1, name=f"n{number}", spec={"color": f"c{number}"})
    await api_client.request("DELETE", f"{v1}/first")
    expected = [
        ("ADDED", "first", "red"),
        *(("ADDED", f"n{number}", f"c{number}") for number in range(10)),
        ("DELETED", "first", "red"),
    ]
    assert await asyncio.gather(*watches) == [expected, expected]


async def events_of(client: UntypedClient, path: str, seconds: int) -> list[tuple[str, str, str]]:
    """Watch from the stored objects on. Return type, name and color of each event of v2."""
    lines = await client._client.request("GET", path, query={"watch": "true", "timeoutSeconds": str(seconds)})
    events = [json.loads(line) for line in lines.splitlines()]
    return [
        (
            event["type"],
            event["object"]["metadata"].get("name", ""),
            event["object"].get("spec", {}).get("paint", {}).get("color", ""),
        )
        for event in events
    ]


async def test_webhook_decides_about_labels_and_no_other_metadata(
    hooks: WebhookServer, api_client: UntypedClient
) -> None:
    v1, v2 = await define(api_client, definition(hooks, "tags", "convert-labels"))
    made = await api_client.create(v1, name="one", spec={"color": "red"})
    shown = await api_client.request("GET", f"{v2}/one")
    assert shown["metadata"] == {**made["metadata"], "labels": {"made": "yes"}}
    assert "labels" not in (await api_client.request("GET", f"{v1}/one"))["metadata"]


@pytest.mark.parametrize("path", [*MISCONVERTING, "fail", "redirect", "gzip", "close"])
async def test_unusable_conversion_fails_only_requests_for_other_versions(
    path: str, hooks: WebhookServer, api_client: UntypedClient
) -> None:
    plural = path.replace("-", "")
    v1, v2 = await define(api_client, definition(hooks, plural, path))
    await api_client.create(v1, name="one", spec={"color": "red"})
    for refused in (
        await api_client.request("GET", f"{v2}/one"),
        await api_client.request("GET", v2),
        await api_client.request("DELETE", f"{v2}/one"),
        await api_client.request("POST", v2, {"metadata": {"name": "two"}, "spec": {"paint": {"color": "red"}}}),
    ):
        assert refused["code"] == 500, refused
        assert refused["message"].startswith("conversion webhook for example.com/v"), refused
    events = await api_client.watch(v2, "0")
    assert [event["type"] for event in events] == ["ERROR"]
    assert [each["metadata"]["name"] for each in (await api_client.request("GET", v1))["items"]] == ["one"]
    await change_webhook(api_client, plural, hooks, "convert")
    assert (await api_client.request("GET", f"{v2}/one"))["spec"]["paint"] == {"color": "red"}
    await change_webhook(api_client, plural, hooks, path)
    await api_client.request("DELETE", f"{DEFINITIONS}/{plural}.example.com")
    await api_client.wait_until(f"{DEFINITIONS}/{plural}.example.com", lambda found: found.get("code") == 404)


async def test_live_watch_ends_with_an_error_when_the_webhook_fails(
    hooks: WebhookServer, api_client: UntypedClient
) -> None:
    v1, v2 = await define(api_client, definition(hooks, "fades", "convert"))
    await api_client.create(v1, name="one", spec={"color": "red"})
    watch = asyncio.create_task(events_of(api_client, v2, 60))
    await asyncio.sleep(0.5)
    hooks.is_broken = True
    await api_client.create(v1, name="two", spec={"color": "red"})
    assert await watch == [("ADDED", "one", "red"), ("ERROR", "", "")]


def admission_webhook(hooks: WebhookServer, path: str, api_version: str, resource: str) -> dict[str, Any]:
    rule = {"operations": ["*"], "apiGroups": ["example.com"], "apiVersions": [api_version], "resources": [resource]}
    config = {"url": f"https://{own_address()}:{hooks.port}/{path}", "caBundle": hooks.ca_bundle}
    return {
        "name": f"{path}.example.org", "clientConfig": config, "rules": [rule], "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }  # fmt: skip


async def test_admission_webhook_for_one_version_gets_objects_of_another_in_its_own(
    hooks: WebhookServer, api_client: UntypedClient
) -> None:
    v1, v2 = await define(api_client, definition(hooks, "locks", "convert"))
    configurations = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations"
    for kind, path in (("mutating", "annotate"), ("validating", "deny")):
        webhook = admission_webhook(hooks, path, "v1", "locks")
        if kind == "validating":
            webhook["rules"][0]["operations"] = ["UPDATE"]
        await api_client.create(configurations.format(kind), name="locks", webhooks=[webhook])
    made = await api_client.create(v2, name="one", spec={"paint": {"color": "red"}})
    assert made["spec"]["paint"] == {"color": "red"}
    assert made["metadata"]["annotations"] == {"seen": "yes"}
    for path in (v1, v2):
        refused = await api_client.request("PATCH", f"{path}/one", {"spec": {"size": 9}})
        assert refused["code"] == 403, refused
    asked = [review["request"] for path, review in hooks.reviews if path == "annotate"]
    assert asked[0]["object"]["apiVersion"] == "example.com/v1"
    assert asked[0]["object"]["spec"]["color"] == "red"
    assert asked[0]["requestKind"]["version"] == "v2"
    for kind in ("mutating", "validating"):
        await api_client.request("DELETE", configurations.format(kind) + "/locks")
    changed = await api_client.request("PATCH", f"{v2}/one", {"spec": {"size": 9}})
    assert changed["spec"] == {"paint": {"color": "red"}, "size": 9}


async def test_policy_for_one_version_sees_objects_of_another_and_has_custom_parameters(
    hooks: WebhookServer, api_client: UntypedClient
) -> None:
    v1, v2 = await define(api_client, definition(hooks, "doors", "convert"))
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    await api_client.create(v1, name="limits", spec={"color": "red"})
    rule = {"operations": ["CREATE"], "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["doors"]}
    expression = "object.spec.color != params.spec.paint.color"
    await api_client.create(
        policies,
        name="doors.example.com",
        spec={
            "paramKind": {"apiVersion": "example.com/v2", "kind": "Doors"},
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": expression}],
        },
    )
    param = {"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"}
    spec = {"policyName": "doors.example.com", "paramRef": param, "validationActions": ["Deny"]}
    await api_client.create(bindings, name="doors.example.com", spec=spec)
    for number, color in enumerate(("blue", "red")):
        body = {"metadata": {"name": f"n{number}"}, "spec": {"paint": {"color": color}}}
        answer = await api_client.request("POST", v2, body)
        assert ("code" in answer) is (color == "red"), answer
    assert answer["message"].endswith(f"denied request: failed expression: {expression}")
    for path in (bindings, policies):
        await api_client.request("DELETE", f"{path}/doors.example.com")


async def test_slow_webhook_delays_nobody_else(hooks: WebhookServer, api_client: UntypedClient) -> None:
    v1, v2 = await define(api_client, definition(hooks, "snails", "hang"))
    await api_client.create(v1, name="one", spec={"color": "red"})
    waiting = [asyncio.create_task(api_client.request("GET", f"{v2}/one")) for _ in range(5)]
    for _ in range(20):
        assert (await api_client.request("GET", f"{v1}/one"))["spec"]["color"] == "red"
        assert "items" in await api_client.request("GET", "/api/v1/namespaces/default/configmaps")
    assert not any(task.done() for task in waiting)
    assert len(hooks.reviews) == 1, "a call that is being made is not made again"
    hooks.released.set()
    assert {answer["code"] for answer in await asyncio.gather(*waiting)} == {500}


async def test_namespace_with_objects_that_cannot_be_converted_is_deleted(
    hooks: WebhookServer, api_client: UntypedClient
) -> None:
    v1, v2 = await define(api_client, definition(hooks, "stuck", "convert"))
    await api_client.create("/api/v1/namespaces", name="full")
    in_v1, in_v2 = (path.replace("/default/", "/full/") for path in (v1, v2))
    await api_client.create(in_v2, name="one", spec={"paint": {"color": "red"}})
    await api_client.create(in_v1, name="two", spec={"color": "red"})
    hooks.is_broken = True
    await api_client.request("DELETE", "/api/v1/namespaces/full")
    await api_client.wait_until("/api/v1/namespaces/full", lambda found: found.get("code") == 404)


async def test_conversion_survives_a_restart_of_the_master(
    hooks: WebhookServer, server: ApiServer, api_client: UntypedClient
) -> None:
    _, v2 = await define(api_client, definition(hooks, "phoenixes", "convert"))
    await api_client.create(v2, name="one", spec={"paint": {"color": "red"}})
    server.stop(signal.SIGKILL)
    server.start()
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        shown = await UntypedClient(client).request("GET", f"{v2}/one")
    assert shown["spec"]["paint"] == {"color": "red"}

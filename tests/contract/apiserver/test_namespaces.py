"""The life of namespaces at the door of a real master."""

from __future__ import annotations

import pytest

from tests.testbed.apiserver.untyped_client import UntypedClient


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public", "kube-node-lease"])
async def test_system_namespaces_always_exist(door: UntypedClient, name: str) -> None:
    refused = await door.ask("DELETE", f"/api/v1/namespaces/{name}")
    assert refused["message"] == f'namespaces "{name}" is forbidden: this namespace may not be deleted'
    assert (await door.ask("GET", f"/api/v1/namespaces/{name}"))["status"]["phase"] == "Active"
    assert (await door.ask("DELETE", "/api/v1/namespaces"))["code"] == 405


async def test_namespace_deletion_waits_for_objects_with_finalizers(door: UntypedClient) -> None:
    at = "/api/v1/namespaces/red"
    await door.make("/api/v1/namespaces", name="red")
    await door.make(f"{at}/configmaps", name="held", metadata={"finalizers": ["mine.example.org/x"]})
    await door.make(f"{at}/configmaps", name="free")
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await door.make(
        "/apis/apps/v1/namespaces/red/deployments",
        name="web",
        spec={"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template},
    )
    await door.until(f"{at}/pods", lambda found: len(found["items"]) == 2)
    await door.ask("DELETE", at)

    def remaining(item: object) -> bool:
        rows = item["status"].get("conditions", []) if isinstance(item, dict) else []
        told = {row["type"]: row["message"] for row in rows if row["status"] == "True"}
        return told == {
            "NamespaceContentRemaining": "Some resources are remaining: configmaps. has 1 resource instances",
            "NamespaceFinalizersRemaining": "Some content in the namespace has finalizers remaining: "
            "mine.example.org/x in 1 resource instances",
        }

    item = await door.until(at, remaining)
    assert (item["status"]["phase"], item["spec"]["finalizers"]) == ("Terminating", ["kubernetes"])
    assert [one["metadata"]["name"] for one in (await door.ask("GET", f"{at}/configmaps"))["items"]] == ["held"]
    assert (await door.ask("GET", f"{at}/pods"))["items"] == []
    refused = await door.ask("POST", f"{at}/configmaps", {"metadata": {"name": "late"}})
    assert "because it is being terminated" in refused["message"]
    await door.ask("PATCH", f"{at}/configmaps/held", {"metadata": {"finalizers": None}})
    await door.until(at, lambda answer: answer.get("code") == 404)


async def test_finalize_subresource_completes_namespace_deletion(door: UntypedClient) -> None:
    at = "/api/v1/namespaces/blue"
    made = await door.make("/api/v1/namespaces", name="blue", spec={"finalizers": ["example.org/mine"]})
    assert made["spec"]["finalizers"] == ["example.org/mine", "kubernetes"]
    await door.ask("DELETE", at)
    item = await door.until(at, lambda item: item["spec"].get("finalizers") == ["example.org/mine"])
    assert (await door.ask("GET", f"{at}/finalize"))["code"] == 405
    gone = await door.ask("PUT", f"{at}/finalize", {**item, "spec": {}})
    assert gone["kind"] == "Namespace"
    assert (await door.ask("GET", at))["code"] == 404


async def test_binding_is_accepted_at_its_collection(door: UntypedClient) -> None:
    at = "/api/v1/namespaces/default"
    await door.make(f"{at}/pods", name="p", spec={"containers": [{"name": "c", "image": "i"}]})
    target = {"apiVersion": "v1", "kind": "Node", "name": "somewhere"}
    bound = await door.ask("POST", f"{at}/bindings", {"metadata": {"name": "p"}, "target": target})
    assert (bound["status"], bound["code"]) == ("Success", 201)
    assert (await door.ask("GET", f"{at}/pods/p"))["spec"]["nodeName"] == "somewhere"
    again = await door.ask("POST", f"{at}/bindings", {"metadata": {"name": "p"}, "target": target})
    assert again["code"] == 409
    assert (await door.ask("POST", f"{at}/bindings", {"metadata": {"name": "q"}, "target": target}))["code"] == 404
    assert (await door.ask("GET", f"{at}/bindings"))["code"] == 405
    rows = {row["name"]: row for row in (await door.ask("GET", "/api/v1"))["resources"]}
    assert (rows["bindings"]["kind"], rows["bindings"]["verbs"]) == ("Binding", ["create"])
    assert rows["namespaces/finalize"]["verbs"] == ["update"]

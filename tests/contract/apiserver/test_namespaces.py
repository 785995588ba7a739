"""Creation and deletion of namespaces, against a real master."""

from __future__ import annotations

import pytest

from tests.testbed.apiserver.untyped_client import UntypedClient


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public", "kube-node-lease"])
async def test_system_namespaces_always_exist(api_client: UntypedClient, name: str) -> None:
    refused = await api_client.request("DELETE", f"/api/v1/namespaces/{name}")
    assert refused["message"] == f'namespaces "{name}" is forbidden: this namespace may not be deleted'
    assert (await api_client.request("GET", f"/api/v1/namespaces/{name}"))["status"]["phase"] == "Active"
    assert (await api_client.request("DELETE", "/api/v1/namespaces"))["code"] == 405


async def test_namespace_deletion_waits_for_objects_with_finalizers(api_client: UntypedClient) -> None:
    at = "/api/v1/namespaces/red"
    await api_client.create("/api/v1/namespaces", name="red")
    await api_client.create(f"{at}/configmaps", name="held", metadata={"finalizers": ["mine.example.org/x"]})
    await api_client.create(f"{at}/configmaps", name="free")
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await api_client.create(
        "/apis/apps/v1/namespaces/red/deployments",
        name="web",
        spec={"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template},
    )
    await api_client.wait_until(f"{at}/pods", lambda actual: len(actual["items"]) == 2)
    await api_client.request("DELETE", at)

    def remaining(namespace: object) -> bool:
        rows = namespace["status"].get("conditions", []) if isinstance(namespace, dict) else []
        reported = {condition["type"]: condition["message"] for condition in rows if condition["status"] == "True"}
        return reported == {
            "NamespaceContentRemaining": "Some resources are remaining: configmaps. has 1 resource instances",
            "NamespaceFinalizersRemaining": "Some content in the namespace has finalizers remaining: "
            "mine.example.org/x in 1 resource instances",
        }

    namespace = await api_client.wait_until(at, remaining)
    assert (namespace["status"]["phase"], namespace["spec"]["finalizers"]) == ("Terminating", ["kubernetes"])
    assert [
        config_map["metadata"]["name"] for config_map in (await api_client.request("GET", f"{at}/configmaps"))["items"]
    ] == ["held"]
    assert (await api_client.request("GET", f"{at}/pods"))["items"] == []
    refused = await api_client.request("POST", f"{at}/configmaps", {"metadata": {"name": "late"}})
    assert "because it is being terminated" in refused["message"]
    await api_client.request("PATCH", f"{at}/configmaps/held", {"metadata": {"finalizers": None}})
    await api_client.wait_until(at, lambda answer: answer.get("code") == 404)


async def test_finalize_subresource_completes_namespace_deletion(api_client: UntypedClient) -> None:
    at = "/api/v1/namespaces/blue"
    created = await api_client.create("/api/v1/namespaces", name="blue", spec={"finalizers": ["example.org/mine"]})
    assert created["spec"]["finalizers"] == ["example.org/mine", "kubernetes"]
    await api_client.request("DELETE", at)
    namespace = await api_client.wait_until(
        at, lambda namespace: namespace["spec"].get("finalizers") == ["example.org/mine"]
    )
    assert (await api_client.request("GET", f"{at}/finalize"))["code"] == 405
    removed = await api_client.request("PUT", f"{at}/finalize", {**namespace, "spec": {}})
    assert removed["kind"] == "Namespace"
    assert (await api_client.request("GET", at))["code"] == 404


async def test_binding_is_accepted_at_its_collection(api_client: UntypedClient) -> None:
    at = "/api/v1/namespaces/default"
    await api_client.create(f"{at}/pods", name="p", spec={"containers": [{"name": "c", "image": "i"}]})
    target = {"apiVersion": "v1", "kind": "Node", "name": "somewhere"}
    bound = await api_client.request("POST", f"{at}/bindings", {"metadata": {"name": "p"}, "target": target})
    assert (bound["status"], bound["code"]) == ("Success", 201)
    assert (await api_client.request("GET", f"{at}/pods/p"))["spec"]["nodeName"] == "somewhere"
    again = await api_client.request("POST", f"{at}/bindings", {"metadata": {"name": "p"}, "target": target})
    assert again["code"] == 409
    assert (await api_client.request("POST", f"{at}/bindings", {"metadata": {"name": "q"}, "target": target}))[
        "code"
    ] == 404
    assert (await api_client.request("GET", f"{at}/bindings"))["code"] == 405
    rows = {resource["name"]: resource for resource in (await api_client.request("GET", "/api/v1"))["resources"]}
    assert (rows["bindings"]["kind"], rows["bindings"]["verbs"]) == ("Binding", ["create"])
    assert rows["namespaces/finalize"]["verbs"] == ["update"]

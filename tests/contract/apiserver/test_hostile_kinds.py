"""Custom kinds whose names, schemas or objects are a trap for what handles all kinds, against a real master."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.client.client import ApiError, Client
from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.custom_definitions import DEFINITIONS, define, definition, version
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient

OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def with_items(**properties: Any) -> dict[str, Any]:
    """Return a schema of objects with a list in `spec`, whose items have these properties."""
    items = {"type": "object", "properties": {"a": {"type": "string"}, **properties}}
    spec = {"type": "object", "properties": {"items": {"type": "array", "items": items}}}
    return {"type": "object", "properties": {"spec": spec}}


LARGE_DEFAULT = {"b": {"type": "string", "default": "x" * 1000}}


async def redefine(client: UntypedClient, plural: str, schema: Any) -> None:
    """Give the only version of a kind another schema."""
    changed = await client.request(
        "PATCH", f"{DEFINITIONS}/{plural}.example.com", {"spec": {"versions": [version(schema=schema)]}}
    )
    assert changed["kind"] == "CustomResourceDefinition", changed


async def is_gone(client: UntypedClient, path: str) -> None:
    """Wait until there is no object at a path."""
    await client.wait_until(path, lambda found: found.get("code") == 404)


# --- kinds with the names of built-in ones ----------------------------------------------------------------------------


async def test_a_kind_named_namespace_is_none(server: ApiServer, api_client: UntypedClient) -> None:
    """Rights in the project `mine` say nothing about an object of that name in another project."""
    await define(api_client, "namespaces", version(schema=OPEN), kind="Namespace")
    for name in ("mine", "victim"):
        await api_client.create("/api/v1/namespaces", name=name)
    rules = [{"apiGroups": ["example.com"], "resources": ["namespaces"], "verbs": ["*"]}]
    await api_client.create(f"{RBAC}/clusterroles", name="custom-namespaces", rules=rules)
    await api_client.create(
        f"{RBAC}/namespaces/mine/rolebindings",
        name="tenant",
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "custom-namespaces"},
        subjects=[{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}],
    )
    objects = "/apis/example.com/v1/namespaces/victim/namespaces"
    made = await api_client.create(objects, name="mine", spec={"token": "secret"})
    assert "labels" not in made["metadata"], "those of Pod Security"
    as_tenant = [("Impersonate-User", "tenant")]
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        for method in ("GET", "DELETE"):
            with pytest.raises(ApiError) as refused:
                await client.request(method, f"{objects}/mine", headers=as_tenant)
            assert refused.value.status.code == 403
        own = objects.replace("victim", "mine")
        await client.request("POST", own, json.dumps({"metadata": {"name": "victim"}}).encode(), headers=as_tenant)
        await client.request("GET", f"{own}/victim", headers=as_tenant)
    await api_client.create(objects, name="ghost")
    accounts = await api_client.request("GET", "/api/v1/namespaces/ghost/serviceaccounts")
    assert not accounts["items"], "those of a new namespace"
    for name in ("mine", "ghost"):
        deleted = await api_client.request("DELETE", f"{objects}/{name}")
        assert deleted.get("status") == "Success", deleted
        assert (await api_client.request("GET", f"{objects}/{name}"))["code"] == 404


async def test_a_kind_does_not_take_the_path_of_what_is_answered_and_not_stored(api_client: UntypedClient) -> None:
    for group, plural, kind in (
        ("project.openshift.io", "projectrequests", "ProjectRequest"),
        ("authorization.openshift.io", "subjectaccessreviews", "SubjectAccessReview"),
    ):
        body = definition(plural, version(schema=OPEN), scope="Cluster", kind=kind)
        body["metadata"]["name"] = f"{plural}.{group}"
        body["spec"]["group"] = group
        await api_client.create(DEFINITIONS, **body)
        found = await api_client.wait_until(
            f"{DEFINITIONS}/{plural}.{group}", lambda found: bool(found.get("status", {}).get("conditions"))
        )
        assert [each["status"] for each in found["status"]["conditions"]] == ["False", "False"]
    made = await api_client.create("/apis/project.openshift.io/v1/projectrequests", name="requested")
    assert made["kind"] == "Project"


# --- objects that a later schema, or another version, does not accept -------------------------------------------------


async def test_an_object_with_too_large_defaults_in_another_version_is_still_read(api_client: UntypedClient) -> None:
    versions = (version(schema=with_items()), version("v2", storage=False, schema=with_items(**LARGE_DEFAULT)))
    crates = await define(api_client, "crates", *versions)
    in_v2 = crates.replace("/v1/", "/v2/")
    made = await api_client.create(crates, name="large", spec={"items": [{"a": "1"}] * 5000})
    await api_client.create(in_v2, name="small", spec={"items": [{}]})
    listed = await api_client.request("GET", in_v2)
    assert [(each["metadata"]["name"], each["spec"]["items"][0]) for each in listed["items"]] == [
        ("large", {"a": "1"}), ("small", {"b": "x" * 1000}),
    ]  # fmt: skip
    since = str(int(made["metadata"]["resourceVersion"]) - 1)
    assert [event["type"] for event in await api_client.watch(in_v2, since)] == ["ADDED", "ADDED"]
    refused = await api_client.request("PATCH", f"{in_v2}/large", {"metadata": {"labels": {"a": "b"}}})
    assert refused["code"] == 413
    assert len((await api_client.request("DELETE", in_v2))["items"]) == 2


async def test_finalizers_are_removed_from_what_a_later_schema_does_not_accept(api_client: UntypedClient) -> None:
    boxes = await define(api_client, "boxes", version(schema=with_items()), singular="box", kind="Box")
    await api_client.create("/api/v1/namespaces", name="boxed")
    boxes = boxes.replace("default", "boxed")
    for name in ("too-large", "too-costly"):
        metadata = {"name": name, "finalizers": ["example.com/wait"]}
        await api_client.create(boxes, metadata=metadata, spec={"items": [{"a": "1"}] * 5000})
    await api_client.request("DELETE", "/api/v1/namespaces/boxed")
    await api_client.wait_until(f"{boxes}/too-costly", lambda found: "deletionTimestamp" in found["metadata"])
    await redefine(api_client, "boxes", with_items(**LARGE_DEFAULT))
    released = await api_client.request("PATCH", f"{boxes}/too-large", {"metadata": {"finalizers": []}})
    assert released["kind"] == "Box", released
    costly = with_items()
    items = costly["properties"]["spec"]["properties"]["items"]["items"]
    items["anyOf"] = [{"properties": {"a": {"pattern": f"^{number}x"}}} for number in range(30)]
    await redefine(api_client, "boxes", costly)
    changed = await api_client.request("PATCH", f"{boxes}/too-costly", {"spec": {"items": [{"a": "2"}] * 5000}})
    assert changed["code"] == 422
    found = await api_client.request("GET", f"{boxes}/too-costly")
    released = await api_client.request(
        "PUT", f"{boxes}/too-costly", {**found, "metadata": {**found["metadata"], "finalizers": []}}
    )
    assert released["kind"] == "Box", released
    await is_gone(api_client, "/api/v1/namespaces/boxed")


async def test_an_object_with_more_root_fields_than_a_request_may_have_stops_no_controller(
    api_client: UntypedClient,
) -> None:
    fields = [f"field{number}" for number in range(1200)]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in fields}}
    wides = await define(api_client, "wides", version(schema=schema))
    await api_client.create(wides, name="one", **dict.fromkeys(fields, "x"))
    await redefine(api_client, "wides", OPEN)
    (listed,) = (await api_client.request("GET", wides))["items"]
    assert set(fields) <= set(listed)
    refused = await api_client.request("POST", wides, {"metadata": {"name": "two"}, **dict.fromkeys(fields, "x")})
    assert refused["code"] == 413
    configs = "/api/v1/namespaces/default/configmaps"
    owner = await api_client.create(configs, name="owner")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    await api_client.create(configs, metadata={"name": "dependent", "ownerReferences": [reference]})
    await api_client.request("DELETE", f"{configs}/owner")
    await is_gone(api_client, f"{configs}/dependent")
    await api_client.create("/api/v1/namespaces", name="short-lived")
    await api_client.request("DELETE", "/api/v1/namespaces/short-lived")
    await is_gone(api_client, "/api/v1/namespaces/short-lived")


async def test_root_fields_with_quotation_marks_are_refused(api_client: UntypedClient) -> None:
    schema = {"type": "object", "properties": {'a"b': {"type": "string"}}}
    refused = await api_client.request("POST", DEFINITIONS, definition("quoteds", version(schema=schema)))
    assert (refused["code"], "quotation marks" in refused["message"]) == (422, True)
    opens = await define(api_client, "opens", version(schema=OPEN))
    refused = await api_client.request("POST", opens, {"metadata": {"name": "one"}, 'a"b': 1})
    assert refused["code"] == 400, refused
    await api_client.create(opens, name="one", spec={'a"b': 1})

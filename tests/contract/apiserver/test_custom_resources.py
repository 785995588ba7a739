"""The life of a kind that a CustomResourceDefinition defines, and of its objects, against a real master."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.client.client import ApiError, Client
from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.custom_definitions import DEFINITIONS, define, definition, is_true, version
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient

STRATEGIC_PATCH = "application/strategic-merge-patch+json"


@asynccontextmanager
async def connected(server: ApiServer) -> AsyncIterator[UntypedClient]:
    """Yield a client of a server."""
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        yield UntypedClient(client)


@pytest.fixture
async def raw_client(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(Kubeconfig.load(server.kubeconfig)) as client:
        yield client


async def test_an_object_is_served_as_soon_as_its_kind_is_established(api_client: UntypedClient) -> None:
    foos = await define(api_client, "foos", shortNames=["fo"], categories=["all"])
    made = await api_client.create(foos, name="a", spec={"color": "blue", "unknown": 1})
    assert made["apiVersion"] == "example.com/v1"
    assert made["kind"] == "Foo"
    assert made["spec"] == {"color": "blue", "size": 3, "replicas": 1}, "pruned, with defaults"
    assert made["metadata"]["generation"] == 1
    assert made["metadata"]["uid"]
    stored = await api_client.request("GET", f"{DEFINITIONS}/foos.example.com")
    assert [(each["type"], each["reason"]) for each in stored["status"]["conditions"]] == [
        ("NamesAccepted", "NoConflicts"), ("Established", "InitialNamesAccepted"),
    ]  # fmt: skip
    assert stored["status"]["acceptedNames"]["shortNames"] == ["fo"]
    listed = await api_client.request("GET", "/apis/example.com/v1/foos")
    assert listed["kind"] == "FooList"
    assert [each["metadata"]["name"] for each in listed["items"]] == ["a"]
    found = await api_client.request("GET", "/apis/example.com/v1")
    assert [(each["name"], each["shortNames"], each["categories"]) for each in found["resources"][:1]] == [
        ("foos", ["fo"], ["all"])
    ]
    assert [each["name"] for each in found["resources"]] == ["foos", "foos/status"]
    assert found["resources"][0]["storageVersionHash"]


async def test_updates_of_spec_and_status(api_client: UntypedClient) -> None:
    bars = await define(api_client, "bars")
    made = await api_client.create(bars, name="a", spec={"color": "blue"}, status={"phase": "Set by a client"})
    assert "status" not in made
    refused = await api_client.request("PUT", f"{bars}/a", {**made, "metadata": {"name": "a"}})
    assert (refused["code"], refused["reason"]) == (422, "Invalid")
    assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in refused["message"]
    changed = await api_client.request("PUT", f"{bars}/a", {**made, "spec": {"color": "red"}})
    assert (changed["metadata"]["generation"], changed["spec"]["color"]) == (2, "red")
    same = await api_client.request("PUT", f"{bars}/a", {**changed, "status": {"phase": "dropped"}})
    assert same["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"], "nothing was written"
    body = {**changed, "spec": {"color": "no"}, "status": {"phase": "Ready"}}
    body["metadata"] = {**changed["metadata"], "labels": {"dropped": "yes"}}
    ready = await api_client.request("PUT", f"{bars}/a/status", body)
    assert (ready["status"], ready["spec"]["color"], ready["metadata"]["generation"]) == ({"phase": "Ready"}, "red", 2)
    assert "labels" not in ready["metadata"]
    wrong = await api_client.request("PATCH", f"{bars}/a", {"spec": {"color": 3}})
    assert (wrong["code"], wrong["reason"]) == (422, "Invalid")
    kept = await api_client.request("PATCH", f"{bars}/a", {"spec": {"note": "x"}})
    assert kept["status"] == {"phase": "Ready"}
    assert kept["metadata"]["generation"] == 3


async def test_defaults_of_a_changed_definition_show_at_once_and_write_nothing(api_client: UntypedClient) -> None:
    bazs = await define(api_client, "bazs")
    made = await api_client.create(bazs, name="a", spec={"color": "blue"})
    stored = await api_client.request("GET", f"{DEFINITIONS}/bazs.example.com")
    schema = stored["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["shape"] = {"type": "string", "default": "round"}
    del schema["properties"]["spec"]["properties"]["size"]
    assert (await api_client.request("PUT", f"{DEFINITIONS}/bazs.example.com", stored))["kind"] != "Status"
    seen = await api_client.request("GET", f"{bazs}/a")
    assert seen["spec"] == {"color": "blue", "replicas": 1, "shape": "round"}
    assert seen["metadata"] == made["metadata"]
    listed = await api_client.request("GET", bazs)
    assert listed["items"] == [seen]
    assert (await api_client.request("PUT", f"{bazs}/a", {**seen, "spec": {"color": "red"}}))["spec"][
        "shape"
    ] == "round"


async def test_a_watch_ends_when_the_definition_changes(api_client: UntypedClient, raw_client: Client) -> None:
    quxs = await define(api_client, "quxs")
    await api_client.create(quxs, name="a", spec={"color": "blue"})
    watch = asyncio.create_task(raw_client.request("GET", quxs, query={"watch": "true", "timeoutSeconds": "60"}))
    path = f"{DEFINITIONS}/quxs.example.com"
    while not watch.done():
        stored = await api_client.request("GET", path)
        schema = stored["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        count = len(schema["properties"]["spec"]["properties"])
        schema["properties"]["spec"]["properties"][f"more{count}"] = {"type": "string", "default": "new"}
        await api_client.request("PUT", path, stored)
    events = [json.loads(line) for line in (await watch).splitlines()]
    assert [(each["type"], each["object"]["metadata"]["name"]) for each in events] in ([], [("ADDED", "a")])


async def test_a_kind_goes_with_its_objects_and_can_be_defined_again(api_client: UntypedClient) -> None:
    ends = await define(api_client, "ends")
    await api_client.create(ends, name="free", spec={"color": "blue"})
    held = await api_client.create(
        ends, metadata={"name": "held", "finalizers": ["example.com/hold"]}, spec={"color": "blue"}
    )
    path = f"{DEFINITIONS}/ends.example.com"
    gone = await api_client.request("DELETE", path)
    assert gone["kind"] == "CustomResourceDefinition"
    assert gone["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    refused = await api_client.request("POST", ends, {"metadata": {"name": "late"}, "spec": {"color": "x"}})
    assert refused["code"] == 403
    assert "create not allowed while custom resource definition is terminating" in refused["message"]
    await api_client.wait_until(f"{ends}/free", lambda answer: answer.get("code") == 404)
    await api_client.wait_until(path, is_true("Terminating"))
    discovered = await api_client.request("GET", "/apis/example.com/v1")
    verbs = next(each["verbs"] for each in discovered["resources"] if each["name"] == "ends")
    assert "list" in verbs
    assert "create" not in verbs
    marked = await api_client.request("GET", f"{ends}/held")
    assert marked["metadata"]["deletionTimestamp"]
    assert marked["metadata"]["uid"] == held["metadata"]["uid"]
    await api_client.request("PATCH", f"{ends}/held", {"metadata": {"finalizers": None}})
    await api_client.wait_until(path, lambda answer: answer.get("code") == 404)
    assert (await api_client.request("GET", ends))["code"] == 404
    again = await define(api_client, "ends")
    assert (await api_client.request("GET", again))["items"] == []
    assert (await api_client.create(again, name="free", spec={"color": "blue"}))["metadata"]["uid"]


async def test_names_of_a_group_belong_to_one_definition(api_client: UntypedClient) -> None:
    await define(api_client, "ones", kind="Only")
    await api_client.create(DEFINITIONS, **definition("twos", kind="Only"))
    path = f"{DEFINITIONS}/twos.example.com"
    refused = await api_client.wait_until(path, lambda answer: "conditions" in answer.get("status", {}))
    assert [(each["type"], each["status"], each["reason"]) for each in refused["status"]["conditions"]] == [
        ("NamesAccepted", "False", "KindConflict"), ("Established", "False", "NotAccepted"),
    ]  # fmt: skip
    assert (await api_client.request("GET", "/apis/example.com/v1/twos"))["code"] == 404
    await api_client.request("DELETE", f"{DEFINITIONS}/ones.example.com")
    await api_client.wait_until(path, is_true("Established"))
    assert (await api_client.request("GET", "/apis/example.com/v1/twos"))["kind"] == "OnlyList"


async def test_versions_show_the_same_objects(api_client: UntypedClient) -> None:
    newer = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"color": {"type": "string"}}}}}
    old = version("v1alpha1", storage=False, deprecated=True)
    await define(api_client, "vers", old, version("v1", schema=newer), version("v1beta1", storage=False))
    group = await api_client.request("GET", "/apis/example.com")
    assert [each["version"] for each in group["versions"]] == ["v1", "v1beta1", "v1alpha1"]
    alpha, at = "/apis/example.com/v1alpha1/namespaces/default/vers", "/apis/example.com/v1/namespaces/default/vers"
    made = await api_client.create(alpha, name="a", spec={"color": "blue"})
    assert made["apiVersion"] == "example.com/v1alpha1"
    assert made["spec"]["size"] == 3
    seen = await api_client.request("GET", f"{at}/a")
    assert (seen["apiVersion"], seen["spec"]) == ("example.com/v1", {"color": "blue"})
    wrong = await api_client.request("POST", at, {**made, "metadata": {"name": "b"}})
    assert wrong["code"] == 400
    assert "does not match the expected API version (example.com/v1)" in wrong["message"]


async def test_what_a_request_cannot_be(api_client: UntypedClient, raw_client: Client) -> None:
    asks = await define(api_client, "asks", version())
    await api_client.create(asks, name="a", spec={"color": "blue"})
    with pytest.raises(ApiError, match="application/merge-patch\\+json") as unsupported:
        await raw_client.request("PATCH", f"{asks}/a", b'{"spec":{"color":"x"}}', STRATEGIC_PATCH)
    assert unsupported.value.status.code == 415
    no_status = await api_client.request("GET", f"{asks}/a/status")
    assert (no_status["code"], no_status["reason"]) == (404, "NotFound")
    strict = await api_client.request(
        "POST", asks, {"metadata": {"name": "b"}, "spec": {"color": "x", "foo": 1}}, fieldValidation="Strict"
    )
    assert strict["code"] == 400
    assert 'strict decoding error: unknown field "spec.foo"' in strict["message"]
    apply = {"apiVersion": "example.com/v1", "kind": "Ask", "metadata": {"name": "c"}, "spec": {"color": "x", "foo": 1}}
    undeclared = await api_client.apply(f"{asks}/c", apply)
    assert undeclared["code"] == 500
    assert ".spec.foo: field not declared in schema" in undeclared["message"]
    del apply["spec"]["foo"]  # type: ignore[attr-defined]
    applied = await api_client.apply(f"{asks}/c", apply)
    assert applied["metadata"]["managedFields"][0]["fieldsV1"] == {"f:spec": {"f:color": {}}}
    await define(api_client, "wides", scope="Cluster")
    assert (await api_client.request("GET", "/apis/example.com/v1/namespaces/default/wides"))["code"] == 404
    assert (await api_client.request("GET", "/apis/example.com/v1/asks/a"))["code"] == 404
    assert (await api_client.request("GET", "/apis/example.com/v2/asks"))["code"] == 404


async def test_unknown_root_fields_stay_where_the_schema_preserves_them(api_client: UntypedClient) -> None:
    keeps = await define(
        api_client, "keeps", version(schema={"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    )
    made = await api_client.create(keeps, name="a", dummy={"x": None}, **{"a-b": [1]})
    assert made["dummy"] == {"x": None}
    assert made["a-b"] == [1]
    merged = await api_client.request("PATCH", f"{keeps}/a", {"other": True, "a-b": None})
    assert merged["other"] is True
    assert "a-b" not in merged
    assert merged["dummy"] == {"x": None}
    assert await api_client.request("GET", f"{keeps}/a") == merged


async def test_scale_columns_and_field_selectors(api_client: UntypedClient, raw_client: Client) -> None:
    subresources = {
        "status": {},
        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
    }
    columns = [
        {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1},
        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    whole = version(
        subresources=subresources, additionalPrinterColumns=columns, selectableFields=[{"jsonPath": ".spec.color"}]
    )
    shows = await define(api_client, "shows", whole)
    for color in ("blue", "red"):
        await api_client.create(shows, name=color, spec={"color": color})
    scale = await api_client.request("GET", f"{shows}/red/scale")
    assert (scale["kind"], scale["spec"]["replicas"]) == ("Scale", 1)
    scaled = await api_client.request("PATCH", f"{shows}/red/scale", {"spec": {"replicas": 4}})
    assert scaled["spec"]["replicas"] == 4
    assert (await api_client.request("GET", f"{shows}/red"))["spec"]["replicas"] == 4
    chosen = await api_client.request("GET", shows, fieldSelector="spec.color=blue")
    assert [each["metadata"]["name"] for each in chosen["items"]] == ["blue"]
    refused = await api_client.request("GET", shows, fieldSelector="spec.size=3")
    assert refused["code"] == 400
    table = json.loads(
        await raw_client.request(
            "GET", f"{shows}/red", headers=[("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")]
        )
    )
    assert [each["name"] for each in table["columnDefinitions"]] == ["Name", "Color", "Size", "Phase", "Age"]
    assert table["rows"][0]["cells"][:4] == ["red", "red", 3, None]


async def test_quotas_owners_and_namespaces_know_custom_resources(api_client: UntypedClient) -> None:
    await define(api_client, "items")
    await api_client.create("/api/v1/namespaces", name="shop")
    items, quotas = "/apis/example.com/v1/namespaces/shop/items", "/api/v1/namespaces/shop/resourcequotas"
    await api_client.create(quotas, name="q", spec={"hard": {"count/items.example.com": "2"}})
    await api_client.wait_until(f"{quotas}/q", lambda quota: "used" in quota["status"])
    owner = await api_client.create(items, name="owner", spec={"color": "blue"})
    reference = {
        "apiVersion": "example.com/v1", "kind": "Item", "name": "owner", "uid": owner["metadata"]["uid"],
    }  # fmt: skip
    await api_client.create(
        "/api/v1/namespaces/shop/configmaps", metadata={"name": "owned", "ownerReferences": [reference]}
    )
    await api_client.create(
        items, metadata={"name": "child", "ownerReferences": [reference]}, spec={"color": "blue", "size": 9}
    )
    third = await api_client.request("POST", items, {"metadata": {"name": "third"}, "spec": {"color": "x"}})
    assert third["code"] == 403
    assert "exceeded quota: q" in third["message"]
    await api_client.request("DELETE", f"{items}/owner")
    await api_client.wait_until(f"{items}/child", lambda answer: answer.get("code") == 404)
    await api_client.wait_until("/api/v1/namespaces/shop/configmaps/owned", lambda answer: answer.get("code") == 404)
    await api_client.wait_until(f"{quotas}/q", lambda quota: quota["status"]["used"]["count/items.example.com"] == "0")
    await api_client.create(items, metadata={"name": "last", "finalizers": ["example.com/x"]}, spec={"color": "blue"})
    await api_client.request("DELETE", "/api/v1/namespaces/shop")
    marked = await api_client.wait_until(f"{items}/last", lambda answer: "deletionTimestamp" in answer["metadata"])
    assert marked["spec"]["color"] == "blue"
    await api_client.request("PATCH", f"{items}/last", {"metadata": {"finalizers": None}})
    await api_client.wait_until("/api/v1/namespaces/shop", lambda answer: answer.get("code") == 404)


async def test_openapi_describes_the_kind(api_client: UntypedClient) -> None:
    await define(api_client, "docs")
    index = (await api_client.request("GET", "/openapi/v3"))["paths"]
    before = index["apis/example.com/v1"]["serverRelativeURL"]
    document = await api_client.request("GET", "/openapi/v3/apis/example.com/v1")
    schema = document["components"]["schemas"]["com.example.v1.Doc"]
    assert schema["properties"]["spec"]["properties"]["color"]["description"] == "The color."
    assert schema["x-kubernetes-group-version-kind"] == [{"group": "example.com", "version": "v1", "kind": "Doc"}]
    patch = document["paths"]["/apis/example.com/v1/namespaces/{namespace}/docs/{name}"]["patch"]
    assert "fieldValidation" in [each["name"] for each in patch["parameters"]]
    old = await api_client.request("GET", "/openapi/v2")
    assert "default" not in json.dumps(old["definitions"]["com.example.v1.Doc"])
    await define(api_client, "docks")
    after = (await api_client.request("GET", "/openapi/v3"))["paths"]["apis/example.com/v1"]["serverRelativeURL"]
    assert after != before


async def test_rights_come_from_roles_that_are_aggregated(api_client: UntypedClient, raw_client: Client) -> None:
    path = await define(api_client, "rights")
    await api_client.create(path, name="a", spec={"color": "blue"})
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    subject = {"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}
    view = {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"}
    await api_client.create(f"{rbac}/namespaces/default/rolebindings", name="ann", roleRef=view, subjects=[subject])
    ann = [("Impersonate-User", "ann")]
    with pytest.raises(ApiError) as refused:
        await raw_client.request("GET", path, headers=ann)
    assert refused.value.status.code == 403
    await api_client.create(
        f"{rbac}/clusterroles",
        metadata={"name": "see-rights", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        rules=[{"apiGroups": ["example.com"], "resources": ["rights"], "verbs": ["get", "list", "watch"]}],
    )
    await api_client.wait_until(f"{rbac}/clusterroles/view", lambda role: "example.com" in json.dumps(role["rules"]))
    seen = json.loads(await raw_client.request("GET", f"{path}/a", headers=ann))
    assert seen["spec"]["color"] == "blue"
    with pytest.raises(ApiError) as refused:
        await raw_client.request("DELETE", f"{path}/a", headers=ann)
    assert refused.value.status.code == 403


@pytest.fixture
def own_server(tmp_path: Path) -> Any:
    """Yield a master that the test restarts."""
    running = ApiServer(tmp_path)
    running.start()
    yield running
    running.stop()


async def test_a_restarted_master_serves_what_the_last_one_did(own_server: ApiServer) -> None:
    async with connected(own_server) as client:
        foos = await define(client, "foos")
        made = await client.create(foos, name="a", spec={"color": "blue"})
        await client.create(foos, metadata={"name": "held", "finalizers": ["example.com/x"]}, spec={"color": "blue"})
        await client.create(DEFINITIONS, **definition("goings"))
    own_server.stop()
    own_server.start()
    async with connected(own_server) as client:
        assert await client.request("GET", f"{foos}/a") == made
        await client.wait_until(f"{DEFINITIONS}/goings.example.com", is_true("Established"))
        await client.request("DELETE", f"{DEFINITIONS}/foos.example.com")
    own_server.stop()
    own_server.start()
    async with connected(own_server) as client:
        await client.wait_until(f"{foos}/a", lambda answer: answer.get("code") == 404)
        held = await client.request("GET", f"{foos}/held")
        assert held["spec"]["color"] == "blue", "what a controller writes has all fields"
        await client.request("PATCH", f"{foos}/held", {"metadata": {"finalizers": None}})
        await client.wait_until(f"{DEFINITIONS}/foos.example.com", lambda answer: answer.get("code") == 404)


async def test_a_definition_that_is_not_usable_costs_its_own_objects_only(own_server: ApiServer) -> None:
    async with connected(own_server) as client:
        for plural in ("goods", "bads"):
            await client.create(await define(client, plural), name="a", spec={"color": "blue"})
    own_server.stop()
    with sqlite3.connect(own_server.root / "state" / "store.db") as store:
        for revision, data in store.execute(
            "SELECT revision, data FROM log WHERE name = 'bads.example.com'"
        ).fetchall():
            stored = json.loads(data)
            stored["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = []
            store.execute("UPDATE log SET data = ? WHERE revision = ?", (json.dumps(stored).encode(), revision))
    store.close()
    own_server.start()
    async with connected(own_server) as client:
        at = "/apis/example.com/v1/namespaces/default"
        assert (await client.request("GET", f"{at}/goods/a"))["spec"]["color"] == "blue"
        broken = await client.request("GET", f"{at}/bads/a")
        assert (broken["code"], broken["reason"]) == (500, "InternalError")
        (event,) = await client.watch(f"{at}/bads", "0")
        assert (event["type"], event["object"]["code"]) == ("ERROR", 500)
        await client.request("DELETE", f"{DEFINITIONS}/bads.example.com")
        await client.wait_until(f"{DEFINITIONS}/bads.example.com", lambda answer: answer.get("code") == 404)

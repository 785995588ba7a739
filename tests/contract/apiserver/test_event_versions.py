"""Events of the core group and of events.k8s.io are one object in two versions, against a real master."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.raw_requests import RawClient
from tests.testbed.apiserver.untyped_client import UntypedClient

CORE = "/api/v1/namespaces/default/events"
NEWER = "/apis/events.k8s.io/v1/namespaces/default/events"
NODE = {"kind": "Node", "name": "n", "uid": "n"}
TOLD = {
    "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "kube-proxy", "reportingInstance": "on-n",
    "action": "StartKubeProxy", "reason": "Starting", "type": "Normal", "regarding": NODE, "note": "it starts",
}  # fmt: skip


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(Kubeconfig.load(server.kubeconfig)) as new_client:
        yield new_client


@pytest.fixture
async def wire(server: ApiServer) -> AsyncIterator[RawClient]:
    async with RawClient(server.kubeconfig) as raw_client:
        yield raw_client


async def test_event_written_in_one_version_is_read_and_changed_in_the_other(client: Client) -> None:
    api_client = UntypedClient(client)
    created = await api_client.create(NEWER, name="a", **TOLD)
    assert (created["apiVersion"], created["note"]) == ("events.k8s.io/v1", "it starts")
    core = await api_client.request("GET", f"{CORE}/a")
    assert (core["apiVersion"], core["message"], core["involvedObject"]) == ("v1", "it starts", NODE)
    assert core["reportingComponent"] == "kube-proxy"
    assert core["metadata"] == created["metadata"]

    series = {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}
    again = await api_client.request("PATCH", f"{NEWER}/a", {"series": series})
    assert again["series"] == series
    older = await api_client.request("PATCH", f"{CORE}/a", {"metadata": {"labels": {"seen": "yes"}}})
    assert older["series"] == series
    actual = await api_client.request("GET", NEWER, fieldSelector="regarding.name=n,reason=Starting")
    assert [event["metadata"]["labels"] for event in actual["items"]] == [{"seen": "yes"}]
    assert actual["kind"] == "EventList"
    assert actual["metadata"]["resourceVersion"] == older["metadata"]["resourceVersion"]
    assert (await api_client.request("POST", CORE, {"metadata": {"name": "a"}, "involvedObject": NODE}))["code"] == 409
    noted = await api_client.request("PATCH", f"{NEWER}/a", {"note": "other"})
    assert (await api_client.request("GET", f"{CORE}/a"))["message"] == noted["note"] == "other"
    refused = await api_client.request("PATCH", f"{NEWER}/a", {"regarding": {**NODE, "uid": "m"}})
    assert (refused["code"], refused["causes"]) == (422, ["Forbidden: field is immutable"])

    assert (await api_client.request("DELETE", f"{NEWER}/a"))["status"] == "Success"
    assert (await api_client.request("GET", f"{CORE}/a"))["code"] == 404


async def test_update_creates_a_missing_event_or_lease(client: Client) -> None:
    api_client = UntypedClient(client)
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    for path, body in (
        (CORE, {"metadata": {"namespace": "default"}, "involvedObject": NODE}),
        (NEWER, TOLD),
        (leases, {"spec": {"holderIdentity": "me"}}),
    ):
        object_path = f"{path}/put"
        assert (await api_client.request("PATCH", object_path, {"metadata": {"labels": {"a": "b"}}}))["code"] == 404
        refused = await api_client.request(
            "PUT", object_path, {**body, "metadata": {"name": "put", "uid": "of-another"}}
        )
        assert (refused["code"], "UID in precondition: of-another" in refused["message"]) == (409, True)
        created = await api_client.request("PUT", object_path, {**body, "metadata": {"name": "put"}})
        assert (created["metadata"]["name"], await api_client.request("GET", object_path)) == ("put", created)
        again = await api_client.request(
            "PUT", object_path, {**created, "metadata": {**created["metadata"], "labels": {"a": "b"}}}
        )
        assert again["metadata"]["uid"] == created["metadata"]["uid"]
        await api_client.request("DELETE", object_path)


async def test_events_are_watched_in_both_versions(client: Client, wire: RawClient) -> None:
    api_client = UntypedClient(client)
    revision = (await api_client.request("GET", CORE))["metadata"]["resourceVersion"]
    await api_client.create(NEWER, name="b", **TOLD)
    await api_client.create(CORE, name="c", involvedObject=NODE, message="by the core", source={"component": "kubelet"})
    await api_client.request("DELETE", NEWER, fieldSelector="metadata.name=b")

    reported = [("ADDED", "it starts"), ("ADDED", "by the core"), ("DELETED", "it starts")]
    for path, version, field in ((NEWER, "events.k8s.io/v1", "note"), (CORE, "v1", "message")):
        events = await wire.watch(path, lambda actual: len(actual) == 3, resourceVersion=revision)
        assert [(event["type"], event["object"][field]) for event in events] == reported
        assert {event["object"]["apiVersion"] for event in events} == {version}

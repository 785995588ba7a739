"""Requests that test suites, charts and GitOps tools send, and that a master once answered in another way."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.protobuf_encoder import encoded
from tests.testbed.apiserver.raw_requests import RawClient

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
SERVICES = "/api/v1/namespaces/default/services"
PROTOBUF = "application/vnd.kubernetes.protobuf"


@pytest.fixture
async def admin(server: ApiServer) -> AsyncIterator[RawClient]:
    async with RawClient(server.kubeconfig) as client:
        yield client


async def test_null_time_of_a_condition_is_null_in_every_list(admin: RawClient) -> None:
    service = {"metadata": {"name": "1web"}, "spec": {"ports": [{"port": 80}]}}
    assert (await admin.request("POST", SERVICES, service)).code == 201
    condition = {"type": "Ready", "status": "True", "reason": "Made", "message": "", "lastTransitionTime": None}
    patch = {"status": {"conditions": [condition]}}
    assert (await admin.request("PATCH", f"{SERVICES}/1web/status", patch)).code == 200
    (stored,) = [
        item for item in (await admin.request("GET", SERVICES)).document["items"] if item["metadata"]["name"] == "1web"
    ]
    (shown,) = stored["status"]["conditions"]
    assert shown["lastTransitionTime"] is None
    condition["lastTransitionTime"] = ""
    refused = await admin.request("PATCH", f"{SERVICES}/1web/status", patch)
    assert (refused.code, refused.document["details"]["causes"][0]["field"]) == (
        422, "status.conditions[0].lastTransitionTime"
    )  # fmt: skip


async def test_field_that_a_body_sets_twice_is_rejected_if_strict(admin: RawClient) -> None:
    body = b'{"metadata":{"name":"twice"},"data":{"a":"1","a":"2"}}'
    strict = await admin.request("POST", CONFIG_MAPS, body, fieldValidation="Strict")
    assert strict.code == 400
    assert 'strict decoding error: duplicate field "data.a"' in strict.document["message"]
    text = b"metadata:\n  name: twice\ndata:\n  a: '1'\n  a: '2'\n"
    strict = await admin.request("POST", CONFIG_MAPS, text, "application/yaml", fieldValidation="Strict")
    assert 'line 5: key "a" already set in map' in strict.document["message"]
    accepted = await admin.request("POST", CONFIG_MAPS, body, fieldValidation="Ignore")
    assert (accepted.code, accepted.document["data"]) == (201, {"a": "2"})


@pytest.mark.parametrize(("text", "code"), [("bogus", 400), ("34s", 200)])
async def test_timeout_of_a_request_is_a_duration(admin: RawClient, text: str, code: int) -> None:
    answer = await admin.request("GET", CONFIG_MAPS, timeout=text)
    assert answer.code == code
    if code == 400:
        assert "invalid timeout specified in the request URL" in answer.document["message"]


async def test_create_of_a_resource_that_cannot_be_created_is_rejected_before_its_body_is_read(
    admin: RawClient,
) -> None:
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    unreadable = encoded(body).replace(b"ConfigMap", b"Unknowns.")
    answer = await admin.request("POST", "/apis/podlane.io/v1/namespaces/default/podaddresses", unreadable, PROTOBUF)
    assert answer.code == 405
    assert (await admin.request("POST", CONFIG_MAPS, unreadable, PROTOBUF)).code == 415


async def test_secret_of_one_megabyte_is_stored_by_create_apply_and_update(admin: RawClient) -> None:
    value = base64.b64encode(b"x" * (1 << 20)).decode()
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "big"}, "data": {"release": value}}
    path = "/api/v1/namespaces/default/secrets"
    assert (await admin.request("POST", path, secret)).code == 201
    apply = {"fieldManager": "helm", "force": "true"}
    assert (await admin.request("PATCH", f"{path}/big", secret, "application/apply-patch+yaml", **apply)).code == 200
    assert (await admin.request("PUT", f"{path}/big", {**secret, "type": "Opaque"})).code == 200
    secret["data"] = {"release": base64.b64encode(b"x" * ((1 << 20) + 1)).decode()}
    refused = await admin.request("PUT", f"{path}/big", secret)
    assert (refused.code, refused.document["details"]["causes"][0]["field"]) == (422, "data")


async def test_apply_body_may_have_tabs_and_a_trailing_comma(admin: RawClient) -> None:
    document = '{"apiVersion": "v1","kind": "ConfigMap","metadata": {"name": "tabs"},"data": {"a": "=",},}'
    body = document.replace(",", ",\n\t").encode()
    answer = await admin.request(
        "PATCH", f"{CONFIG_MAPS}/tabs", body, "application/apply-patch+yaml", fieldManager="suite"
    )
    assert (answer.code, answer.document["data"]) == (201, {"a": "="})


async def test_slis_are_served(admin: RawClient) -> None:
    answer = await admin.request("GET", "/metrics/slis")
    assert answer.code == 200
    assert 'kubernetes_healthcheck{name="ping",type="livez"} 1' in answer.document

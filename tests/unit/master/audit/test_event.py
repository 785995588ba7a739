"""Audit events: fields, bounds, and what is never in them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.meta.redaction import redact
from api.meta.types import Status
from master.audit.event import (
    MAX_ANNOTATION,
    MAX_MESSAGE,
    MAX_NAME,
    MAX_SOURCES,
    MAX_URI,
    MAX_USER_AGENT,
    AuditRecord,
    encode_event,
    loggable_uri,
    source_ips,
)
from master.audit.policy import AuditLevel
from master.auth.attributes import Attributes, User
from master.request_info import RequestInfo
from master.resources.pods import PODS

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, datetime.UTC)


def record(level: str = "Metadata", **fields: Any) -> AuditRecord:
    basic = {
        "audit_id": "id", "received": NOW, "method": "POST", "path": "/api", "query": "", "source_ips": ("1.2.3.4",),
        "user_agent": "kubectl",
    }  # fmt: skip
    return AuditRecord(**{**basic, "level": AuditLevel(level), **fields})


def about(namespace: str, name: str, subresource: str = "") -> dict[str, Any]:
    """Return the fields of a record of a request for pods."""
    attributes = Attributes("create", "", "pods", subresource, namespace, name)
    return {"info": RequestInfo(PODS, namespace, name, subresource), "attributes": attributes}


def event(of: AuditRecord, code: int = 0, status: Status | None = None) -> dict[str, Any]:
    line = encode_event(of, "ResponseComplete", code, status, NOW)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    decoded: dict[str, Any] = json.loads(line)
    return decoded


def test_event_has_the_fields_of_kubernetes() -> None:
    of = record(verb="create", user=User("ann", frozenset(("dev",))), **about("red", "web", "exec"))
    of.annotate("a", "b")
    assert event(of, 201) == {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": "id",
        "stage": "ResponseComplete",
        "requestURI": "/api",
        "verb": "create",
        "user": {"username": "ann", "groups": ["dev"]},
        "sourceIPs": ["1.2.3.4"],
        "userAgent": "kubectl",
        "objectRef": {
            "resource": "pods", "namespace": "red", "name": "web", "apiVersion": "v1", "subresource": "exec",
        },
        "responseStatus": {"metadata": {}, "code": 201},
        "requestReceivedTimestamp": "2026-01-02T03:04:05.000678Z",
        "stageTimestamp": "2026-01-02T03:04:05.000678Z",
        "annotations": {"a": "b"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"metadata": {"name": "web"}}, {"name": "web"}),
        ({"metadata": {"generateName": "web-"}}, {}),
        ({"metadata": {"name": ["web"]}}, {}),
        ({"metadata": "web"}, {}),
        ([1], {}),
        ({"metadata": {"name": "x" * 9999}}, {"name": "x" * MAX_NAME}),
    ],
)
def test_name_of_a_new_object_is_that_of_the_body(body: Any, name: dict[str, str]) -> None:
    expected = {"resource": "pods", "namespace": "red", "apiVersion": "v1", **name}
    assert event(record(request_object=body, **about("red", "")))["objectRef"] == expected
    named = event(record(request_object=body, **about("red", "db")))["objectRef"]
    assert named["name"] == "db"


def test_request_for_a_resource_that_is_not_stored_has_its_reference() -> None:
    of = record(attributes=Attributes("create", "project.openshift.io", "projectrequests"))
    assert event(of)["objectRef"] == {
        "resource": "projectrequests", "apiGroup": "project.openshift.io", "apiVersion": "v1",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["eyJ", "x.", "%25", "eyJ.", "sha256", "eyJ%2", "a%2", "abcdef."])
def test_text_of_many_beginnings_of_tokens_is_read_once(text: str) -> None:
    """A regular expression whose time grows with the square of the length takes hours for this text."""
    assert redact(text.encode() * (3 << 20))


def test_failure_has_its_status() -> None:
    status = Status(status="Failure", reason="Forbidden", message="no", code=403)
    assert event(record(), 403, status)["responseStatus"] == {
        "metadata": {}, "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("level", "fields"),
    [("Metadata", set()), ("Request", {"requestObject"}), ("RequestResponse", {"requestObject", "responseObject"})],
)
def test_level_decides_about_the_objects(level: str, fields: set[str]) -> None:
    of = record(level, request_object={"a": "\n"}, response_object=b'{"b":1}')
    assert event(of).keys() & {"requestObject", "responseObject"} == fields


def test_secret_parameters_are_not_recorded() -> None:
    shown = loggable_uri("/oauth/token/display", "code=sha256~x&a=b&Access_Token=y&token=z")
    assert shown == "/oauth/token/display?code=REDACTED&a=b&Access_Token=REDACTED&token=REDACTED"
    assert loggable_uri("/api", "") == "/api"


@given(st.text(), st.text(), st.lists(st.text(), max_size=20), st.text())
def test_what_clients_choose_is_bounded(path: str, query: str, forwarded: list[str], agent: str) -> None:
    assert len(loggable_uri(path * 300, query * 300)) <= MAX_URI
    addresses = source_ips(forwarded, "9.9.9.9")
    assert len(addresses) <= MAX_SOURCES + 1
    assert "9.9.9.9" in addresses
    of = record(user_agent=agent * 1000)
    of.annotate("a", agent * 5000)
    assert len(encode_event(of, "ResponseComplete", 0, None, NOW)) < 20_000


def test_bytes_that_are_no_text_are_escaped() -> None:
    of = record(
        "RequestResponse", path="/a\udcff", user_agent="\ud800", response_object=b"{}", request_object={"a": "\udcff"}
    )
    shown = event(of, 200)
    assert shown["requestURI"] == "/a\udcff"
    assert "responseObject" not in shown


def test_bytes_of_a_query_that_are_no_text_are_replaced() -> None:
    assert event(record(query="a=\udcff"))["requestURI"] == "/api?a=%3F"


OAUTH_TOKEN, SIGNED_TOKEN, BOOTSTRAP_TOKEN = (
    "sha256~Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MDEyMzQ1Njc4OTA",
    "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.abc-_",
    "abcdef.0123456789abcdef",
)
SECRET_PARTS = ("Zm9v", "zdWI", "0123")


@pytest.mark.parametrize("token", [OAUTH_TOKEN, SIGNED_TOKEN, BOOTSTRAP_TOKEN])
@pytest.mark.parametrize(
    "fields",
    [
        lambda text: {"path": f"/api/v1/namespaces/{text}/pods"},
        lambda text: {"query": f"x={text}&{text}&y={text.replace('~', '%7E').replace('.', '%2E')}"},
        lambda text: {"query": f"x={text.replace('~', '%257e').replace('.', '%252e')}"},
        lambda text: {"path": f"/a/{text.replace('~', '%7E').replace('.', '%2E')}"},
        lambda text: {"user_agent": f"curl {text} x"},
        lambda text: {"source_ips": source_ips([text], text)},
        lambda text: {"user": User(text, frozenset((text,)), text, ((text, (text,)),)), "impersonated": User(text)},
        lambda text: about(text, text, text),
        lambda text: {"annotations": {"reason": f"denied: {text}"}},
        lambda text: {"request_object": {text: [text]}, "response_object": json.dumps({text: [text]}).encode()},
        lambda text: {"path": "/" + "\udcff" + text},
    ],
)  # fmt: skip
def test_tokens_are_recorded_in_no_field(token: str, fields: Callable[[str], dict[str, Any]]) -> None:
    status = Status(status="Failure", message=f'"{token}" not found', code=200)
    line = encode_event(record("RequestResponse", **fields(token)), "ResponseComplete", 200, status, NOW)
    assert not [part for part in SECRET_PARTS if part in line.decode()]
    assert b"REDACTED" in line
    assert json.loads(line)["auditID"] == "id"
    other = encode_event(record("RequestResponse", **fields("word")), "ResponseComplete", 200, None, NOW)
    assert b"word" in other
    assert b"REDACTED" not in other


@pytest.mark.parametrize("token", [OAUTH_TOKEN, SIGNED_TOKEN, BOOTSTRAP_TOKEN])
def test_token_that_is_cut_leaves_no_part(token: str) -> None:
    for shift in range(len(token) + 1):
        of = record(
            path="/" + "-" * (MAX_URI - 1 - shift) + token,
            user_agent=("x" * (MAX_USER_AGENT - shift - 1)) + " " + token,
            **about("red", "-" * (MAX_NAME - shift) + token),
        )
        of.annotate("a", "-" * (MAX_ANNOTATION - shift) + token)
        status = Status(message="-" * (MAX_MESSAGE - shift) + token)
        line = encode_event(of, "ResponseComplete", 404, status, NOW).decode()
        assert not [part for part in SECRET_PARTS if part in line], shift


@pytest.mark.parametrize(
    "text",
    ["web.17a2b3c4d5e6f708", "abcdef.0123456789abcdef0", "registry.example.com/a:sha256", "eyJ", "1.0123456789abcdef"],
)
def test_what_is_no_token_is_recorded(text: str) -> None:
    assert event(record(path=f"/{text}"))["requestURI"] == f"/{text}"


def test_name_of_an_existing_token_object_is_recorded() -> None:
    path = f"/apis/oauth.openshift.io/v1/oauthaccesstokens/{OAUTH_TOKEN}"
    assert event(record(path=path, token_name=OAUTH_TOKEN))["requestURI"] == path
    assert event(record(path=path, token_name="sha256~other"))["requestURI"].endswith("/REDACTED")


def test_body_of_a_rejected_request_is_not_recorded() -> None:
    of = record("RequestResponse", request_object={"kind": "Secret"})
    assert "requestObject" not in event(of, 400)
    assert "requestObject" in event(of, 201)


def test_message_of_a_failure_is_cut() -> None:
    status = Status(status="Failure", message="x" * 5_000_000, code=422)
    assert len(encode_event(record(), "ResponseComplete", 422, status, NOW)) < 4096


def test_forwarded_addresses_come_before_the_connection() -> None:
    assert source_ips(["10.0.0.1, 10.0.0.2", "10.0.0.3"], "9.9.9.9") == ("10.0.0.1", "10.0.0.2", "10.0.0.3", "9.9.9.9")

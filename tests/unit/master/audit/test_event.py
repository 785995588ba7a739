"""Audit events: fields, bounds, and what is never in them."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.meta.types import Status
from master.audit.event import MAX_SOURCES, MAX_URI, AuditRecord, encode_event, loggable_uri, source_ips
from master.audit.policy import AuditLevel
from master.auth.attributes import User
from master.request_info import RequestInfo
from master.resources.pods import PODS

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, datetime.UTC)


def record(level: str = "Metadata", **fields: Any) -> AuditRecord:
    basic = {
        "audit_id": "id", "received": NOW, "method": "POST", "path": "/api", "query": "", "source_ips": ("1.2.3.4",),
        "user_agent": "kubectl",
    }  # fmt: skip
    return AuditRecord(**{**basic, "level": AuditLevel(level), **fields})


def event(of: AuditRecord, code: int = 0, status: Status | None = None) -> dict[str, Any]:
    line = encode_event(of, "ResponseComplete", code, status, NOW)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    decoded: dict[str, Any] = json.loads(line)
    return decoded


def test_event_has_the_fields_of_kubernetes() -> None:
    of = record(verb="create", user=User("ann", frozenset(("dev",))), info=RequestInfo(PODS, "red", "web", "exec"))
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


def test_signed_tokens_are_not_recorded() -> None:
    token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.abc-_"
    assert "eyJ" not in loggable_uri(f"/api/{token}", f"x={token}&id_token=q")


def test_body_of_a_rejected_request_is_not_recorded() -> None:
    of = record("RequestResponse", request_object={"kind": "Secret"})
    assert "requestObject" not in event(of, 400)
    assert "requestObject" in event(of, 201)


def test_message_of_a_failure_is_cut() -> None:
    status = Status(status="Failure", message="x" * 5_000_000, code=422)
    assert len(encode_event(record(), "ResponseComplete", 422, status, NOW)) < 4096


def test_forwarded_addresses_come_before_the_connection() -> None:
    assert source_ips(["10.0.0.1, 10.0.0.2", "10.0.0.3"], "9.9.9.9") == ("10.0.0.1", "10.0.0.2", "10.0.0.3", "9.9.9.9")

"""Who owns the fields of an object that client-side apply has made, at its first server-side apply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from master.registry.client_side_apply import CLIENT_SIDE_APPLY, LAST_APPLIED, managers_by_annotation
from master.registry.managed_fields import APPLY, BEFORE_FIRST_APPLY, FieldManager
from master.request_info import RequestInfo
from master.resources.services import SERVICES

APPLIER = FieldManager("kubectl", APPLY, "", "v1", "2026-01-01T00:00:00Z", frozenset())
INFO = RequestInfo(SERVICES, "red", "web")
SENT = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}}}


def live(annotation: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "web", "namespace": "red", "annotations": {LAST_APPLIED: annotation, "other": "x"}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def test_fields_and_defaults_belong_to_client_side_apply_and_the_rest_does_not() -> None:
    document = live(json.dumps(SENT), selector={"app": "web"}, type="ClusterIP", clusterIP="172.30.0.5")
    client, others = managers_by_annotation(INFO, document, APPLIER)
    assert (client.manager, client.operation, others.manager) == (CLIENT_SIDE_APPLY, "Update", BEFORE_FIRST_APPLY)
    assert client.fields == {
        ("f:metadata", "f:annotations", f"f:{LAST_APPLIED}"),
        ("f:spec", "f:selector"),
        ("f:spec", "f:type"),
    }
    assert others.fields == {("f:metadata", "f:annotations", "f:other"), ("f:spec", "f:clusterIP")}


def test_a_value_that_another_has_changed_is_not_its_own() -> None:
    document = live(json.dumps(SENT), selector={"app": "changed"})
    client, others = managers_by_annotation(INFO, document, APPLIER)
    assert ("f:spec", "f:selector") in others.fields - client.fields


@pytest.mark.parametrize(
    "annotation",
    [
        "",
        "no JSON",
        "[]",
        "7",
        '{"apiVersion":"v2","kind":"Service"}',
        '{"spec":{"ports":7}}',
        "[" * 10_000,
        '"\\ud800"',
    ],
)
def test_an_annotation_that_is_no_such_object_is_ignored(annotation: str) -> None:
    assert managers_by_annotation(INFO, live(annotation), APPLIER) == ()

"""What an aggregated API server says about its resources."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.admission.webhooks.calls import ServiceTarget
from master.registry.aggregated_apis import Backend, FoundResource
from master.server.proxy.api_discovery import MAX_RESOURCES, InvalidDiscovery, discovered, openapi_hash

BACKEND = Backend("v1.g.io", "uid", "g.io", "v1", ServiceTarget("ns", "svc", 443), b"", True, 1000, 100)


def listed(*resources: Any, **changes: Any) -> bytes:
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "g.io/v1"}
    return json.dumps({**head, "resources": list(resources), **changes}).encode()


def test_list_becomes_an_entry_of_aggregated_discovery() -> None:
    verbs = ["delete", "get", "list"]
    found = discovered(
        BACKEND,
        listed(
            {"name": "toys/scale", "kind": "Scale", "namespaced": True, "group": "autoscaling", "version": "v1"},
            {"name": "toys", "singularName": "toy", "kind": "Toy", "namespaced": True, "verbs": verbs},
            {"name": "pods/hits", "kind": "MetricValueList", "namespaced": True, "verbs": ["get"], "shortNames": None},
        ),
    )
    toys, pods = json.loads(found.resources)
    assert toys == {
        "resource": "toys", "scope": "Namespaced", "singularResource": "toy", "verbs": verbs,
        "responseKind": {"group": "g.io", "version": "v1", "kind": "Toy"},
        "subresources": [
            {"subresource": "scale", "verbs": [],
             "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}},
        ],
    }  # fmt: skip
    assert (pods["resource"], pods["subresources"][0]["subresource"]) == ("pods", "hits")
    assert found.deletable == (FoundResource("toys", "Toy", tuple(verbs)),)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>", b"[]", b"\xff", b"[" * 100_000, listed(groupVersion="apps/v1"), listed({"name": "a"}),
        listed({"name": 1, "kind": "A"}), listed({"name": "a", "kind": "A", "verbs": "all"}),
        listed(*({"name": f"r{number}", "kind": "A"} for number in range(MAX_RESOURCES + 1))),
    ],
)  # fmt: skip
def test_anything_else_is_not_usable(body: bytes) -> None:
    with pytest.raises(InvalidDiscovery):
        discovered(BACKEND, body)


@given(st.binary())
def test_any_bytes_are_usable_or_not(body: bytes) -> None:
    with pytest.raises(InvalidDiscovery):
        discovered(BACKEND, body)
    assert openapi_hash(BACKEND, body) == ""


def test_only_the_document_of_the_own_version_is_taken() -> None:
    def index(**paths: str) -> bytes:
        return msgspec.json.encode({"paths": {path: {"serverRelativeURL": url} for path, url in paths.items()}})

    assert openapi_hash(BACKEND, index(**{"api/v1": "/x", "apis/apps/v1": "/x"})) == ""
    first = openapi_hash(BACKEND, index(**{"apis/g.io/v1": "/openapi/v3/apis/g.io/v1?hash=1"}))
    second = openapi_hash(BACKEND, index(**{"apis/g.io/v1": "/openapi/v3/apis/g.io/v1?hash=2"}))
    assert len({first, second, ""}) == 3

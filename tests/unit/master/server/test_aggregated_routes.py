"""What requests for aggregated APIs are authorized for: as kube-apiserver reads paths of unknown groups."""

from __future__ import annotations

import pytest

from master.admission.webhooks.calls import ServiceTarget
from master.auth.attributes import Attributes, PathAttributes
from master.registry.aggregated_apis import Backend
from master.server.routes import AggregatedRoute, NonResourceRoute, ResourceRoute, resolve

BACKEND = Backend("v1.g.io", "uid", "g.io", "v1", ServiceTarget("ns", "svc", 443), b"", True, 1000, 100)


def backend_at(group: str, version: str) -> Backend | None:
    return BACKEND if (group, version) == ("g.io", "v1") else None


def attributes(method: str, path: str, **query: str) -> Attributes | PathAttributes:
    route = resolve(method, path, path, query, backend_at=backend_at)
    assert isinstance(route, AggregatedRoute), route
    return route.attributes


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/apis/g.io/v1", {}, PathAttributes("get", "/apis/g.io/v1")),
        ("GET", "/apis/g.io/v1/", {}, PathAttributes("get", "/apis/g.io/v1/")),
        ("GET", "//apis/g.io/v1/toys", {}, Attributes("list", "g.io", "toys")),
        ("GET", "/apis/g.io/v1/toys", {}, Attributes("list", "g.io", "toys")),
        ("GET", "/apis/g.io/v1/toys", {"watch": "1"}, Attributes("watch", "g.io", "toys")),
        ("GET", "/apis/g.io/v1/toys", {"watch": ""}, Attributes("watch", "g.io", "toys")),
        ("GET", "/apis/g.io/v1/toys", {"watch": "False"}, Attributes("list", "g.io", "toys")),
        ("HEAD", "/apis/g.io/v1/toys/a", {}, Attributes("get", "g.io", "toys", name="a")),
        ("GET", "/apis/g.io/v1/toys/a", {"watch": "1"}, Attributes("get", "g.io", "toys", name="a")),
        ("POST", "/apis/g.io/v1/namespaces/red/toys", {}, Attributes("create", "g.io", "toys", namespace="red")),
        ("PUT", "/apis/g.io/v1/namespaces/red/toys/a/status", {},
         Attributes("update", "g.io", "toys", "status", "red", "a")),
        ("PATCH", "/apis/g.io/v1/toys/a/b/c", {}, Attributes("patch", "g.io", "toys", "b", name="a")),
        ("DELETE", "/apis/g.io/v1/namespaces/red/toys", {},
         Attributes("deletecollection", "g.io", "toys", namespace="red")),
        ("DELETE", "/apis/g.io/v1/namespaces/red/toys/a", {},
         Attributes("delete", "g.io", "toys", namespace="red", name="a")),
        ("GET", "/apis/g.io/v1/namespaces/red", {}, Attributes("get", "g.io", "namespaces", "", "red", "red")),
        ("GET", "/apis/g.io/v1/namespaces/red/status", {},
         Attributes("get", "g.io", "namespaces", "status", "red", "red")),
        ("GET", "/apis/g.io/v1/watch/namespaces/red/toys", {}, Attributes("watch", "g.io", "toys", namespace="red")),
        ("GET", "/apis/g.io/v1/proxy/toys/a/b", {}, Attributes("proxy", "g.io", "toys", name="a")),
        ("GET", "/apis/g.io/v1/toys", {"fieldSelector": "metadata.name=a"},
         Attributes("list", "g.io", "toys", name="a")),
        ("GET", "/apis/g.io/v1//secrets", {}, Attributes("get", "g.io", "", name="secrets")),
        ("OPTIONS", "/apis/g.io/v1/toys", {}, Attributes("options", "g.io", "toys")),
    ],
)  # fmt: skip
def test_path_is_read_as_by_kube_apiserver(
    method: str, path: str, query: dict[str, str], expected: Attributes | PathAttributes
) -> None:
    assert attributes(method, path, **query) == expected


@pytest.mark.parametrize("path", ["/apis/g.io", "/apis/g.io/v2/toys", "/api/g.io/v1/toys", "/x/apis/g.io/v1"])
def test_other_paths_stay_here(path: str) -> None:
    assert isinstance(resolve("GET", path, path, {}, backend_at=backend_at), NonResourceRoute)


def test_built_in_resources_stay_here() -> None:
    route = resolve("GET", "/apis/apps/v1/deployments", "/apis/apps/v1/deployments", {}, backend_at=backend_at)
    assert isinstance(route, ResourceRoute)

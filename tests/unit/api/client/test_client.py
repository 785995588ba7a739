"""The client of the API server: paths of requests, and its errors."""

from __future__ import annotations

import pytest

from api.client.client import resource_path
from api.core.node import Node
from api.core.pod import Pod


@pytest.mark.parametrize(
    ("namespace", "name", "subresource", "path"),
    [
        ("", "", "", "/api/v1/pods"),
        ("red", "", "", "/api/v1/namespaces/red/pods"),
        ("red", "a", "log", "/api/v1/namespaces/red/pods/a/log"),
        ("red", "a/log", "", "/api/v1/namespaces/red/pods/a%2Flog"),
        ("red/pods", "a", "", "/api/v1/namespaces/red%2Fpods/pods/a"),
    ],
)
def test_a_name_is_one_segment_of_a_path(namespace: str, name: str, subresource: str, path: str) -> None:
    assert resource_path(Pod, namespace, name, subresource) == path
    assert resource_path(Node, namespace, "a/b") == "/api/v1/nodes/a%2Fb"

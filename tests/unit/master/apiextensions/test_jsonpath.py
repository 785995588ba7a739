"""JSONPath of columns: what popular definitions write."""

from __future__ import annotations

from typing import Any

import pytest

from master.apiextensions.jsonpath import JsonPathError, parse_jsonpath

OBJECT = {
    "spec": {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 443}], "a.b": 1, "a=b": 2},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Synced", "status": "False"}]},
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ('.status.conditions[?(@.type=="Ready")].status', ("True",)),
        (".status.conditions[?(@.type=='Synced')].status", ("False",)),
        ('.status.conditions[?(@.type == "Ready")].status', ("True",)),
        ('.status.conditions[?(@.type!="Ready")].status', ("False",)),
        (".spec.ports[?(@.port>80)].name", ("b",)),
        (".spec.ports[?(@.port<=80)].name", ("a",)),
        ('.spec.ports[?("b"==@.name)].port', (443,)),
        (".spec.ports[?(@.name)].name", ("a", "b")),
        (".spec.ports[*].name", ("a", "b")),
        (".spec.ports[0].port", (80,)),
        (".spec.ports[-1:].port", (443,)),
        ("{.spec.a\\.b}", (1,)),
        (".spec['a.b','a=b']", (1, 2)),
        (".spec.a=b", (2,)),
        ("..port", (80, 443)),
        (".missing.field", ()),
    ],
)
def test_values_at_a_path(path: str, found: tuple[Any, ...]) -> None:
    assert parse_jsonpath(path).find(OBJECT, 1000) == found


@pytest.mark.parametrize("path", ['.a[?(@.b=="c"]', ".a[?(@.b==)]", ".a[?(=1)]", ".a[", "{.a", ".a[?(@.b==c)]"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(JsonPathError):
        parse_jsonpath(path)

"""OpenAPI documents."""

from __future__ import annotations

import asyncio
import functools
import re
import threading
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from master import errors
from master.apiextensions.conversion import Conversions
from master.apiextensions.custom_resources import build_kind
from master.apiextensions.definitions import read_definition
from master.resources import BUILTIN
from master.resources.group_resource import GroupResource
from master.resources.scheme import BUILTIN_SCHEME, SERVED, Scheme
from master.server import openapi

DOCUMENTS = sorted({f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}" for kind in SERVED})
"""Group and version of every document, as a path."""


@functools.cache
def document(path: str) -> dict[str, Any]:
    actual = openapi.document(path)
    assert actual is not None
    return actual


async def test_openapi_index_lists_every_document() -> None:
    assert list((await openapi.OpenAPIDocuments(BUILTIN_SCHEME).index())["paths"]) == DOCUMENTS


async def test_documents_of_custom_kinds_are_built_in_a_thread_and_kept_until_a_definition_changes() -> None:
    data = msgspec.json.encode(
        {
            "metadata": {"name": "lamps.example.com", "uid": "u", "generation": 1},
            "spec": {
                "group": "example.com",
                "names": {"plural": "lamps", "kind": "Lamp"},
                "versions": [{"name": "v1", "served": True, "storage": True}],
            },
        }
    )
    threads: list[threading.Thread] = []

    def load() -> bytes:
        threads.append(threading.current_thread())
        if is_deleted_by is not None and threading.current_thread() is not threading.main_thread():
            asyncio.run_coroutine_threadsafe(delete(), is_deleted_by).result()
            raise errors.path_not_found()
        return data

    async def delete() -> None:
        scheme.unpublish(GroupResource("example.com", "lamps"))

    is_deleted_by: asyncio.AbstractEventLoop | None = None

    scheme = Scheme()
    scheme.publish(build_kind(read_definition(data), load, Conversions()))
    threads.clear()
    documents = openapi.OpenAPIDocuments(scheme)
    found = await asyncio.gather(*(documents.content("apis/example.com/v1") for _ in range(3)))
    assert found[0] is found[1] is found[2]
    assert b"com.example.v1.Lamp" in (found[0] or b"")
    assert len(threads) == 1
    assert b"com.example.v1.Lamp" in await documents.v2_json()
    assert threading.main_thread() not in threads
    scheme.publish(build_kind(read_definition(data), load, Conversions()))
    assert await documents.content("apis/example.com/v1") is not found[0]
    is_deleted_by = asyncio.get_running_loop()
    assert b"Lamp" not in await openapi.OpenAPIDocuments(scheme).v2_json()


@pytest.mark.parametrize("path", DOCUMENTS)
def test_openapi_references_are_contained_in_the_document(path: str) -> None:
    text = msgspec.json.encode(document(path)).decode()
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert named
    assert named <= document(path)["components"]["schemas"].keys()


@pytest.mark.parametrize("path", DOCUMENTS)
def test_openapi_fields_have_a_schema(path: str) -> None:
    """`kubectl explain` fails at a field with an empty one."""
    schemas = document(path)["components"]["schemas"]
    fields = {
        (name, field): kept for name, kind in schemas.items() for field, kept in kind.get("properties", {}).items()
    }
    assert len(fields) > 20
    inner = [schema.get("items", schema.get("additionalProperties", schema)) for schema in fields.values()]
    assert {} not in (*fields.values(), *inner)


@pytest.mark.parametrize("path", DOCUMENTS)
def test_openapi_operations_are_unique_and_declare_path_parameters(path: str) -> None:
    seen = []
    for route, path_item in document(path)["paths"].items():
        known = {parameter["name"] for parameter in path_item.get("parameters", ())}
        assert known == set(re.findall(r"{(\w+)}", route)) or set(path_item) == {"get"}
        seen += [actual["operationId"] for key, actual in path_item.items() if key != "parameters"]
    assert len(seen) == len(set(seen))


def test_openapi_declares_server_side_field_validation() -> None:
    for resource in (resource for resource in BUILTIN if "patch" in resource.verbs):
        root = f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"
        patches = [path_item["patch"] for path_item in document(root)["paths"].values() if "patch" in path_item]
        mine = [patch for patch in patches if patch["x-kubernetes-group-version-kind"]["kind"] == resource.kind]
        assert mine
        assert all(
            "fieldValidation" in {parameter["name"] for parameter in operation["parameters"]} for operation in mine
        )


def test_openapi_union_types_are_named() -> None:
    schemas = document("api/v1")["components"]["schemas"]
    assert schemas["ServicePort"]["properties"]["targetPort"]["allOf"] == [{"$ref": "#/components/schemas/IntOrString"}]
    amounts = schemas["ResourceRequirements"]["properties"]["limits"]["additionalProperties"]
    assert amounts == {"allOf": [{"$ref": "#/components/schemas/Quantity"}]}


def test_openapi_lists_have_merge_keys_and_maps_value_types() -> None:
    schemas = document("api/v1")["components"]["schemas"]
    spec = schemas["PodSpec"]["properties"]
    assert spec["containers"] == {
        "type": "array",
        "description": "A container of a pod.",
        "items": {"allOf": [{"$ref": "#/components/schemas/Container"}]},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "x-kubernetes-patch-merge-key": "name",
        "x-kubernetes-patch-strategy": "merge",
    }
    assert spec["nodeSelector"]["x-kubernetes-map-type"] == "atomic"
    binary = schemas["io.k8s.api.core.v1.ConfigMap"]["properties"]["binaryData"]
    assert (binary["type"], binary["additionalProperties"]) == ("object", {"type": "string", "format": "byte"})
    assert schemas["ContainerPort"]["required"] == ["containerPort"]
    assert spec["priority"].items() >= {"type": "integer", "format": "int32"}.items()


def test_openapi_field_description_comes_from_its_type() -> None:
    schemas = document("api/v1")["components"]["schemas"]
    port = "`targetPort` is a number, or the name of a port of the pods; 0 means the same as `port`."
    assert schemas["ServicePort"]["properties"]["targetPort"]["description"] == port
    assert schemas["EphemeralContainer"]["properties"]["tty"]["description"] == "`tty` gives the program a terminal."
    assert schemas["PodSpec"]["properties"]["containers"]["description"] == "A container of a pod."
    resources = "The resources of a container."
    assert schemas["Container"]["properties"]["resources"]["description"] == resources


@pytest.mark.parametrize("path", DOCUMENTS)
def test_openapi_has_no_empty_lists_and_maps(path: str) -> None:
    """Suites compare a document with what a client in Go encodes of it, which has none. Empty schemas are kept."""

    def empty_parts(value: Any, where: str) -> list[str]:
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        own = [where] if value in ([], {}) and not where.endswith(".schema") else []
        return own + [found for key, child in children for found in empty_parts(child, f"{where}.{key}")]

    assert empty_parts(document(path), "") == []


@pytest.mark.parametrize("path", DOCUMENTS)
def test_openapi_type_names_are_unique(path: str) -> None:
    types: dict[str, set[type]] = {}
    for resource in BUILTIN:
        if path == (f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"):
            for info in openapi.parts(inspect.type_info(resource.type)):
                types.setdefault(info.cls.__name__, set()).add(info.cls)
    assert [name for name, actual in types.items() if len(actual) > 1] == []


def test_internal_resources_are_not_in_openapi() -> None:
    paths = document("apis/podlane.io/v1")["paths"]
    namespaced = "/apis/podlane.io/v1/namespaces/{namespace}/podaddresses"
    assert "post" in paths["/apis/podlane.io/v1/nodequeries"]
    assert paths[namespaced].keys() == {"parameters", "get"}
    assert paths[f"{namespaced}/{{name}}"].keys() == {"parameters", "get"}


def test_openapi_of_an_unknown_group_is_not_found() -> None:
    assert openapi.document("apis/apps/v9") is None

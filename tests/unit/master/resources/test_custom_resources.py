"""Our kinds as custom resources: the manifest agrees with the master."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from api.meta.types import Object
from api.network.conflicts import CURSORS_ANNOTATION
from api.validation.network import MAX_VNID, MTU_RANGE
from master.resources.resource import Resource
from master.resources.scheme import BY_KIND

MANIFESTS = Path(__file__).resolve().parents[4] / "systemd" / "kubernetes"
STANDARD = {"apiVersion", "kind", "metadata"}


def documents(name: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all((MANIFESTS / name).read_text()) if document]


def definitions() -> dict[str, dict[str, Any]]:
    actual = [*documents("network.yaml"), *documents("node-queries.yaml")]
    return {
        document["spec"]["names"]["kind"]: document
        for document in actual
        if document["kind"] == "CustomResourceDefinition"
    }


def version(kind: str) -> dict[str, Any]:
    (only,) = definitions()[kind]["spec"]["versions"]
    actual: dict[str, Any] = only
    return actual


def schema(kind: str) -> dict[str, Any]:
    actual: dict[str, Any] = version(kind)["schema"]["openAPIV3Schema"]
    return actual


@pytest.fixture(params=["ClusterNetwork", "HostSubnet", "NetNamespace", "NodeQuery"])
def resource(request: pytest.FixtureRequest) -> Resource[Any]:
    return BY_KIND[request.param]


def test_custom_resource_paths_equal_the_masters(resource: Resource[Any]) -> None:
    spec = definitions()[resource.kind]["spec"]
    assert (spec["names"]["plural"], spec["names"]["singular"]) == (resource.plural, resource.singular)
    assert f"{spec['group']}/{version(resource.kind)['name']}" == resource.type.API_VERSION
    assert spec["scope"] == ("Namespaced" if resource.namespaced else "Cluster")
    assert definitions()[resource.kind]["metadata"]["name"] == f"{resource.plural}.{spec['group']}"


def test_custom_resource_schemas_equal_our_types(resource: Resource[Any]) -> None:
    assert set(schema(resource.kind)["properties"]) == wire_names(resource.type) | STANDARD


def wire_names(of: type[Object]) -> set[str]:
    return {each.encode_name for each in msgspec.structs.fields(of)}


@pytest.mark.parametrize("name", ["ClusterNetwork", "HostSubnet", "NetNamespace"])
def test_custom_resource_columns_equal_ours(name: str) -> None:
    """kube-apiserver puts the column of names before them."""
    columns = version(name)["additionalPrinterColumns"]
    ours = [(column.name, column.type, column.description) for column in BY_KIND[name].columns][1:]
    assert [(column["name"], column["type"], column["description"]) for column in columns] == ours


def test_custom_resource_schemas_reject_what_the_master_rejects() -> None:
    assert schema("NetNamespace")["properties"]["netid"]["maximum"] == MAX_VNID
    mtu = schema("ClusterNetwork")["properties"]["mtu"]
    assert (mtu["minimum"], mtu["maximum"] + 1) == (MTU_RANGE.start, MTU_RANGE.stop)
    pattern = schema("HostSubnet")["properties"]["subnet"]["pattern"]
    assert all(re.search(pattern, good) for good in ("", "10.128.0.0/23"))
    assert not any(re.search(pattern, bad) for bad in ("10.128.0.0", "x10.128.0.0/23", "10.128.0.0/23\nx", "::/64"))


def test_node_role_may_only_read_and_create_events(resource: Resource[Any]) -> None:
    roles = {
        document["metadata"]["name"]: document
        for document in documents("network.yaml")
        if document["kind"] == "ClusterRole"
    }
    *reading, telling = roles["podlane:node"]["rules"]
    assert all(set(rule["verbs"]) == {"get", "list", "watch"} for rule in reading)
    assert (telling["resources"], telling["verbs"]) == (["events"], ["create"])
    resources = {name for rule in reading for name in rule["resources"]}
    assert (resource.plural in resources) == (resource.kind != "NodeQuery"), "questions are switched on by themselves"


def test_cursors_annotation_has_a_valid_name() -> None:
    assert re.fullmatch(r"[a-z.]+/[a-z]+", CURSORS_ANNOTATION)

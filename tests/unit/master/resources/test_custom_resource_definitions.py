# ruff: noqa: E501
from __future__ import annotations

import copy
from typing import Any

import pytest

from api.meta.types import StatusCondition
from api.validation.registry import check, check_update, decode, default
from master.resources.custom_resource_definitions import CUSTOM_RESOURCE_DEFINITIONS, CustomResourceDefinition

RULES = CUSTOM_RESOURCE_DEFINITIONS.rules
SCHEMA = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}}
VERSION = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}
CRD = {
    "metadata": {"name": "foos.example.com"},
    "spec": {"group": "example.com", "names": {"plural": "foos", "kind": "Foo"}, "scope": "Namespaced", "versions": [VERSION]},
}  # fmt: skip


def with_value(path: str, value: Any) -> Any:
    document = copy.deepcopy(CRD)
    target: Any = document
    *parents, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    for step in parents:
        target = target[step] if isinstance(step, int) else target.setdefault(step, {})
    target[last] = value
    return document


def decoded(document: Any) -> CustomResourceDefinition:
    obj, errors, _ = decode(CustomResourceDefinition, document, None or RULES_OF_SHAPE)
    assert obj is not None, errors
    return CUSTOM_RESOURCE_DEFINITIONS.prepare_for_create(default(obj, RULES))


RULES_OF_SHAPE: Any = type(RULES)()


def problems(document: Any) -> list[str]:
    crd = decoded(document)
    found = [*check(crd, RULES), *RULES.validate_create(crd)]
    return [f"{error.path}: {error.detail}" for error in found]


def test_a_definition_gets_its_defaults() -> None:
    crd = decoded(CRD)
    assert problems(CRD) == []
    assert (crd.spec.names.singular, crd.spec.names.list_kind) == ("foo", "FooList")
    assert crd.spec.conversion is not None
    assert crd.spec.conversion.strategy == "None"
    assert crd.status.stored_versions == ("v1",)


ROOT = "spec/versions/0/schema/openAPIV3Schema"
AT = "spec.versions[0].schema.openAPIV3Schema"


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("metadata/name", "bars.example.com", "metadata.name"),
        ("spec/scope", "Any", "spec.scope"),
        ("spec/names/listKind", "Foo", "spec.names.listKind"),
        ("spec/names/shortNames", ["A"], "spec.names.shortNames[0]"),
        ("spec/versions", [], "spec.versions"),
        ("spec/versions", [VERSION, VERSION], "spec.versions"),
        ("spec/versions/0/schema", None, "spec.versions[0].schema.openAPIV3Schema"),
        ("spec/versions/0/deprecationWarning", "old", "spec.versions[0].deprecationWarning"),
        ("spec/preserveUnknownFields", True, "spec.preserveUnknownFields"),
        ("spec/conversion", {"strategy": "Webhook"}, "spec.conversion.webhook.clientConfig"),
        ("spec/versions/0/selectableFields", [{"jsonPath": ".spec.x"}], "spec.versions[0].selectableFields[0].jsonPath"),
        ("spec/versions/0/additionalPrinterColumns", [{"name": "a", "type": "text", "jsonPath": ".a"}],
         "spec.versions[0].additionalPrinterColumns[0].type"),
        ("spec/versions/0/subresources", {"scale": {"specReplicasPath": ".a", "statusReplicasPath": ".status.n"}},
         "spec.versions[0].subresources.scale.specReplicasPath"),
        (f"{ROOT}/type", "array", f"{AT}.type"),
        (f"{ROOT}/properties/spec/type", "", f"{AT}.properties[spec].type"),
        (f"{ROOT}/properties/spec/properties", 3, f"{AT}.properties[spec].properties"),
        (f"{ROOT}/properties/spec/$ref", "#/a", f"{AT}.properties[spec].$ref"),
        (f"{ROOT}/properties/spec/properties/n/default", "x", f"{AT}.properties[spec].properties[n].default"),
        (f"{ROOT}/properties/spec/default", {"z": 1}, f"{AT}.properties[spec].default"),
        (f"{ROOT}/properties/spec/allOf", [{"type": "object"}], f"{AT}.properties[spec].allOf[0].type"),
        (f"{ROOT}/properties/spec/allOf", [{"properties": {"z": {}}}], f"{AT}.properties[spec].properties[z]"),
        (f"{ROOT}/properties/l", {"type": "array"}, f"{AT}.properties[l].items"),
        (f"{ROOT}/properties/metadata", {"type": "object", "properties": {"labels": {"type": "object"}}},
         f"{AT}.properties[metadata]"),
        (f"{ROOT}/properties/spec/x-kubernetes-preserve-unknown-fields", False,
         f"{AT}.properties[spec].x-kubernetes-preserve-unknown-fields"),
        (f"{ROOT}/properties/l", {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "set"},
         f"{AT}.properties[l].items.x-kubernetes-map-type"),
        (f"{ROOT}/properties/l", {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"},
         f"{AT}.properties[l].x-kubernetes-list-map-keys"),
    ],
)  # fmt: skip
def test_what_a_definition_may_not_be(path: str, value: Any, field: str) -> None:
    found = problems(with_value(path, value))
    assert [problem for problem in found if problem.startswith(f"{field}: ")], found


def test_int_or_string_may_name_its_alternatives() -> None:
    either = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert problems(with_value(f"{ROOT}/properties/port", either)) == []


def test_groups_of_kubernetes_need_an_approval() -> None:
    document = with_value("spec/group", "x.k8s.io")
    document["metadata"]["name"] = "foos.x.k8s.io"
    assert [found.split(":")[0] for found in problems(document)] == ["metadata.annotations[api-approved.kubernetes.io]"]
    document["metadata"]["annotations"] = {"api-approved.kubernetes.io": "https://example.com/1"}
    assert problems(document) == []


def test_what_an_update_may_not_change() -> None:
    import msgspec.structs

    old, new = decoded(CRD), decoded(with_value("spec/scope", "Cluster"))
    assert list(check_update(old, new, RULES)) == []
    established = msgspec.structs.replace(old.status, conditions=(StatusCondition(type="Established", status="True"),))
    old = msgspec.structs.replace(old, status=established)
    assert [error.path for error in check_update(old, new, RULES)] == ["spec.scope"]


def test_a_version_in_which_objects_may_be_stored_stays() -> None:
    other = with_value("spec/versions/0/name", "v2")
    new = CUSTOM_RESOURCE_DEFINITIONS.prepare_for_update(decoded(other), decoded(CRD))
    assert new.status.stored_versions == ("v1", "v2")
    assert [error.path for error in RULES.validate(new)] == ["status.storedVersions[0]"]


def test_an_update_is_not_refused_for_what_was_there_before() -> None:
    bad = with_value(f"{ROOT}/properties/spec/properties/n/default", "x")
    changed = copy.deepcopy(bad)
    changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "A foo."
    assert problems(bad)
    assert list(check_update(decoded(bad), decoded(changed), RULES)) == []
    assert list(check_update(decoded(CRD), decoded(changed), RULES)) != []

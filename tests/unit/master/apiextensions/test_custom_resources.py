"""Types, versions and subresources of custom resources, without a master."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from master.apiextensions.conversion import Conversions
from master.apiextensions.custom_resources import MAX_TYPES, ObjectTypes, build_kind, root_fields
from master.apiextensions.definitions import MAX_ROOT_FIELDS, read_definition
from master.errors import StatusError
from master.registry import decoding
from master.registry.conversion import convert_record
from master.request_info import RequestInfo
from master.resources.group_resource import GroupResource
from master.resources.scheme import BY_PATH, CustomKind, Scheme
from master.storage.interface import Key, Record

ATTRIBUTES = {"API_VERSION": "example.com/v1", "KIND": "Lamp", "PLURAL": "lamps", "NAMESPACED": True}
SPEC = {"type": "object", "properties": {"color": {"type": "string"}, "watts": {"type": "integer", "default": 40}}}
SCHEMA = {"type": "object", "properties": {"spec": SPEC, "x-y": {"type": "string"}}}
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def kind(*versions: dict[str, Any], **names: Any) -> CustomKind:
    """Return the kind of a definition."""
    document = {
        "metadata": {"name": "lamps.example.com", "uid": "u", "generation": 1},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "lamps", "kind": "Lamp", **names},
            "versions": versions or [version("v1")],
        },
    }
    data = msgspec.json.encode(document)
    return build_kind(read_definition(data), lambda: data, Conversions())


def version(name: str, schema: Any = SCHEMA, *, storage: bool = True, **more: Any) -> dict[str, Any]:
    """Return a version."""
    return {"name": name, "served": True, "storage": storage, "schema": {"openAPIV3Schema": schema}, **more}


def record(data: dict[str, Any], of: CustomKind) -> Record:
    """Return a stored record."""
    head = {"apiVersion": "example.com/v1", "kind": "Lamp", "metadata": {"name": "a", "resourceVersion": "1"}}
    return Record(Key(of.group_resource, "red", "a"), 1, msgspec.json.encode({**head, **data}), of.decode)


def test_root_fields_have_any_name() -> None:
    types = ObjectTypes(ATTRIBUTES, ("spec", "a-b", "class", "metadata", "KIND"), is_open=False)
    head = b'{"apiVersion":"example.com/v1","kind":"Lamp","metadata":{"name":"x"}'
    data = head + b',"spec":null,"a-b":1,"class":{},"KIND":[]}'
    obj = types.decode(data)
    assert obj.KIND == "Lamp"
    assert root_fields(obj) == {"spec": None, "a-b": 1, "class": {}, "KIND": []}
    assert msgspec.json.encode(obj) == data


def test_an_open_root_keeps_fields_within_limits() -> None:
    types = ObjectTypes(ATTRIBUTES, ("spec",), is_open=True)
    data = b'{"apiVersion":"example.com/v1","kind":"Lamp","metadata":{"name":"x"},"spec":{},"other":1}'
    assert msgspec.json.encode(types.decode(data)) == data
    assert types.of(("spec", "other")) is type(types.decode(data))
    assert len(types.of(map(str, range(MAX_ROOT_FIELDS + 1))).__struct_fields__) == MAX_ROOT_FIELDS + 5, "as stored"
    assert types.of(('a"b', "a\\b", "a\nb")) is types.base, "dropped"
    first = types.of(("first",))
    for number in range(MAX_TYPES):
        types.of((f"f{number}",))
    assert types.of(("first",)) is not first, "the oldest type is not kept"


def test_stored_bytes_are_the_answer_if_the_schema_changes_nothing() -> None:
    lamps = kind()
    (resource,) = lamps.versions
    same = record({"spec": {"color": "red", "watts": 3}}, lamps)
    assert convert_record(resource, same).data is same.data
    other = record({"spec": {"color": "red", "gone": 1}}, lamps)
    before = other.data
    shown = convert_record(resource, other)
    assert msgspec.json.decode(shown.data)["spec"] == {"color": "red", "watts": 40}
    assert convert_record(resource, other) is shown, "converted once"
    assert other.data == before


def test_versions_are_shown_and_stored() -> None:
    old = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"hue": {"type": "string"}}}}}
    lamps = kind(version("v1beta1", old, storage=False, deprecated=True), version("v1"), singular="lamp")
    new, beta = lamps.versions
    assert (new.version, beta.version, new.singular) == ("v1", "v1beta1", "lamp")
    assert beta.deprecation_warning == "example.com/v1beta1 Lamp is deprecated; use example.com/v1 Lamp"
    given = {"metadata": {"name": "a"}, "spec": {"hue": "x"}}
    decoded = decoding.decode_object(RequestInfo(beta, "red"), given, "Warn").object
    stored = beta.to_stored(decoded)
    assert stored.api_version == "example.com/v1"
    assert stored.spec == {"watts": 40}, "the storage version has other fields"


def test_status_is_not_a_part_of_the_desired_state() -> None:
    (resource,) = kind(version("v1", OPEN, subresources={"status": {}})).versions
    obj = decoding.decode_object(
        RequestInfo(resource, "red"), {"metadata": {"name": "a"}, "spec": 1, "status": 2, "more": 3}, "Strict"
    ).object
    assert resource.spec is not None
    assert resource.spec(obj) == {"spec": 1, "more": 3}
    assert root_fields(resource.prepare_for_create(obj)) == {"spec": 1, "more": 3}
    (plain,) = kind(version("v1", OPEN)).versions
    assert not plain.has_status
    assert root_fields(plain.prepare_for_create(obj)) == {"spec": 1, "more": 3, "status": 2}


def test_a_schema_that_is_none_costs_its_own_requests_only() -> None:
    (resource,) = kind(version("v1", [])).versions
    with pytest.raises(StatusError, match="is not usable") as failed:
        decoding.decode_object(RequestInfo(resource, "red"), {"metadata": {"name": "a"}}, "Warn")
    assert failed.value.status.code == 500


def test_scale_paths() -> None:
    paths = {"specReplicasPath": ".spec.a.n", "statusReplicasPath": ".status.n", "labelSelectorPath": ".status.s"}
    (resource,) = kind(version("v1", OPEN, subresources={"status": {}, "scale": paths})).versions
    scale = resource.scale
    assert scale is not None
    info, given = RequestInfo(resource, "red"), {"metadata": {"name": "a"}, "spec": {"a": {"n": 2, "m": 1}}}
    obj = decoding.decode_object(info, {**given, "status": {"n": 1, "s": "app=x"}}, "Warn").object
    assert (scale.replicas(obj), scale.status_replicas(obj), scale.selector(obj)) == (2, 1, "app=x")
    scaled = scale.with_replicas(obj, 5)
    assert (scaled.spec, obj.spec) == ({"a": {"n": 5, "m": 1}}, {"a": {"n": 2, "m": 1}})
    with pytest.raises(StatusError, match=r'the spec replicas field "\.spec\.a\.n" does not exist'):
        scale.replicas(decoding.decode_object(info, {"metadata": {"name": "a"}}, "Warn").object)


def test_cells_of_columns() -> None:
    columns = [
        {"name": name, "type": name, "jsonPath": f".spec.{name}"} for name in ("string", "integer", "boolean", "date")
    ]
    (resource,) = kind(version("v1", OPEN, additionalPrinterColumns=columns)).versions
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def cells(**spec: Any) -> tuple[object, ...]:
        document = {"metadata": {"name": "a"}, "spec": spec}
        return resource.cells(decoding.decode_object(RequestInfo(resource, "red"), document, "Warn").object, now)

    shown = cells(string="x", integer=3, boolean=True, date="2025-12-31T23:00:00Z")
    assert shown == ("a", "x", 3, True, "60m")
    assert cells(string={"a": 1}, integer="3", boolean=1, date="soon") == ("a", '{"a":1}', None, None, "<invalid>")
    assert cells() == ("a", None, None, None, None)


def test_a_scheme_has_a_custom_kind_while_it_is_published() -> None:
    scheme, lamps = Scheme(), kind()
    seen: list[GroupResource] = []
    scheme.subscribe(seen.append)
    scheme.publish(lamps)
    (resource,) = lamps.versions
    assert scheme.at_path("example.com", "v1", "lamps") is resource
    assert scheme.is_current(resource)
    newer = kind(version("v2"))
    scheme.publish(newer)
    assert not scheme.is_current(resource)
    assert scheme.at_path("example.com", "v1", "lamps") is None
    obj = newer.decode(b'{"apiVersion":"example.com/v2","kind":"Lamp","metadata":{"name":"x"}}')
    assert scheme.stored_resource(obj) is newer.stored
    scheme.unpublish(newer.group_resource)
    assert scheme.at_path("example.com", "v2", "lamps") is None
    assert seen == [lamps.group_resource] * 3
    assert {key for key in BY_PATH if scheme.at_path(*key) is None} == set()

"""Server-side apply and field ownership."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.codec.limits import value_count
from api.core.config import ConfigMap
from api.core.pod import Container, Pod, PodSpec
from api.meta.types import ObjectMeta
from master.errors import StatusError
from master.registry.managed_fields import (
    APPLY,
    BEFORE_FIRST_APPLY,
    MAX_LISTED_CONFLICTS,
    MAX_MANAGERS,
    MAX_OWNED_FIELDS,
    MAX_TRACKED_VALUES,
    UPDATE,
    Applied,
    FieldConflict,
    FieldManager,
    apply,
    apply_conflict,
    bounded_apply,
    format_managers,
    format_path,
    from_fields,
    leaves,
    managers_after_update,
    managers_in,
    to_fields,
    track_update,
)
from master.resources.configuration import CONFIG_MAPS
from master.resources.custom_resource_definitions import CUSTOM_RESOURCE_DEFINITIONS
from master.resources.merge_schema import merge_schema_of
from master.resources.namespaces import PROJECTS, Project
from master.resources.pods import PODS

CONFIG_MAP, POD = merge_schema_of(ConfigMap), merge_schema_of(Pod)


def field_manager(manager: str, operation: str = APPLY, fields: Any = None) -> FieldManager:
    return FieldManager(manager, operation, "", "v1", "2026-01-01T00:00:00Z", from_fields(fields or {}))


def config_map(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "p"}, "data": data}


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [*containers], **spec}}


def fields(result: Applied, manager: str) -> Any:
    return next(to_fields(entry.fields) for entry in result.managers if entry.manager == manager)


def test_apply_create_owns_the_fields_of_its_body() -> None:
    result = apply({}, config_map(k="1"), CONFIG_MAP, (), field_manager("m1"))
    assert result.document == config_map(k="1")
    assert format_managers(result.managers) == [
        {
            "manager": "m1",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:k": {}}},
        }
    ]


def test_apply_of_an_owned_field_conflicts_unless_forced() -> None:
    first = apply({}, config_map(k="1"), CONFIG_MAP, (), field_manager("m1"))
    second = apply(first.document, config_map(k="2"), CONFIG_MAP, first.managers, field_manager("m2"))
    assert [(conflict.manager.manager, format_path(conflict.path)) for conflict in second.conflicts] == [
        ("m1", ".data.k")
    ]
    assert second.document["data"] == {"k": "2"}
    assert [format_manager["manager"] for format_manager in format_managers(second.managers)] == ["m2"]


def test_equal_value_is_owned_by_both_managers_until_both_remove_it() -> None:
    first = apply({}, config_map(k="1", x="1"), CONFIG_MAP, (), field_manager("m1"))
    second = apply(first.document, config_map(k="1"), CONFIG_MAP, first.managers, field_manager("m2"))
    assert not second.conflicts
    third = apply(second.document, config_map(), CONFIG_MAP, second.managers, field_manager("m1"))
    assert third.document["data"] == {"k": "1"}
    fourth = apply(third.document, config_map(), CONFIG_MAP, third.managers, field_manager("m2"))
    assert fourth.document["data"] == {}


def test_keyed_list_items_are_owned_individually() -> None:
    first_container, two = (
        {"name": "a", "image": "i", "env": [{"name": "X", "value": "1"}]},
        {"name": "b", "image": "j"},
    )
    first = apply({}, pod(first_container), POD, (), field_manager("m1"))
    assert fields(first, "m1") == {
        "f:spec": {
            "f:containers": {
                'k:{"name":"a"}': {
                    ".": {},
                    "f:env": {'k:{"name":"X"}': {".": {}, "f:name": {}, "f:value": {}}},
                    "f:image": {},
                    "f:name": {},
                }
            }
        }
    }
    second = apply(first.document, pod(two), POD, first.managers, field_manager("m2"))
    assert second.document["spec"]["containers"] == [first_container, two]
    third = apply(second.document, pod({"name": "a", "image": "i"}), POD, second.managers, field_manager("m1"))
    assert third.document["spec"]["containers"] == [{"name": "a", "image": "i", "env": []}, two]
    last = apply(third.document, pod(), POD, third.managers, field_manager("m2"))
    assert last.document["spec"]["containers"] == [{"name": "a", "image": "i", "env": []}]


def test_list_item_is_kept_while_any_part_is_owned() -> None:
    first = apply({}, pod({"name": "a", "image": "i"}), POD, (), field_manager("m1"))
    second = apply(first.document, pod({"name": "a", "tty": True}), POD, first.managers, field_manager("m2"))
    third = apply(second.document, pod(), POD, second.managers, field_manager("m1"))
    assert third.document["spec"]["containers"] == [{"name": "a", "tty": True}]


def test_ports_are_keyed_by_number_and_defaulted_protocol() -> None:
    tcp, udp = {"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}
    first = apply({}, pod({"name": "a", "ports": [tcp, udp]}), POD, (), field_manager("m1"))
    live = pod({"name": "a", "ports": [{"containerPort": 53, "protocol": "TCP"}, udp]})
    second = apply(live, pod({"name": "a", "ports": [tcp]}), POD, first.managers, field_manager("m1"))
    assert second.document["spec"]["containers"][0]["ports"] == [{"containerPort": 53, "protocol": "TCP"}]


def test_fields_before_the_first_apply_belong_to_a_manager() -> None:
    result = apply(config_map(k="1", x="1"), config_map(k="2"), CONFIG_MAP, (), field_manager("m1"))
    assert [(conflict.manager.manager, format_path(conflict.path)) for conflict in result.conflicts] == [
        (BEFORE_FIRST_APPLY, ".data.k")
    ]
    assert fields(result, BEFORE_FIRST_APPLY) == {"f:data": {"f:x": {}}}


def test_update_takes_ownership_of_changed_fields() -> None:
    old, new = config_map(k="1", x="1"), config_map(k="2", y="1")
    assert track_update(old, new, CONFIG_MAP, (), field_manager("edit", UPDATE)) == ()
    first = apply({}, old, CONFIG_MAP, (), field_manager("m1"))
    after = track_update(old, new, CONFIG_MAP, first.managers, field_manager("edit", UPDATE))
    assert {
        field_manager.manager: to_fields(field_manager.fields) for field_manager in after if field_manager.fields
    } == {"edit": {"f:data": {"f:k": {}, "f:y": {}}}}
    again = track_update(new, config_map(k="2"), CONFIG_MAP, after, field_manager("edit", UPDATE))
    assert {
        field_manager.manager: to_fields(field_manager.fields) for field_manager in again if field_manager.fields
    } == {"edit": {"f:data": {"f:k": {}}}}


def test_identity_fields_are_owned_by_no_manager() -> None:
    actual = leaves({**config_map(k="1"), "metadata": {"name": "c", "uid": "u", "labels": {"a": "b"}}}, CONFIG_MAP)
    assert to_fields(actual) == {"f:data": {"f:k": {}}, "f:metadata": {"f:labels": {"f:a": {}}}}


NAMES = st.sampled_from(["a", "b", "c"])
FIELD_VALUES = st.dictionaries(NAMES, st.sampled_from(["1", "2"]), max_size=3)


@given(st.lists(st.tuples(st.sampled_from(["m1", "m2"]), FIELD_VALUES), max_size=6))
def test_any_sequence_of_forced_applies_yields_the_owners_values(writes: list[tuple[str, dict[str, str]]]) -> None:
    document: dict[str, Any] = {}
    managers: tuple[FieldManager, ...] = ()
    for manager, data in writes:
        result = apply(document, config_map(**data), CONFIG_MAP, managers, field_manager(manager))
        assert {key: result.document["data"][key] for key in data} == data
        document = result.document
        managers = managers_in({"metadata": {"managedFields": format_managers(result.managers)}})
        owned = {step[1] for entry in managers for step in entry.fields if len(step) == 2}
        assert owned == {f"f:{key}" for key in document["data"]}


@given(st.recursive(st.just({}), lambda inner: st.dictionaries(st.sampled_from(["f:a", "f:b", 'k:{"n":"x"}']), inner)))
def test_field_set_round_trips_through_json(tree: Any) -> None:
    actual = from_fields(tree)
    assert from_fields(to_fields(actual)) == actual


@pytest.mark.parametrize("tree", [None, 1, [], "x", {"f:a": 1}])
def test_invalid_field_set_is_empty(tree: Any) -> None:
    assert from_fields(tree) == frozenset()


def test_conflicts_beyond_a_hundred_are_counted_and_not_listed() -> None:
    """Each manager once: the time is linear in their number."""
    conflicts = [
        FieldConflict(FieldManager(f"m{number}", UPDATE, "", "v1", "", frozenset()), ("f:data", f"f:{number}"))
        for number in range(4000)
    ]
    status = apply_conflict(conflicts).status
    assert status.message.startswith("Apply failed with 4000 conflicts: ")
    assert status.details is not None
    assert len(status.details.causes) == MAX_LISTED_CONFLICTS


@pytest.mark.parametrize(("more", "is_accepted"), [(0, True), (1, False)])
def test_object_has_at_most_500_managers(more: int, is_accepted: bool) -> None:
    entries = [{"manager": f"m{number}"} for number in range(MAX_MANAGERS + more)]
    stored = ConfigMap(metadata=ObjectMeta(name="c"))
    manager = FieldManager("kubectl", UPDATE, "", "v1", "", frozenset())
    sent = {"metadata": {"managedFields": entries}}
    if is_accepted:
        managers_after_update(CONFIG_MAPS, stored, stored, sent, manager)
        return
    with pytest.raises(StatusError, match="500 are accepted"):
        managers_after_update(CONFIG_MAPS, stored, stored, sent, manager)


def test_projection_does_not_replace_the_managers_of_its_object() -> None:
    """The labels of Pod Security follow from who manages them."""
    recorded = format_managers([FieldManager("owner", UPDATE, "", "v1", "", frozenset({("f:metadata", "f:labels")}))])
    project = Project(metadata=ObjectMeta(name="p", managed_fields=recorded))
    sent = {"metadata": {"managedFields": [{"manager": "tenant"}]}}
    manager = FieldManager("tenant", UPDATE, "", Project.API_VERSION, "", frozenset())
    managers = managers_after_update(PROJECTS, project, project, sent, manager)
    assert {each.manager for each in managers} == {"owner"}


def test_update_takes_ownership_of_fields_of_list_items() -> None:
    image = ("f:spec", "f:containers", 'k:{"name":"c"}', "f:image")
    owner = FieldManager("owner", APPLY, "", "v1", "", frozenset({image}))
    pods = [
        Pod(
            metadata=ObjectMeta(name="p", managed_fields=format_managers([owner])),
            spec=PodSpec(containers=(Container(name="c", image=text),)),
        )
        for text in ("old", "new")
    ]
    editor = FieldManager("editor", UPDATE, "", "v1", "", frozenset())
    managers = managers_after_update(PODS, pods[0], pods[1], {}, editor)
    assert {manager.manager: manager.fields for manager in managers} == {"owner": frozenset(), "editor": {image}}


# --- limits -----------------------------------------------------------------------------------------------------------


def config_map_with(number: int) -> dict[str, Any]:
    return {"metadata": {"name": "c"}, "data": {f"k{index}": "" for index in range(number)}}


APPLIER = FieldManager("applier", APPLY, "", "v1", "", frozenset())
WITHOUT_DATA = value_count(config_map_with(0))


@pytest.mark.parametrize("is_live", [True, False])
def test_apply_to_or_of_a_large_object_is_rejected(is_live: bool) -> None:
    small, shape = config_map_with(1), CONFIG_MAPS.merge_schema
    for more in (0, 1):
        large = config_map_with(MAX_TRACKED_VALUES - WITHOUT_DATA + more)
        live, applied = (large, small) if is_live else (small, large)
        if more:
            with pytest.raises(StatusError, match=f"more than {MAX_TRACKED_VALUES} values"):
                bounded_apply(live, applied, shape, APPLIER)
        else:
            assert bounded_apply(live, applied, shape, APPLIER).managers


def test_values_that_are_owned_as_a_whole_count_as_one() -> None:
    properties = {f"p{index}": {"type": "string"} for index in range(MAX_TRACKED_VALUES)}
    version = {"name": "v1", "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}}
    document = {"metadata": {"name": "a.b"}, "spec": {"group": "b", "versions": [version]}}
    shape = CUSTOM_RESOURCE_DEFINITIONS.merge_schema
    (created,) = bounded_apply({}, document, shape, APPLIER).managers
    assert created.fields == {("f:spec", "f:group"), ("f:spec", "f:versions")}
    live = {**document, "metadata": {"name": "a.b", "managedFields": format_managers((created,))}}
    again = bounded_apply(live, document, shape, APPLIER)
    assert (again.document, again.managers, again.conflicts) == (live, (created,), ())


def with_managers(document: dict[str, Any], number: int, size: int) -> dict[str, Any]:
    """Return the document with managers, each of which has so many of its fields."""
    owned = frozenset(("f:data", f"f:k{index}") for index in range(size))
    entries = format_managers(replace(APPLIER, manager=f"m{index}", fields=owned) for index in range(number))
    return {**document, "metadata": {**document["metadata"], "managedFields": entries}}


def test_apply_that_gives_managers_too_many_fields_is_rejected() -> None:
    size = MAX_OWNED_FIELDS // 4
    document = config_map_with(size)
    accepted = bounded_apply(with_managers(document, 3, size), document, CONFIG_MAPS.merge_schema, APPLIER)
    assert sum(len(manager.fields) for manager in accepted.managers) == MAX_OWNED_FIELDS
    with pytest.raises(StatusError, match=f"more than {MAX_OWNED_FIELDS} fields"):
        bounded_apply(with_managers(document, 4, size), document, CONFIG_MAPS.merge_schema, APPLIER)


@pytest.mark.parametrize(("more", "is_tracked"), [(0, True), (1, False)])
def test_record_of_managers_ends_when_an_update_makes_the_object_large(more: int, is_tracked: bool) -> None:
    documents = config_map_with(1), config_map_with(MAX_TRACKED_VALUES - WITHOUT_DATA + more)
    old, new = (msgspec.convert(with_managers(document, 1, 1), ConfigMap) for document in documents)
    managers = managers_after_update(CONFIG_MAPS, old, new, {}, replace(APPLIER, manager="editor", operation=UPDATE))
    assert [manager.manager for manager in managers] == (["m0", "editor"] if is_tracked else [])


@pytest.mark.parametrize(("more", "is_accepted"), [(0, True), (1, False)])
def test_client_gives_managers_at_most_so_many_fields(more: int, is_accepted: bool) -> None:
    stored = ConfigMap(metadata=ObjectMeta(name="c"))
    sent = with_managers(config_map_with(1), 2, MAX_OWNED_FIELDS // 2 + more)
    if is_accepted:
        assert len(managers_after_update(CONFIG_MAPS, stored, stored, sent, APPLIER)) == 2
        return
    with pytest.raises(StatusError, match=f"more than {MAX_OWNED_FIELDS} fields"):
        managers_after_update(CONFIG_MAPS, stored, stored, sent, APPLIER)


def test_manager_without_a_time_is_stored_without_one() -> None:
    """An empty time is not valid, so the next write of the object would be rejected."""
    manager = replace(APPLIER, fields=frozenset({("f:data",)}))
    assert "time" not in format_managers([manager])[0]
    assert format_managers([replace(manager, time="2026-01-01T00:00:00Z")])[0]["time"] == "2026-01-01T00:00:00Z"

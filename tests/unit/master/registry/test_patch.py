"""JSON merge, JSON and strategic merge patches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.codec.limits import MAX_VALUES
from api.core.pod import Pod
from master.registry.patch import MAX_MERGED_VALUES, merge_patch
from master.registry.patch import strategic_merge_patch as strategic_by_shape
from master.resources.merge_schema import OPEN, MergeKind, MergeSchema, merge_schema_of
from master.serialization.json_patch import MAX_OPERATIONS, MAX_SHIFTED_ITEMS, InvalidPatch, json_patch

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "~/"]), inner, max_size=3),
    max_leaves=8,
)

# The test cases in the appendix of RFC 7386.
RFC_7386 = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), RFC_7386)
def test_merge_patch_follows_rfc_7386(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


# From the appendix of RFC 6902.
RFC_6902 = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
    ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
    ({"baz": "qux"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo"}),
    (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        {"a": 1},
        [{"op": "test", "path": "/a", "value": 1}, {"op": "copy", "from": "/a", "path": "/b"}],
        {"a": 1, "b": 1},
    ),
    ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["abc"]}], {"foo": ["bar", ["abc"]]}),
    ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    ({"a": 1}, [{"op": "replace", "path": "", "value": 2}], 2),
]


@pytest.mark.parametrize(("target", "operations", "result"), RFC_6902)
def test_json_patch_follows_rfc_6902(target: Any, operations: Any, result: Any) -> None:
    assert json_patch(target, operations) == result


@pytest.mark.parametrize(
    "operations",
    [
        {"op": "add"},
        [{"op": "add", "path": "a", "value": 1}],
        [{"op": "add", "path": "/x/y", "value": 1}],
        [{"op": "add", "path": "/l/3", "value": 1}],
        [{"op": "add", "path": "/l/01", "value": 1}],
        [{"op": "add", "path": "/l/-1", "value": 1}],
        [{"op": "add", "path": "/a"}],
        [{"op": "remove", "path": "/none"}],
        [{"op": "remove", "path": "/l/-"}],
        [{"op": "replace", "path": "/none", "value": 1}],
        [{"op": "test", "path": "/a", "value": True}],
        [{"op": "move", "from": "/m", "path": "/m/x"}],
        [{"op": "copy", "path": "/b"}],
        [{"op": "shake", "path": "/a"}],
        ["add"],
    ],
    ids=str,
)
def test_failed_json_patch_changes_nothing(operations: Any) -> None:
    document = {"a": 1, "l": [1, 2], "m": {"x": 1}}
    with pytest.raises(InvalidPatch):
        json_patch(document, operations)
    assert document == {"a": 1, "l": [1, 2], "m": {"x": 1}}


SHAPE = MergeSchema(
    MergeKind.STRUCT, fields={**merge_schema_of(Pod).fields, "finalizers": MergeSchema(MergeKind.SET, items=OPEN)}
)


def strategic(document: Any, patch: Any) -> Any:
    return strategic_by_shape(document, patch, SHAPE)


POD = {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2", "env": [{"name": "X"}]}]}}


def containers(document: Any) -> list[Any]:
    actual: list[Any] = document["spec"]["containers"]
    return actual


def test_strategic_patch_merges_items_by_key() -> None:
    patch = {"spec": {"containers": [{"name": "b", "image": "3", "env": [{"name": "Y", "value": "1"}]}]}}
    assert containers(strategic(POD, patch)) == [
        {"name": "a", "image": "1"},
        {"name": "b", "image": "3", "env": [{"name": "Y", "value": "1"}, {"name": "X"}]},
    ]


def test_strategic_patch_deletes_replaces_and_orders_items() -> None:
    assert containers(strategic(POD, {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}})) == [
        {"name": "b", "image": "2", "env": [{"name": "X"}]}
    ]
    assert containers(strategic(POD, {"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}})) == [
        {"name": "z"}
    ]
    ordered = {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "c"}]}}
    assert [container["name"] for container in containers(strategic(POD, ordered))] == ["b", "a", "c"]


def test_strategic_patch_directives_apply_to_maps_and_sets() -> None:
    document = {"a": {"x": 1, "y": 2}, "finalizers": ["one", "two"], "list": [1, 2]}
    assert strategic(document, {"a": {"$patch": "replace", "z": 3}})["a"] == {"z": 3}
    assert strategic(document, {"a": {"$retainKeys": ["y"], "w": 1}})["a"] == {"y": 2, "w": 1}
    assert strategic(document, {"a": {"x": None}})["a"] == {"y": 2}
    assert strategic(document, {"finalizers": ["two", "three"]})["finalizers"] == ["one", "two", "three"]
    assert strategic(document, {"$deleteFromPrimitiveList/finalizers": ["one"]})["finalizers"] == ["two"]
    assert strategic(document, {"list": [3]})["list"] == [3]


@pytest.mark.parametrize(
    "patch",
    [[], {"$patch": "shake"}, {"spec": {"containers": [{"image": "1"}]}}, {"$deleteFromPrimitiveList/a": 1, "a": 1}],
)
def test_strategic_patch_reports_what_does_not_fit(patch: Any) -> None:
    with pytest.raises(InvalidPatch):
        strategic({**POD, "a": [1]}, patch)


@given(JSON, JSON)
def test_merge_patch_is_idempotent_and_keeps_its_arguments(target: Any, patch: Any) -> None:
    before = repr((target, patch))
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert repr((target, patch)) == before


@given(JSON, JSON)
def test_json_and_strategic_patch_raise_only_patch_errors(target: Any, patch: Any) -> None:
    before = repr((target, patch))
    for apply in (json_patch, strategic):
        try:
            apply(target, patch)
        except InvalidPatch:
            pass
    assert repr((target, patch)) == before


def test_json_patch_that_doubles_the_document_is_rejected() -> None:
    doubling = [{"op": "copy", "from": "", "path": f"/x{number}"} for number in range(40)]
    with pytest.raises(InvalidPatch, match="copies more than"):
        json_patch({"a": "b" * 100}, doubling)
    assert len(json_patch({"a": "b"}, doubling[:3])) == 4


def test_json_patch_with_too_many_operations_is_rejected() -> None:
    with pytest.raises(InvalidPatch, match="10001 operations"):
        json_patch({}, [{"op": "add", "path": "/a", "value": 1}] * 10_001)


@pytest.mark.parametrize("index", ["9" * 5000, "\N{SUPERSCRIPT TWO}", "01"])
def test_json_patch_index_that_is_no_number_is_rejected(index: str) -> None:
    with pytest.raises(InvalidPatch):
        json_patch({"a": [1, 2]}, [{"op": "remove", "path": f"/a/{index}"}])


def test_json_patch_that_makes_a_document_too_deep_is_rejected() -> None:
    wrap = [
        {"op": "add", "path": "/b", "value": {}},
        {"op": "move", "from": "/a", "path": "/b/a"},
        {"op": "move", "from": "/b", "path": "/a"},
    ]
    assert json_patch({"a": {}}, wrap * 60)
    for count in (65, 3_333):
        with pytest.raises(InvalidPatch, match="the result has more than 64 levels"):
            json_patch({"a": {}}, wrap * count)
    with pytest.raises(InvalidPatch, match="the result has more than 64 levels"):
        json_patch({"a": {}}, [*wrap * 3_000, {"op": "copy", "from": "/a", "path": "/c"}])


def test_json_pointer_with_too_many_parts_is_rejected_with_a_short_message() -> None:
    for operation in ("add", "remove", "replace", "test", "move", "copy"):
        patch = [{"op": operation, "path": "/a" * 100_000, "from": "/a", "value": 1}]
        with pytest.raises(InvalidPatch) as caught:
            json_patch({"a": {}}, patch)
        assert len(str(caught.value)) < 400
    with pytest.raises(InvalidPatch) as caught:
        json_patch({"a": {}}, [{"op": "add", "path": "a" * 100_000, "value": 1}])
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "move", "from": "/a/0", "path": "/a/9999"},
        {"op": "add", "path": "/a/0", "value": 1},
        {"op": "remove", "path": "/a/0"},
        {"op": "copy", "from": "/b", "path": "/a/0"},
    ],
    ids=lambda operation: operation["op"],
)
def test_json_patch_that_shifts_a_long_list_often_is_rejected(operation: Any) -> None:
    document = {"a": [0] * 11_000, "b": 1}
    json_patch(document, [operation] * 1000)
    with pytest.raises(InvalidPatch, match=f"shifts more than {MAX_SHIFTED_ITEMS} items"):
        json_patch(document, [operation] * MAX_OPERATIONS)


@pytest.mark.parametrize(
    "operation",
    [{"op": "replace", "path": "/a/0", "value": 1}, {"op": "add", "path": "/a/-", "value": 1}],
    ids=lambda operation: operation["op"],
)
def test_json_patch_that_shifts_nothing_may_have_all_operations(operation: Any) -> None:
    assert (
        json_patch({"a": [0] * 11_000}, [operation] * MAX_OPERATIONS)["a"][-1 if "-" in operation["path"] else 0] == 1
    )


LONG = {"name": "c", "env": [{"name": f"E{number}"} for number in range(1000)]}


@pytest.mark.parametrize(
    "part",
    [{"env": []}, {"env": [{"name": "E0"}]}, {"$deleteFromPrimitiveList/env": []}, {"$setElementOrder/env": []}, {}],
)
def test_strategic_patch_that_names_a_large_item_often_is_rejected(part: Any) -> None:
    document = {
        "spec": {"containers": [LONG], "initContainers": [{"name": "c", **dict.fromkeys(map(str, range(999)))}]}
    }
    field = "containers" if part else "initContainers"

    def patch(times: int) -> Any:
        return {"spec": {field: [{"name": "c", **part}] * times}}

    assert strategic(document, patch(10))["spec"]["containers"][0]["name"] == "c"
    with pytest.raises(InvalidPatch, match=f"merges more than {MAX_MERGED_VALUES} items"):
        strategic(document, patch(1000))


@pytest.mark.parametrize("key", [{"x": "a" * 1000}, [1], {}])
def test_strategic_patch_with_a_key_that_is_no_scalar_is_rejected(key: Any) -> None:
    """Each item with the same key would compare all of it."""
    document = {"spec": {"containers": [{"name": "c", "ports": []}]}}

    def patch(port: Any) -> Any:
        return {"spec": {"containers": [{"name": "c", "ports": [{"containerPort": port}] * 3}]}}

    assert strategic(document, patch(80))["spec"]["containers"][0]["ports"] == [{"containerPort": 80}]
    with pytest.raises(InvalidPatch, match="an item of ports has a containerPort that is a map or a list"):
        strategic(document, patch(key))


def test_strategic_patch_of_the_most_values_is_accepted() -> None:
    env = [{"name": f"E{number}"} for number in range(MAX_VALUES // 4)]
    patch = {"spec": {"containers": [{"name": "c", "env": env, "$setElementOrder/env": env}]}}
    document = {"spec": {"containers": [{"name": "c", "env": env[::-1]}]}}
    assert strategic(document, patch)["spec"]["containers"][0]["env"] == env

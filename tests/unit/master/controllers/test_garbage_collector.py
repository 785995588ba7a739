"""Dependents of deleted objects, and owners that wait for them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.config import ConfigMap
from api.core.events import Event
from api.core.node import Namespace
from api.meta.types import Object, OwnerReference
from master.controllers.actions import Create, Delete, Failed, Update, WriteAction
from master.controllers.events import invalid_owner_namespace
from master.controllers.garbage_collector import (
    MAX_OWNER_EVENTS,
    concerns_garbage_collector,
    owner_is_resolvable,
    reconcile,
)
from master.registry.strategy import FOREGROUND, ORPHAN
from master.resources.metadata import parse_time
from master.resources.scheme import group_resource
from master.storage.interface import Key, Record, WatchEvent
from tests.unit.master.examples import THEN, meta

MOST_PASSES = 50


def config_map(words: str) -> ConfigMap:
    """`NAME[!FINALIZER] [OWNER ...]`: with a `!` it is deleted; an owner with a `*` is not held up by it."""
    head, *owners = words.split()
    name, deleted, finalizer = head.partition("!")
    owner_references = tuple(_owner(owner.lstrip("*"), blocks=not owner.startswith("*")) for owner in owners)
    return ConfigMap(
        metadata=meta(
            name,
            deletion_timestamp=THEN if deleted else None,
            finalizers=(finalizer,) if finalizer else (),
            owner_references=owner_references,
        )
    )


def _owner(name: str, *, blocks: bool) -> OwnerReference:
    kind = "Song" if name.startswith("song") else "ConfigMap"
    return OwnerReference(api_version="v1", kind=kind, name=name, uid=f"uid-{name}", block_owner_deletion=blocks)


def shown(actual: Object) -> str:
    owner_references = actual.metadata.owner_references
    owners = [("" if owner.block_owner_deletion else "*") + owner.name for owner in owner_references]
    return " ".join([actual.metadata.name + "".join(f"!{name}" for name in actual.metadata.finalizers), *owners])


def written(*objects: str) -> list[str]:
    """Return the writes: `+` and the updated object, or `-`, the deleted object and the policy."""
    return _lines([config_map(words) for words in objects])


def _lines(objects: Sequence[Object]) -> list[str]:
    writes = list(reconcile(objects, _is_config_map, _cross_namespace_event))
    return [
        f"- {write.object.metadata.name} {write.policy}" if isinstance(write, Delete) else f"+ {shown(write.object)}"
        for write in writes
        if not isinstance(write, Create)
    ] + [
        f"! {write.object.message}" for write in writes if isinstance(write, Create) and isinstance(write.object, Event)
    ]


def _cross_namespace_event(obj: Object, owner: OwnerReference) -> Create:
    return invalid_owner_namespace(obj, owner, parse_time(THEN) or datetime.datetime.min)


@pytest.mark.parametrize(
    ("objects", "writes"),
    [
        (["a", "b a"], []),
        (["b a"], ["- b Background"]),
        (["a", "b a c"], ["+ b a"]),
        (["b song"], []),
        (["b a song"], ["+ b song"]),
        ([f"a!{ORPHAN}", "b a c", "c"], ["+ b c", "+ a"]),
        ([f"a!{FOREGROUND}", "b a"], ["- b Background"]),
        ([f"a!{FOREGROUND}", "b *a"], ["- b Background", "+ a"]),
        ([f"a!{FOREGROUND}"], ["+ a"]),
        ([f"a!{FOREGROUND}", "b a", "c b"], ["- b Foreground"]),
        ([f"a!{FOREGROUND}", "b a c", "c"], ["+ b c"]),
        ([f"a!{FOREGROUND}", "b a song"], ["+ b song"]),
        ([f"a!{FOREGROUND}", "b a c", f"c!{FOREGROUND}"], ["- b Background"]),
        ([f"a!{FOREGROUND} b", "b a"], ["+ b *a"]),
        ([f"a!{FOREGROUND} b", "b *a"], ["- b Foreground", "+ a b"]),
    ],
)
def test_garbage_collector_deletes_orphans_or_keeps_dependents(objects: list[str], writes: list[str]) -> None:
    assert written(*objects) == writes


@pytest.mark.parametrize(
    ("finalizer", "policy"), [(ORPHAN, "Orphan"), (FOREGROUND, "Foreground"), ("a.io/b", "Background")]
)
@pytest.mark.parametrize("owners", [[], [f"a!{FOREGROUND}"]], ids=["owner is gone", "owner waits"])
def test_dependent_is_deleted_with_the_policy_of_its_finalizer(owners: list[str], finalizer: str, policy: str) -> None:
    dependent = config_map("b a")
    dependent = replace(dependent, metadata=replace(dependent.metadata, finalizers=(finalizer,)))
    assert _lines([*map(config_map, owners), dependent]) == [f"- b {policy}"]


OWNER: dict[str, Any] = {"kind": "ConfigMap", "name": "a", "uid": "uid-a"}
ELSEWHERE = '! ownerRef [v1/ConfigMap, namespace: red, name: a, uid: uid-a] does not exist in namespace "red"'


@pytest.mark.parametrize("finalizers", [(), (FOREGROUND,), (ORPHAN,)], ids=str)
@pytest.mark.parametrize(
    ("namespace", "fields", "is_owner"),
    [
        ("red", {}, True),
        ("", {}, True),
        ("blue", {}, False),
        ("red", {"name": "b"}, False),
        ("red", {"kind": "Secret"}, False),
    ],
    ids=str,
)
def test_owner_reference_matches_namespace_kind_name_and_uid(
    finalizers: tuple[str, ...], namespace: str, fields: dict[str, Any], is_owner: bool
) -> None:
    """A reference that does not match neither keeps its dependent nor makes the owner wait for it."""
    deleted = THEN if finalizers else None
    owner = ConfigMap(metadata=meta("a", namespace=namespace, finalizers=finalizers, deletion_timestamp=deleted))
    rows = (OwnerReference(api_version="v1", block_owner_deletion=True, **(OWNER | fields)),)
    dependent = ConfigMap(metadata=meta("b", namespace="red", owner_references=rows))
    writes = list(reconcile([owner, dependent], lambda *_: True, _cross_namespace_event))
    ends = Delete(dependent) in writes
    goes_on = any(isinstance(write, Update) and write.before is owner for write in writes)
    if is_owner:
        assert (ends, goes_on) == (finalizers == (FOREGROUND,), finalizers == (ORPHAN,))
    else:
        assert (ends, goes_on) == (True, bool(finalizers))


def test_owner_reference_to_another_namespace_is_reported() -> None:
    owner = ConfigMap(metadata=meta("a", namespace="blue"))
    rows = (OwnerReference(api_version="v1", **OWNER),)
    assert _lines([owner, ConfigMap(metadata=meta("b", namespace="red", owner_references=rows))]) == [
        "- b Background",
        ELSEWHERE,
    ]
    assert _lines([ConfigMap(metadata=meta("b", namespace="red", owner_references=rows))]) == ["- b Background"]


def passes(*objects: str) -> tuple[int, dict[str, str]]:
    """Apply passes until nothing is left to do. Return their number, and the objects that are left."""
    left = {words[0]: config_map(words) for words in objects}
    for number in range(MOST_PASSES):
        writes = list(reconcile(list(left.values()), _is_config_map, _cross_namespace_event))
        if not writes:
            return number, {name: shown(obj) for name, obj in left.items()}
        for write in writes:
            _apply(left, write)
    raise AssertionError("there is always something left to do")


def test_dependent_of_two_owners_that_orphan_it_at_once_stays() -> None:
    assert passes(f"a!{ORPHAN}", f"b!{ORPHAN}", "c a b") == (2, {"c": "c"})


def test_dependent_of_an_owner_that_waits_and_one_that_orphans_it_loses_no_reference_early() -> None:
    assert written(f"a!{FOREGROUND}", f"b!{ORPHAN}", "c a b") == ["+ c b"]
    assert passes(f"a!{FOREGROUND}", f"b!{ORPHAN}", "c a b")[1] == {"c": "c"}


def test_repeated_owner_references_are_counted_once() -> None:
    """One object that names a waiting owner 20,000 times would otherwise cost 400,000,000 steps in each pass."""
    owner = config_map(f"a!{FOREGROUND}")
    references = (*[_owner("a", blocks=False)] * 20_000, _owner("a", blocks=True))
    waiting = ConfigMap(metadata=meta("b", deletion_timestamp=THEN, finalizers=("x/y",), owner_references=references))
    assert list(reconcile([owner, waiting], _is_config_map, _cross_namespace_event)) == []


def test_events_about_owners_in_other_namespaces_are_limited() -> None:
    owners = [ConfigMap(metadata=meta(f"a{n}", namespace="blue", uid=f"uid-{n}")) for n in range(100)]
    rows = tuple(OwnerReference(api_version="v1", kind="ConfigMap", name=f"a{n}", uid=f"uid-{n}") for n in range(100))
    dependent = ConfigMap(metadata=meta("b", namespace="red", owner_references=rows * 2))
    writes = list(reconcile([*owners, dependent], _is_config_map, _cross_namespace_event))
    assert sum(isinstance(write, Create) for write in writes) == MAX_OWNER_EVENTS
    assert writes[-1] == Delete(dependent)


@pytest.mark.parametrize(
    ("api_version", "kind", "can_be_resolved"),
    [
        ("batch/v1", "CronJob", True),
        ("batch/v1beta1", "CronJob", True),
        ("autoscaling/v1", "HorizontalPodAutoscaler", True),
        ("batch/v2", "CronJob", False),
        ("v1", "CronJob", False),
        ("coordination.k8s.io/v1", "Lease", False),
    ],
)
def test_owner_is_resolved_in_every_served_version(api_version: str, kind: str, can_be_resolved: bool) -> None:
    reference = OwnerReference(api_version=api_version, kind=kind, name="a", uid="u")
    assert owner_is_resolvable(reference, ConfigMap(metadata=meta("b", namespace="red"))) is can_be_resolved


def test_object_owned_by_a_lease_is_kept() -> None:
    """The garbage collector does not read leases, so it cannot tell whether one exists."""
    rows = (OwnerReference(api_version="coordination.k8s.io/v1", kind="Lease", name="a", uid="uid-a"),)
    dependent = ConfigMap(metadata=meta("b", namespace="red", owner_references=rows))
    assert list(reconcile([dependent], owner_is_resolvable, _cross_namespace_event)) == []


def test_cluster_scoped_object_with_a_namespaced_owner_is_kept() -> None:
    """The object stays, and its owner does not wait for it."""
    owner = ConfigMap(metadata=meta("a", namespace="red", finalizers=(FOREGROUND,), deletion_timestamp=THEN))
    rows = (OwnerReference(api_version="v1", block_owner_deletion=True, **OWNER),)
    dependent = Namespace(metadata=meta("b", owner_references=rows))
    writes = list(reconcile([owner, dependent], owner_is_resolvable, _cross_namespace_event))
    assert [write.object.metadata.name for write in writes] == ["a"]
    assert list(reconcile([dependent], owner_is_resolvable, _cross_namespace_event)) == []
    inside = ConfigMap(metadata=meta("b", namespace="red", owner_references=rows))
    assert list(reconcile([inside], owner_is_resolvable, _cross_namespace_event)) == [Delete(inside)]


@given(st.lists(st.sets(st.integers(0, 5), max_size=3), min_size=1, max_size=6))
def test_foreground_deletion_always_completes(owners: list[set[int]]) -> None:
    """This includes cycles. Objects that do not descend from it stay unchanged, and no object refers to a deleted
    owner.
    """
    rows = {str(n): [str(owner) for owner in sorted(actual) if owner < len(owners)] for n, actual in enumerate(owners)}
    objects = {name: config_map(" ".join([name, *owner_names])) for name, owner_names in rows.items()}
    unrelated = {name: objects[name] for name in rows if "0" not in _above(name, rows)}
    objects["0"] = _ended(objects["0"], "Foreground")
    for _ in range(MOST_PASSES):
        writes = list(reconcile(list(objects.values()), lambda *_: True, _cross_namespace_event))
        for write in writes:
            _apply(objects, write)
        if not writes:
            break
    assert not writes
    assert "0" not in objects
    assert {name: objects[name] for name in unrelated} == unrelated
    assert {
        owner_reference.name for obj in objects.values() for owner_reference in obj.metadata.owner_references
    } <= set(objects)


def _event(type_: str, new: ConfigMap, old: ConfigMap | None = None) -> WatchEvent:
    key = Key.of(group_resource(ConfigMap), new)
    previous = None if old is None else Record(key, 1, b"", ConfigMap, old)
    return WatchEvent(type_, Record(key, 2, b"", ConfigMap, new), previous)


@pytest.mark.parametrize(
    ("old", "new", "triggers"),
    [
        ("", "a", False),
        ("", "a owner", True),
        ("a owner", "a owner", False),
        ("a", "a owner", True),
        ("a *owner", "a owner", True),
        ("a", f"a!{FOREGROUND}", True),
        (f"a!{FOREGROUND}", f"a!{ORPHAN}", True),
    ],
)
def test_event_triggers_a_pass_if_ownership_or_deletion_changed(old: str, new: str, triggers: bool) -> None:
    changed = replace(config_map(new), data={"k": "v"})
    event = _event("MODIFIED", changed, config_map(old)) if old else _event("ADDED", changed)
    assert concerns_garbage_collector(event) is triggers
    assert concerns_garbage_collector(_event("DELETED", changed))


def test_event_triggers_a_pass_when_an_object_with_a_finalizer_is_deleted() -> None:
    deleted = config_map(f"a!{FOREGROUND}")
    alive = replace(deleted, metadata=replace(deleted.metadata, deletion_timestamp=None))
    assert concerns_garbage_collector(_event("MODIFIED", deleted, alive))


OWNERS = st.lists(st.sampled_from(["a", "b", "*c", "d", "song"]), max_size=2, unique=True)
DELETION = st.sampled_from(["", f"!{FOREGROUND}", f"!{ORPHAN}", "!song.example/keep"])


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from("abcd"), st.tuples(DELETION, OWNERS)), st.sampled_from("abcd"), DELETION, OWNERS)
def test_nothing_is_left_to_do_after_an_event_that_triggers_no_pass(
    before: dict[str, tuple[str, list[str]]], name: str, deletion: str, owners: list[str]
) -> None:
    objects = {name: config_map(" ".join([name + deletion, *owners])) for name, (deletion, owners) in before.items()}
    while writes := list(reconcile(list(objects.values()), _is_config_map, _cross_namespace_event)):
        for write in writes:
            _apply(objects, write)
    new, old = config_map(" ".join([name + deletion, *owners])), objects.get(name)
    if not concerns_garbage_collector(_event("ADDED" if old is None else "MODIFIED", new, old)):
        objects[name] = new
        assert list(reconcile(list(objects.values()), _is_config_map, _cross_namespace_event)) == []


def _is_config_map(owner: OwnerReference, _: Object) -> bool:
    return owner.kind == "ConfigMap"


def _apply(objects: dict[str, ConfigMap], write: WriteAction | Failed) -> None:
    """Apply a write as the API server does: an object without finalizers is gone once it is deleted."""
    if isinstance(write, Create):
        return
    left = _ended(write.object, write.policy) if isinstance(write, Delete) else write.object
    assert isinstance(left, ConfigMap)
    objects[left.metadata.name] = left
    if left.metadata.deletion_timestamp and not left.metadata.finalizers:
        del objects[left.metadata.name]


def _above(name: str, rows: Mapping[str, list[str]]) -> set[str]:
    """Return an object and all its ancestors."""
    actual, todo = set(), [name]
    while todo:
        if (owner := todo.pop()) not in actual:
            actual.add(owner)
            todo += rows[owner]
    return actual


def _ended(obj: Any, policy: str) -> Any:
    meta = obj.metadata
    finalizers = (FOREGROUND,) if policy == "Foreground" else ()
    return replace(obj, metadata=replace(meta, deletion_timestamp=THEN, finalizers=finalizers))

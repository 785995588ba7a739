"""What becomes of the dependents of an object, and of who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.configuration import ConfigMap
from api.objects import Object, OwnerReference
from master.controllers.dependents import passes
from master.writing.outcomes import End
from master.writing.writes import FOREGROUND, ORPHAN
from tests.unit.master.make import THEN, meta

MOST_PASSES = 50


def item(words: str) -> ConfigMap:
    """`NAME[!FINALIZER] [OWNER ...]`: with a `!` it is deleted; an owner with a `*` is not held up by it."""
    head, *owners = words.split()
    name, deleted, finalizer = head.partition("!")
    rows = tuple(_owner(owner.lstrip("*"), blocks=not owner.startswith("*")) for owner in owners)
    return ConfigMap(
        metadata=meta(
            name,
            deletion_timestamp=THEN if deleted else None,
            finalizers=(finalizer,) if finalizer else (),
            owner_references=rows,
        )
    )


def _owner(name: str, *, blocks: bool) -> OwnerReference:
    kind = "Song" if name.startswith("song") else "ConfigMap"
    return OwnerReference(api_version="v1", kind=kind, name=name, uid=f"uid-{name}", block_owner_deletion=blocks)


def shown(found: Object) -> str:
    rows = found.metadata.owner_references
    owners = [("" if row.block_owner_deletion else "*") + row.name for row in rows]
    return " ".join([found.metadata.name + "".join(f"!{name}" for name in found.metadata.finalizers), *owners])


def written(*objects: str) -> list[str]:
    """`+` the object as it is left, `-` what ends and with which policy."""
    writes = passes([item(words) for words in objects], lambda row: row.kind == "ConfigMap")
    return [
        f"- {write.item.metadata.name} {write.policy}" if isinstance(write, End) else f"+ {shown(write.item)}"
        for write in writes
    ]


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
def test_who_ends_and_who_stays(objects: list[str], writes: list[str]) -> None:
    assert written(*objects) == writes


@given(st.lists(st.sets(st.integers(0, 5), max_size=3), min_size=1, max_size=6))
def test_an_owner_that_waits_goes_in_the_end_whoever_belongs_to_whom(owners: list[set[int]]) -> None:
    """Also in circles. What does not descend from it is left as it is, and nobody keeps an owner that is gone."""
    rows = {str(n): [str(owner) for owner in sorted(found) if owner < len(owners)] for n, found in enumerate(owners)}
    objects = {name: item(" ".join([name, *found])) for name, found in rows.items()}
    unrelated = {name: objects[name] for name in rows if "0" not in _above(name, rows)}
    objects["0"] = _ended(objects["0"], "Foreground")
    for _ in range(MOST_PASSES):
        writes = list(passes(list(objects.values()), lambda _: True))
        for write in writes:
            left = _ended(write.item, write.policy) if isinstance(write, End) else write.item
            assert isinstance(left, ConfigMap)
            objects[left.metadata.name] = left
            if left.metadata.deletion_timestamp and not left.metadata.finalizers:
                del objects[left.metadata.name]
        if not writes:
            break
    assert not writes
    assert "0" not in objects
    assert {name: objects[name] for name in unrelated} == unrelated
    assert {row.name for one in objects.values() for row in one.metadata.owner_references} <= set(objects)


def _above(name: str, rows: Mapping[str, list[str]]) -> set[str]:
    """An object, its owners, theirs and so on."""
    found, todo = set(), [name]
    while todo:
        if (one := todo.pop()) not in found:
            found.add(one)
            todo += rows[one]
    return found


def _ended(one: Any, policy: str) -> Any:
    meta = one.metadata
    finalizers = (FOREGROUND,) if policy == "Foreground" else ()
    return replace(one, metadata=replace(meta, deletion_timestamp=THEN, finalizers=finalizers))

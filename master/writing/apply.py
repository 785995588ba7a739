"""Server-side apply: who owns which field, what an apply changes, and where two who apply disagree. Pure.

The rules are those of structured-merge-diff, with one difference: owners are recorded from the first apply on. What an
object had before is then owned by `before-first-apply`, as with servers that began without the record. Objects to which
nobody ever applied, pods and leases above all, carry no record and cost none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from master.kinds.shape import OPEN, Form, Shape
from master.writing.field_sets import FieldSet, Path, from_fields, leaves, step_of, to_fields

Json = Any

APPLY, UPDATE = "Apply", "Update"
BEFORE = "before-first-apply"


@dataclass(frozen=True, slots=True)
class Owner:
    """One row of `metadata.managedFields`. `time` is when its fields last changed."""

    manager: str
    operation: str
    subresource: str
    api_version: str
    time: str
    fields: FieldSet

    @property
    def identity(self) -> tuple[str, str, str]:
        """By which an owner is known from one write to the next."""
        return self.manager, self.operation, self.subresource


@dataclass(frozen=True, slots=True)
class Conflict:
    """A field that an apply would change although somebody else owns it."""

    owner: Owner
    path: Path


@dataclass(frozen=True, slots=True)
class Applied:
    """The document after an apply, who owns what in it, and what it may not change unless it is forced to."""

    document: dict[str, Json]
    owners: tuple[Owner, ...]
    conflicts: tuple[Conflict, ...]


def owners_in(document: Mapping[str, Json]) -> tuple[Owner, ...]:
    """The owners that `metadata.managedFields` tells; rows that have not its form are left out."""
    metadata = document.get("metadata")
    managed = metadata.get("managedFields") if isinstance(metadata, dict) else None
    rows = managed if isinstance(managed, list | tuple) else ()
    return tuple(_owner(row) for row in rows if isinstance(row, dict) and row.get("manager"))


def _owner(row: Mapping[str, Json]) -> Owner:
    def text(key: str) -> str:
        return str(row.get(key) or "")

    fields = from_fields(row.get("fieldsV1"))
    return Owner(text("manager"), text("operation"), text("subresource"), text("apiVersion"), text("time"), fields)


def managed_fields(owners: Iterable[Owner]) -> list[dict[str, Json]]:
    """`metadata.managedFields`; owners of nothing are dropped."""
    return [_row(owner) for owner in owners if owner.fields]


def _row(owner: Owner) -> dict[str, Json]:
    row: dict[str, Json] = {
        "manager": owner.manager,
        "operation": owner.operation,
        "apiVersion": owner.api_version,
        "time": owner.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": to_fields(owner.fields),
    }
    return row | ({"subresource": owner.subresource} if owner.subresource else {})


# --- apply ------------------------------------------------------------------------------------------------------------


def applied(live: dict[str, Json], wish: dict[str, Json], shape: Shape, owners: Sequence[Owner], me: Owner) -> Applied:
    """What an apply of `wish` by `me` makes of the live document, which is empty if there is none yet.

    `me.fields` is ignored. Conflicts are what a caller refuses; with them taken by force the result stands as it is.
    """
    before, wanted = leaves(live, shape), leaves(wish, shape)
    if before and not owners:
        owners = (Owner(BEFORE, UPDATE, "", me.api_version, me.time, frozenset(before)),)
    others = [owner for owner in owners if owner.identity != me.identity]
    mine = next((owner for owner in owners if owner.identity == me.identity), None)
    changed = frozenset(path for path, value in wanted.items() if path not in before or before[path] != value)
    conflicts = tuple(Conflict(owner, path) for owner in others for path in sorted(owner.fields & changed))
    left = [replace(owner, fields=owner.fields - changed) for owner in others]
    dropped = (mine.fields if mine else frozenset()) - frozenset(wanted)
    document = _merged(live, wish, shape)
    for path in _removable(dropped, left, frozenset(wanted)):
        _take_away(document, path, shape)
    fields = frozenset(wanted)
    time = mine.time if mine is not None and mine.fields == fields else me.time
    return Applied(document, (*left, replace(me, fields=fields, time=time)), conflicts)


def _merged(live: Json, wish: Json, shape: Shape) -> Json:
    if isinstance(live, dict) and isinstance(wish, dict) and shape.form is not Form.ATOMIC:
        joined = {key: _merged(live[key], value, shape.at(key)) for key, value in wish.items() if key in live}
        return {**copy.deepcopy(live), **copy.deepcopy(wish), **joined}
    if isinstance(live, list) and isinstance(wish, list) and shape.form in (Form.LIST_MAP, Form.SET):
        wanted = {step_of(item, shape): item for item in wish}
        known = {step_of(item, shape): item for item in live}
        inner = shape.item or OPEN
        kept = [_merged(item, wanted[step], inner) if step in wanted else item for step, item in known.items()]
        return copy.deepcopy(kept + [item for step, item in wanted.items() if step not in known])
    return copy.deepcopy(wish)


def _removable(dropped: FieldSet, others: Iterable[Owner], wanted: FieldSet) -> list[Path]:
    """What nobody else owns, nor anything below it; what goes with a place above it is not named again."""
    needed = {
        place for fields in (wanted, *(owner.fields for owner in others)) for path in fields for place in _up(path)
    }
    gone = dropped - needed
    return [path for path in gone if not any(place in gone for place in _up(path[:-1]))]


def _up(path: Path) -> Iterator[Path]:
    """The path and all places above it."""
    return (path[:length] for length in range(1, len(path) + 1))


def _take_away(document: Json, path: Path, shape: Shape) -> None:
    for step in path[:-1]:
        document, shape = _into(document, step, shape)
    if isinstance(document, dict):
        document.pop(path[-1].removeprefix("f:"), None)
    elif isinstance(document, list):
        document[:] = [item for item in document if step_of(item, shape) != path[-1]]


def _into(document: Json, step: str, shape: Shape) -> tuple[Json, Shape]:
    if isinstance(document, dict):
        name = step.removeprefix("f:")
        return document.get(name), shape.at(name)
    if isinstance(document, list):
        found = next((item for item in document if step_of(item, shape) == step), None)
        return found, shape.item or OPEN
    return None, OPEN


# --- every other write ------------------------------------------------------------------------------------------------


def tracked(
    old: Mapping[str, Json], new: Mapping[str, Json], shape: Shape, owners: Sequence[Owner], me: Owner
) -> tuple[Owner, ...]:
    """The owners after a write that was no apply: who writes owns what the write changed. `me.fields` is ignored.

    Without owners there are none afterwards: the record begins with the first apply.
    """
    before, after = leaves(old, shape), leaves(new, shape)
    changed = frozenset(path for path, value in after.items() if path not in before or before[path] != value)
    lost = frozenset(before.keys() - after.keys()) | changed
    if not owners or not lost:
        return tuple(owners)
    kept = [owner if owner.identity == me.identity else replace(owner, fields=owner.fields - lost) for owner in owners]
    mine = next((owner for owner in kept if owner.identity == me.identity), None)
    if mine is None:
        return (*kept, replace(me, fields=changed))
    fields = (mine.fields - (lost - changed)) | changed
    time = mine.time if fields == mine.fields else me.time
    return tuple(replace(owner, fields=fields, time=time) if owner is mine else owner for owner in kept)

"""Sets of fields, as `metadata.managedFields` tells who owns what (FieldsV1 of structured-merge-diff). Pure.

A path is a tuple of steps: `f:NAME` into an object, `k:{KEYS}` to an item of a list that is told apart by keys,
`v:VALUE` to an item of a set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from master.kinds.shape import OPEN, Form, Shape

Json = Any
Path = tuple[str, ...]
FieldSet = frozenset[Path]

KEY_DEFAULTS = {"protocol": "TCP"}
"""Keys that an item may leave out."""

_HELD = object()
"""The value of an item of a list that is there for itself, beside its fields."""

_UNOWNED = frozenset(
    ("f:metadata", f"f:{name}")
    for name in (
        "name", "namespace", "generateName", "uid", "resourceVersion", "generation", "creationTimestamp",
        "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink",
    )
) | {("f:apiVersion",), ("f:kind",), ("f:metadata",)}  # fmt: skip
"""What nobody owns: identity, and what the server sets."""


def leaves(document: Mapping[str, Json], shape: Shape) -> dict[Path, Json]:
    """Every field that can have an owner, with its value."""
    return {path: value for path, value in _leaves(document, shape, ()) if path and path not in _UNOWNED}


def _leaves(value: Json, shape: Shape, path: Path) -> Iterator[tuple[Path, Json]]:
    if isinstance(value, dict) and value and shape.form is not Form.ATOMIC:
        for key, item in value.items():
            yield from _leaves(item, shape.at(key), (*path, f"f:{key}"))
    elif isinstance(value, list) and value and shape.form is Form.LIST_MAP:
        for item in value:
            place = (*path, step_of(item, shape))
            yield place, _HELD
            yield from _leaves(item, shape.item or OPEN, place)
    elif isinstance(value, list) and value and shape.form is Form.SET:
        for item in value:
            yield (*path, step_of(item, shape)), item
    else:
        yield path, value


def step_of(item: Json, shape: Shape) -> str:
    """The step to an item of a list."""
    if shape.form is Form.LIST_MAP and isinstance(item, dict):
        keys = {key: item.get(key, KEY_DEFAULTS.get(key)) for key in sorted(shape.keys)}
        return "k:" + _compact({key: value for key, value in keys.items() if value is not None})
    return "v:" + _compact(item)


def _compact(value: Json) -> str:
    return msgspec.json.encode(value).decode()


def to_fields(paths: Iterable[Path]) -> dict[str, Json]:
    """FieldsV1: the paths as a tree, in which `.` says that a place with others below it is owned, too."""
    root: dict[str, Json] = {}
    for path in sorted(paths, key=len):
        place = root
        for step in path:
            place = place.setdefault(step, {})
        place["."] = {}
    return {step: _pruned(below) for step, below in sorted(root.items())}


def _pruned(tree: Mapping[str, Json]) -> dict[str, Json]:
    if tree.keys() == {"."}:
        return {}
    return {step: _pruned(below) if step != "." else {} for step, below in sorted(tree.items())}


def from_fields(fields: Json) -> FieldSet:
    """The paths of a FieldsV1; what has not its form is left out."""
    return frozenset(path for path in _paths(fields, ()) if path)


def _paths(tree: Json, path: Path) -> Iterator[Path]:
    if not isinstance(tree, dict):
        return
    if not tree or "." in tree:
        yield path
    for step, below in tree.items():
        if step != ".":
            yield from _paths(below, (*path, step))


def shown_path(path: Path) -> str:
    """A path for people, as the reference writes it: .spec.containers[name="a"].image"""
    return "".join(map(_shown_step, path))


def _shown_step(step: str) -> str:
    kind, _, rest = step.partition(":")
    if kind == "f":
        return f".{rest}"
    if kind == "v":
        return f"[={rest}]"
    keys: dict[str, Json] = msgspec.json.decode(rest)
    return "[" + ",".join(f"{key}={_compact(value)}" for key, value in keys.items()) + "]"

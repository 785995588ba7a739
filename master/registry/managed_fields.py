"""Server-side apply: field sets, field managers and conflicts. Pure.

A path is a tuple of steps: `f:NAME` into an object, `k:{KEYS}` to an item of a list whose items are identified by
keys, `v:VALUE` to an item of a set (FieldsV1 of structured-merge-diff).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from api.meta.schema import MISSING, FieldError, without_nulls
from api.meta.types import StatusCause, StatusDetails
from master import errors
from master.errors import StatusError, status_error
from master.registry.decoding import check_type_meta
from master.request_info import RequestInfo
from master.resources.merge import compact, merge, step_of
from master.resources.merge_schema import OPEN, MergeKind, MergeSchema
from master.resources.metadata import with_metadata
from master.resources.resource import AnyResource

Json = Any
Path = tuple[str, ...]
FieldSet = frozenset[Path]

_LIST_ITEM = object()
"""The leaf that stands for the existence of a list item, apart from its fields."""

_UNOWNED = frozenset(
    ("f:metadata", f"f:{name}")
    for name in (
        "name", "namespace", "generateName", "uid", "resourceVersion", "generation", "creationTimestamp",
        "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink",
    )
) | {("f:apiVersion",), ("f:kind",), ("f:metadata",)}  # fmt: skip
"""Fields without a manager: identity, and fields that the server sets."""


def leaves(document: Mapping[str, Json], shape: MergeSchema) -> dict[Path, Json]:
    """Return every field that can have a manager, with its value."""
    found: dict[Path, Json] = {}
    _add_leaves(document, shape, (), found)
    for path in (*_UNOWNED, ()):
        found.pop(path, None)
    return found


def _add_leaves(value: Json, shape: MergeSchema, path: Path, found: dict[Path, Json]) -> None:
    if isinstance(value, dict) and value and shape.kind is not MergeKind.ATOMIC:
        for key, member in value.items():
            _add_leaves(member, shape.child(key), (*path, f"f:{key}"), found)
    elif isinstance(value, list) and value and shape.kind is MergeKind.LIST_MAP:
        for element in value:
            element_path = (*path, step_of(element, shape))
            found[element_path] = _LIST_ITEM
            _add_leaves(element, shape.items or OPEN, element_path, found)
    elif isinstance(value, list) and value and shape.kind is MergeKind.SET:
        for element in value:
            found[*path, step_of(element, shape)] = element
    else:
        found[path] = value


def to_fields(paths: Iterable[Path]) -> dict[str, Json]:
    """Return FieldsV1: the paths as a tree, in which `.` marks a path that is owned besides the paths below it."""
    owned, root = frozenset(paths), dict[str, Json]()
    trees: dict[Path, dict[str, Json]] = {(): root}

    def tree_of(path: Path) -> dict[str, Json]:
        if path not in trees:
            parent = tree_of(path[:-1])
            if not parent and path[:-1] in owned:
                parent["."] = {}
            parent[path[-1]] = trees[path] = {}
        return trees[path]

    for path in sorted(owned):
        tree_of(path)
    return root


def from_fields(fields: Json) -> FieldSet:
    """Return the paths of a FieldsV1; malformed entries are ignored."""
    return frozenset(path for path in _paths(fields, ()) if path)


def _paths(tree: Json, path: Path) -> Iterator[Path]:
    if not isinstance(tree, dict):
        return
    if not tree or "." in tree:
        yield path
    for step, below in tree.items():
        if step != ".":
            yield from _paths(below, (*path, step))


def format_path(path: Path) -> str:
    """Return a path for messages, as kube-apiserver writes it: .spec.containers[name="a"].image"""
    return "".join(map(_format_step, path))


def _format_step(step: str) -> str:
    kind, _, rest = step.partition(":")
    if kind == "f":
        return f".{rest}"
    if kind == "v":
        return f"[={rest}]"
    keys: dict[str, Json] = msgspec.json.decode(rest)
    return "[" + ",".join(f"{key}={compact(value)}" for key, value in keys.items()) + "]"


APPLY, UPDATE = "Apply", "Update"
BEFORE_FIRST_APPLY = "before-first-apply"


@dataclass(frozen=True, slots=True)
class FieldManager:
    """A field manager: an entry of `metadata.managedFields`. `time` is when its fields last changed."""

    manager: str
    operation: str
    subresource: str
    api_version: str
    time: str
    fields: FieldSet

    @property
    def identity(self) -> tuple[str, str, str]:
        """Return the key that identifies a manager from one write to the next."""
        return self.manager, self.operation, self.subresource


@dataclass(frozen=True, slots=True)
class FieldConflict:
    """A field that an apply would change although another manager owns it."""

    manager: FieldManager
    path: Path


@dataclass(frozen=True, slots=True)
class Applied:
    """The document after an apply, its field managers, and the conflicts."""

    document: dict[str, Json]
    managers: tuple[FieldManager, ...]
    conflicts: tuple[FieldConflict, ...]


def managers_in(document: Mapping[str, Json]) -> tuple[FieldManager, ...]:
    """Return the field managers in `metadata.managedFields`; malformed entries are ignored."""
    metadata = document.get("metadata")
    managed = metadata.get("managedFields") if isinstance(metadata, dict) else None
    entries = managed if isinstance(managed, list | tuple) else ()
    return tuple(_parse_manager(entry) for entry in entries if isinstance(entry, dict) and entry.get("manager"))


def _parse_manager(entry: Mapping[str, Json]) -> FieldManager:
    def text(key: str) -> str:
        return str(entry.get(key) or "")

    fields = from_fields(entry.get("fieldsV1"))
    return FieldManager(
        text("manager"), text("operation"), text("subresource"), text("apiVersion"), text("time"), fields
    )


def format_managers(managers: Iterable[FieldManager]) -> list[dict[str, Json]]:
    """Return `metadata.managedFields`; managers without fields are dropped."""
    return [_format_manager(manager) for manager in managers if manager.fields]


def _format_manager(manager: FieldManager) -> dict[str, Json]:
    entry: dict[str, Json] = {
        "manager": manager.manager,
        "operation": manager.operation,
        "apiVersion": manager.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": to_fields(manager.fields),
    }
    # A client may give a manager without a time; an empty text is none.
    optional = {"time": manager.time, "subresource": manager.subresource}
    return entry | {key: text for key, text in optional.items() if text}


# --- apply ------------------------------------------------------------------------------------------------------------


def apply(
    live: dict[str, Json],
    applied: dict[str, Json],
    shape: MergeSchema,
    managers: Sequence[FieldManager],
    manager: FieldManager,
) -> Applied:
    """Return the result of an apply of `applied` by `manager` to the live document, which is empty for a new object.

    `manager.fields` is ignored. The caller rejects conflicts; if they are forced, the result is used as it is.
    """
    before, wanted = leaves(live, shape), leaves(applied, shape)
    if before and not managers:
        managers = (FieldManager(BEFORE_FIRST_APPLY, UPDATE, "", manager.api_version, manager.time, frozenset(before)),)
    others = [other for other in managers if other.identity != manager.identity]
    earlier = next((entry for entry in managers if entry.identity == manager.identity), None)
    changed = frozenset(path for path, value in wanted.items() if path not in before or before[path] != value)
    conflicts = tuple(FieldConflict(other, path) for other in others for path in sorted(other.fields & changed))
    remaining = [replace(other, fields=other.fields - changed) for other in others]
    dropped = (earlier.fields if earlier else frozenset()) - frozenset(wanted)
    document = merge(live, applied, shape)
    _remove_paths(document, _removable(dropped, remaining, frozenset(wanted)), shape)
    fields = frozenset(wanted)
    time = earlier.time if earlier is not None and earlier.fields == fields else manager.time
    return Applied(document, (*remaining, replace(manager, fields=fields, time=time)), conflicts)


def _removable(dropped: FieldSet, others: Iterable[FieldManager], wanted: FieldSet) -> list[Path]:
    """Return the paths that no other manager owns, nor anything below them. Paths below a removed path are left out."""
    if not dropped:
        return []
    needed = {
        prefix
        for fields in (wanted, *(other.fields for other in others))
        for path in fields
        for prefix in _ancestors(path)
    }
    gone = dropped - needed
    return [path for path in gone if not any(prefix in gone for prefix in _ancestors(path[:-1]))]


def _ancestors(path: Path) -> Iterator[Path]:
    """Yield the path and all its ancestors."""
    return (path[:length] for length in range(1, len(path) + 1))


def _remove_paths(document: Json, paths: Iterable[Path], shape: MergeSchema) -> None:
    """Remove fields and list items. The cost is linear, because a client may drop 100,000 items at once."""
    steps_by_parent: dict[Path, set[str]] = {}
    for path in paths:
        steps_by_parent.setdefault(path[:-1], set()).add(path[-1])
    items_by_list: dict[int, dict[str, Json]] = {}
    for parent, steps in steps_by_parent.items():
        target, target_shape = document, shape
        for step in parent:
            target, target_shape = _descend(target, step, target_shape, items_by_list)
        if isinstance(target, dict):
            for step in steps:
                target.pop(step.removeprefix("f:"), None)
        elif isinstance(target, list):
            target[:] = [element for element in target if step_of(element, target_shape) not in steps]


def _descend(
    document: Json, step: str, shape: MergeSchema, items_by_list: dict[int, dict[str, Json]]
) -> tuple[Json, MergeSchema]:
    if isinstance(document, dict):
        name = step.removeprefix("f:")
        return document.get(name), shape.child(name)
    if isinstance(document, list):
        if id(document) not in items_by_list:
            items_by_list[id(document)] = {step_of(element, shape): element for element in reversed(document)}
        return items_by_list[id(document)].get(step), shape.items or OPEN
    return None, OPEN


# --- every other write ------------------------------------------------------------------------------------------------


def track_update(
    old: Mapping[str, Json],
    new: Mapping[str, Json],
    shape: MergeSchema,
    managers: Sequence[FieldManager],
    manager: FieldManager,
) -> tuple[FieldManager, ...]:
    """Return the field managers after an update: the writer owns what the update changed. `manager.fields` is ignored.

    Without managers before there are none afterwards, because the record begins with the first apply.
    """
    before, after = leaves(old, shape), leaves(new, shape)
    changed = frozenset(path for path, value in after.items() if path not in before or before[path] != value)
    lost = frozenset(before.keys() - after.keys()) | changed
    if not managers or not lost:
        return tuple(managers)
    remaining = [
        entry if entry.identity == manager.identity else replace(entry, fields=entry.fields - lost)
        for entry in managers
    ]
    earlier = next((entry for entry in remaining if entry.identity == manager.identity), None)
    if earlier is None:
        return (*remaining, replace(manager, fields=changed))
    fields = (earlier.fields - (lost - changed)) | changed
    time = earlier.time if fields == earlier.fields else manager.time
    return tuple(replace(entry, fields=fields, time=time) if entry is earlier else entry for entry in remaining)


# --- managers of an object --------------------------------------------------------------------------------------------


MAX_TRACKED_VALUES = 10_000
"""Values of an object that can have managers of their own, without those of its managedFields, up to which it has a
record of its field managers. Each write compares all these, which takes 15 us per value; a value that is owned as a
whole, such as the versions of a CustomResourceDefinition, is compared at once.
"""

MAX_OWNED_FIELDS = 20_000
"""Fields that all field managers of an object have together."""


def _is_tracked(document: Mapping[str, Json], shape: MergeSchema) -> bool:
    """Return whether an object is small enough for a record of its field managers."""
    metadata = document.get("metadata")
    if isinstance(metadata, dict):
        metadata = {key: value for key, value in metadata.items() if key != "managedFields"}
    pending: list[tuple[Json, MergeSchema]] = [({**document, "metadata": metadata}, shape)]
    count = 0
    while pending and count <= MAX_TRACKED_VALUES:
        value, part = pending.pop()
        if isinstance(value, dict) and part.kind is not MergeKind.ATOMIC:
            count += len(value)
            pending += [(each, part.child(key)) for key, each in value.items() if isinstance(each, dict | list)]
        elif isinstance(value, list) and part.kind in (MergeKind.LIST_MAP, MergeKind.SET):
            count += len(value)
            pending += [(each, part.items or OPEN) for each in value if part.kind is MergeKind.LIST_MAP]
    return count <= MAX_TRACKED_VALUES


def _are_too_many(managers: Iterable[FieldManager]) -> bool:
    return sum(len(manager.fields) for manager in managers) > MAX_OWNED_FIELDS


def bounded_apply(
    live: dict[str, Json],
    applied: dict[str, Json],
    shape: MergeSchema,
    manager: FieldManager,
    first_managers: Sequence[FieldManager] = (),
) -> Applied:
    """Return the result of an `apply` to the live document with its managers; `first_managers` are those of a document
    without a record. Raises StatusError if one of the documents, or the number of owned fields, is too large.
    """
    for name, document in (("body", applied), ("object", live)):
        if not _is_tracked(document, shape):
            raise _too_large(
                f"the {name} of a server-side apply has more than {MAX_TRACKED_VALUES} values that can have managers"
            )
    result = apply(live, applied, shape, managers_in(live) or first_managers, manager)
    if _are_too_many(result.managers):
        raise _too_large(f"the field managers of the object have more than {MAX_OWNED_FIELDS} fields")
    return result


def without_defaulted(
    result: Applied, live: Mapping[str, Json], defaulted: Mapping[str, Json], shape: MergeSchema
) -> Applied:
    """Return the result of an apply without the conflicts about fields that defaults make equal to the live ones.

    `defaulted` is its document with defaults. The items of an atomic list, such as the volumeClaimTemplates of a
    StatefulSet, differ from the live ones only by defaults. Both managers own such a field.
    """
    before, after = leaves(live, shape), leaves(defaulted, shape)
    equal = [each for each in result.conflicts if before.get(each.path) == after.get(each.path)]
    if not equal:
        return result
    kept: dict[tuple[str, str, str], set[Path]] = {}
    for conflict in equal:
        kept.setdefault(conflict.manager.identity, set()).add(conflict.path)
    managers = tuple(replace(each, fields=each.fields | kept.get(each.identity, set())) for each in result.managers)
    return replace(result, managers=managers, conflicts=tuple(each for each in result.conflicts if each not in equal))


def _too_large(message: str) -> StatusError:
    return status_error(413, "RequestEntityTooLarge", message)


def applied_fields(info: RequestInfo, document: object, manager: str) -> dict[str, Any]:
    """Return the part of an apply's body that the subresource covers. Raise StatusError if it is no apply body."""
    if not manager:
        problem = FieldError("fieldManager", '""', "is required for apply patch", MISSING)
        raise errors.invalid_options("PatchOptions", problem)
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        raise errors.bad_request(f"the body is not a {info.resource.kind}: an object with metadata is accepted")
    if document["metadata"].get("managedFields") is not None:
        raise errors.bad_request("metadata.managedFields must be nil")
    applied: dict[str, Any] = check_type_meta(info.resource, document)
    if info.resource.documents is None:
        applied = without_nulls(applied)  # type: ignore[assignment]
    else:
        # A null may be the value of a nullable field.
        applied["metadata"] = without_nulls(applied["metadata"])
    if info.subresource == "status":
        return {key: value for key, value in applied.items() if key in ("apiVersion", "kind", "status")}
    return {key: value for key, value in applied.items() if key != "status" or not info.resource.has_status}


def undeclared_field(info: RequestInfo, field: str) -> StatusError:
    """Return 500: an apply has a field that the schema of a custom resource does not declare."""
    resource = info.resource
    name = f"{info.namespace}/{info.name}" if info.namespace else f"/{info.name}"
    message = (
        f"failed to create typed patch object ({name}; {resource.type.API_VERSION}, Kind={resource.kind}): "
        f".{field}: field not declared in schema"
    )
    return status_error(500, "InternalError", message)


def managers_after_update(
    resource: AnyResource, old: Any, new: Any, sent: Mapping[str, Any], manager: FieldManager
) -> tuple[FieldManager, ...]:
    """Return the field managers after an update.

    A client that sends other managedFields than the stored ones replaces them, as kubectl does to migrate client-side
    apply; an empty list removes them. Raises BadRequest for more than MAX_MANAGERS or MAX_OWNED_FIELDS. The record
    ends with an update that makes the object or the record too large.
    """
    had = old.metadata.managed_fields
    # A projection shows a part of another resource, whose managers are not the client's to replace.
    given = (sent.get("metadata") or {}).get("managedFields") if resource.stored_as is None else None
    if isinstance(given, list) and len(given) > MAX_MANAGERS:
        raise errors.bad_request(f"metadata.managedFields has {len(given)} entries; {MAX_MANAGERS} are accepted")
    if had is None and not given:
        return ()
    # As JSON, in which lists are lists; `to_builtins` returns the tuples of the types, which no merge descends into.
    before, after = (msgspec.json.decode(msgspec.json.encode(obj)) for obj in (old, new))
    if not all(_is_tracked(document, resource.merge_schema) for document in (before, after)):
        return ()
    managers = managers_in(before if given is None else sent)
    if given and _are_too_many(managers):
        raise errors.bad_request(f"metadata.managedFields has more than {MAX_OWNED_FIELDS} fields")
    updated = track_update(before, after, resource.merge_schema, managers, manager)
    return () if _are_too_many(updated) else updated


def with_managed_fields(obj: Any, managers: Sequence[FieldManager]) -> Any:
    """Return the object with these field managers."""
    return with_metadata(obj, managed_fields=format_managers(managers) or None)


def with_creators(created: Any, creators: Sequence[FieldManager]) -> Any:
    """Return a created object with the field managers of the client that has applied it, and those that the server has
    recorded for its own fields.
    """
    if not creators:
        return created
    recorded = managers_in({"metadata": {"managedFields": created.metadata.managed_fields}})
    own = [manager for manager in recorded if manager.manager != BEFORE_FIRST_APPLY]
    return with_managed_fields(created, (*creators, *own))


MAX_LISTED_CONFLICTS = 100
"""Conflicts that a response names."""

MAX_MANAGERS = 500
"""Field managers that a client may give an object."""


def apply_conflict(conflicts: Sequence[FieldConflict]) -> StatusError:
    """Return 409: an apply would change fields of other managers. kubectl shows the causes and --force-conflicts."""
    causes = tuple(
        StatusCause(
            reason="FieldManagerConflict",
            message=f"conflict with {_shown(conflict.manager)}",
            field=format_path(conflict.path),
        )
        for conflict in conflicts[:MAX_LISTED_CONFLICTS]
    )
    if len(conflicts) == 1:
        listed = f"1 conflict: {causes[0].message}: {causes[0].field}"
    else:
        paths: dict[str, list[str]] = {}
        for conflict in conflicts[:MAX_LISTED_CONFLICTS]:
            paths.setdefault(_shown(conflict.manager), []).append(format_path(conflict.path))
        lines = [
            line
            for name in sorted(paths)
            for line in (f"conflicts with {name}:", *(f"- {path}" for path in paths[name]))
        ]
        listed = f"{len(conflicts)} conflicts: " + "\n".join(lines)
    return status_error(409, "Conflict", f"Apply failed with {listed}", StatusDetails(causes=causes))


def _shown(manager: FieldManager) -> str:
    name = f'"{manager.manager}"' + (f' with subresource "{manager.subresource}"' if manager.subresource else "")
    return f"{name} using {manager.api_version} at {manager.time}" if manager.operation == UPDATE else name

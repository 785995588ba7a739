"""The three patch formats: RFC 7386 merge patch, RFC 6902 JSON patch, Kubernetes strategic merge patch. Pure.

Documents are decoded JSON. Arguments are not changed. Raises `InvalidPatch` when a patch cannot be applied.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from api.codec.limits import MAX_DEPTH, MAX_VALUES, copied, is_too_deep
from master.resources.merge_schema import OPEN, MergeKind, MergeSchema

Json = Any
Identity = Callable[[Json], Json]

_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


MAX_NAME_CHARACTERS = 200
"""Characters of a path or a value that an error message quotes."""

MAX_OPERATIONS = 10_000
MAX_COPIED_BYTES = 3 << 20
"""Limits of a JSON patch, those of kube-apiserver: operations, and bytes that `copy` adds. Each copy of the whole
document doubles it, so a patch of 1 KB could need all memory.
"""

MAX_SHIFTED_ITEMS = 50_000_000
"""List items that the operations of a JSON patch move by one place, because they insert or remove one before them.
10,000 operations at the front of a list of 190,000 items would take a second.
"""

MAX_MERGED_VALUES = 4 * MAX_VALUES
"""Values of the document and of the patch that a strategic merge visits. Each is visited once or twice, except if the
patch names one item of a list many times.
"""


class InvalidPatch(ValueError):
    """The patch cannot be applied; says which part of it, and which value was there."""


class _Budget:
    """The work that a patch may cause beyond what its own size bounds."""

    def __init__(self, limit: int, action: str) -> None:
        self._limit = limit
        self._remaining = limit
        self._action = action

    def spend(self, number: int) -> None:
        """Subtract a number of items. Raises InvalidPatch beyond the limit."""
        self._remaining -= number
        if self._remaining < 0:
            raise InvalidPatch(f"the patch {self._action} more than {self._limit} items")


def merge_patch(target: Json, patch: Json) -> Json:
    """Apply RFC 7386: maps are merged, null removes, every other value replaces."""
    if not isinstance(patch, dict):
        return copied(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


# --- RFC 6902 ---------------------------------------------------------------------------------------------------------


def json_patch(target: Json, operations: Json) -> Json:
    """Apply the operations of RFC 6902 in order, all or none."""
    if not isinstance(operations, list):
        raise InvalidPatch("a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise InvalidPatch(f"it has {len(operations)} operations; {MAX_OPERATIONS} are accepted")
    result, copied_bytes, shifts = copied(target), 0, _Budget(MAX_SHIFTED_ITEMS, "shifts")
    for number, operation in enumerate(operations):
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise InvalidPatch(f"operation {number} is not an object with op and path")
        try:
            if operation.get("op") == "copy":
                copied_bytes += len(msgspec.json.encode(_find(result, _pointer(operation.get("from")))))
                if copied_bytes > MAX_COPIED_BYTES:
                    raise InvalidPatch(f"the patch copies more than {MAX_COPIED_BYTES} bytes")
            result = _operate(result, operation, shifts)
        except InvalidPatch as error:
            name = f"{operation.get('op')} {operation['path']}"[:MAX_NAME_CHARACTERS]
            raise InvalidPatch(f"operation {number} ({name}): {error}") from error
        except RecursionError:
            raise _too_deep() from None
    if is_too_deep(result):
        raise _too_deep()
    return result


def _too_deep() -> InvalidPatch:
    return InvalidPatch(f"the result has more than {MAX_DEPTH} levels")


def _operate(document: Json, operation: Mapping[str, Json], shifts: _Budget) -> Json:
    name, path = operation.get("op"), _pointer(operation["path"])
    if name in ("add", "replace", "test") and "value" not in operation:
        raise InvalidPatch("value is missing")
    if name == "add":
        return _add(document, path, copied(operation["value"]), shifts)
    if name == "remove":
        return _remove(document, path, shifts)
    if name == "replace":
        return _replace(document, path, copied(operation["value"]))
    if name == "test":
        if not _same(_find(document, path), operation["value"]):
            raise InvalidPatch("the value there is another one")
        return document
    if name in ("move", "copy"):
        source = _pointer(operation.get("from"))
        value = _find(document, source)
        if name == "copy":
            value = copied(value)
        else:
            if path[: len(source)] == source and path != source:
                raise InvalidPatch("a value cannot be moved into itself")
            document = _remove(document, source, shifts)
        return _add(document, path, value, shifts)
    raise InvalidPatch("op is not one of add, remove, replace, move, copy, test")


def _pointer(text: Json) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise InvalidPatch(f"{repr(text)[:MAX_NAME_CHARACTERS]} is not a JSON pointer")
    if text.count("/") > MAX_DEPTH:
        raise InvalidPatch(f"a JSON pointer has {text.count('/')} parts; {MAX_DEPTH} are accepted")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _index(items: list[Json], part: str, end: int) -> int:
    is_number = part.isascii() and part.isdecimal() and len(part) < 10
    if not is_number or (len(part) > 1 and part.startswith("0")) or int(part) > end:
        raise InvalidPatch(f"{part[:MAX_NAME_CHARACTERS]!r} is not an index of a list of {len(items)}")
    return int(part)


def _find(document: Json, path: Sequence[str]) -> Json:
    for part in path:
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list):
            document = document[_index(document, part, len(document) - 1)]
        else:
            raise InvalidPatch("there is no such place")
    return document


def _add(document: Json, path: Sequence[str], value: Json, shifts: _Budget) -> Json:
    if not path:
        return value
    parent, part = _find(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[part] = value
    elif isinstance(parent, list):
        index = len(parent) if part == "-" else _index(parent, part, len(parent))
        shifts.spend(len(parent) - index)
        parent.insert(index, value)
    else:
        raise InvalidPatch("there is no such place")
    return document


def _replace(document: Json, path: Sequence[str], value: Json) -> Json:
    if not path:
        return value
    _find(document, path)
    parent, part = _find(document, path[:-1]), path[-1]
    parent[part if isinstance(parent, dict) else int(part)] = value
    return document


def _remove(document: Json, path: Sequence[str], shifts: _Budget) -> Json:
    if not path:
        return None
    _find(document, path)
    parent, part = _find(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        shifts.spend(len(parent) - int(part))
        del parent[int(part)]
    else:
        del parent[part]
    return document


def _same(left: Json, right: Json) -> bool:
    """Return whether two JSON values are equal; true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


# --- strategic merge --------------------------------------------------------------------------------------------------


def strategic_merge_patch(target: Json, patch: Json, shape: MergeSchema) -> Json:
    """Apply a Kubernetes strategic merge patch; `shape` says which lists are merged, and by which key.

    The directives are $patch, $retainKeys, $deleteFromPrimitiveList/LIST and $setElementOrder/LIST.
    """
    if not isinstance(patch, dict):
        raise InvalidPatch("a strategic merge patch is an object")
    visits = _Budget(MAX_MERGED_VALUES, "merges")
    return _merge_map(target if isinstance(target, dict) else {}, patch, shape, visits)


def _merge_map(
    target: Mapping[str, Json], patch: Mapping[str, Json], shape: MergeSchema, visits: _Budget
) -> dict[str, Json]:
    visits.spend(len(target) + len(patch))
    directive = patch.get("$patch", "merge")
    if directive == "replace":
        return {key: copied(value) for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    if directive != "merge":
        raise InvalidPatch(f"$patch is {directive!r}; merge, replace and delete are accepted")
    result = _retained(target, patch)
    _delete_from_lists(result, patch, visits)
    for key, value in patch.items():
        if not key.startswith("$"):
            _merge_field(result, key, value, shape.child(key), visits)
    for key, value in patch.items():
        name = key.removeprefix(_ORDER)
        if name != key and name in result:
            identity = _identity(shape.child(name))
            before = _as_list(target.get(name, []), name)
            visits.spend(len(before) + len(result[name]))
            result[name] = _ordered(identity, before, result[name], _as_list(value, key))
    return result


def _retained(target: Mapping[str, Json], patch: Mapping[str, Json]) -> dict[str, Json]:
    if "$retainKeys" not in patch:
        return dict(target)
    retained = {key for key in _as_list(patch["$retainKeys"], "$retainKeys") if isinstance(key, str)}
    return {key: value for key, value in target.items() if key in retained}


def _delete_from_lists(result: dict[str, Json], patch: Mapping[str, Json], visits: _Budget) -> None:
    for key, value in patch.items():
        name, gone = key.removeprefix(_DELETE_FROM), value
        if name != key and name in result:
            removed = set(map(_hashable, _as_list(gone, key)))
            visits.spend(len(_as_list(result[name], name)))
            result[name] = [element for element in _as_list(result[name], name) if _hashable(element) not in removed]


def _merge_field(result: dict[str, Json], key: str, value: Json, shape: MergeSchema, visits: _Budget) -> None:
    if value is None:
        result.pop(key, None)
    elif isinstance(value, dict):
        old = result.get(key)
        result[key] = _merge_map(old if isinstance(old, dict) else {}, value, shape, visits)
    elif (
        shape.kind is MergeKind.LIST_MAP
        and isinstance(value, list)
        and all(isinstance(element, dict) for element in value)
    ):
        old_items = _as_list(result.get(key, []), key)
        visits.spend(len(old_items))
        result[key] = _ordered(_identity(shape), old_items, _merge_list(key, old_items, value, shape, visits), value)
    elif shape.kind is MergeKind.SET and isinstance(value, list):
        old_items = _as_list(result.get(key, []), key)
        visits.spend(len(old_items))
        known = set(map(_hashable, old_items))
        merged = old_items + [element for element in value if _hashable(element) not in known]
        result[key] = _ordered(_identity(shape), old_items, merged, value)
    else:
        result[key] = copied(value)


def _merge_list(
    name: str, target: list[Json], patch: list[dict[str, Json]], shape: MergeSchema, visits: _Budget
) -> list[Json]:
    by, inner = shape.keys[0], shape.items or OPEN
    if any(element.get("$patch") == "replace" for element in patch):
        return [_merge_map({}, element, inner, visits) for element in patch if element.get("$patch") != "replace"]
    result, deleted = list(target), set[int]()
    indexes: defaultdict[Json, list[int]] = defaultdict(list)
    for index, old in enumerate(result):
        if isinstance(old, dict):
            indexes[_hashable(old.get(by))].append(index)
    for element in patch:
        if by not in element:
            raise InvalidPatch(f"an item of {name} has no {by}, by which items are told apart")
        if isinstance(element[by], dict | list):
            # No item has such a key. Each comparison with it would read all of it.
            raise InvalidPatch(f"an item of {name} has a {by} that is a map or a list; a text or a number is accepted")
        known = indexes[element[by]]
        if element.get("$patch") == "delete":
            deleted.update(known)
            known.clear()
        elif known:
            result[known[0]] = _merge_map(result[known[0]], element, inner, visits)
        else:
            known.append(len(result))
            result.append(_merge_map({}, element, inner, visits))
    return [old for index, old in enumerate(result) if index not in deleted]


def _ordered(identity: Identity, before: list[Json], after: list[Json], order: list[Json]) -> list[Json]:
    """Return the items in the order of the patch; items that only the server has keep their relative positions."""
    wanted = {_hashable(identity(element)): index for index, element in enumerate(order)}
    was = {_hashable(identity(element)): index for index, element in enumerate(before)}
    keyed = [(_hashable(identity(element)), element) for element in after]
    named = deque(sorted((pair for pair in keyed if pair[0] in wanted), key=lambda pair: wanted[pair[0]]))
    others = deque(pair for pair in keyed if pair[0] not in wanted)
    result: list[Json] = []
    while named and others:
        first, second = was.get(others[0][0]), was.get(named[0][0])
        others_turn = first is not None and second is not None and first < second
        result.append((others if others_turn else named).popleft()[1])
    return [*result, *(element for _, element in named), *(element for _, element in others)]


def _identity(shape: MergeSchema) -> Identity:
    by = shape.keys[0] if shape.keys else None
    return lambda element: element.get(by) if by is not None and isinstance(element, dict) else element


def _hashable(value: Json) -> Json:
    return repr(value) if isinstance(value, dict | list) else value


def _as_list(value: Json, name: str) -> list[Json]:
    if not isinstance(value, list):
        raise InvalidPatch(f"{name} is not a list")
    return value

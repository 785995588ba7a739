"""Two patch formats: RFC 7386 merge patch and Kubernetes strategic merge patch. Pure.

Documents are decoded JSON. Arguments are not changed. Raises `InvalidPatch` when a patch cannot be applied.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping

from api.codec.limits import MAX_VALUES, copied
from master.resources.merge_schema import OPEN, MergeKind, MergeSchema
from master.serialization.json_patch import Budget, InvalidPatch, Json

Identity = Callable[[Json], Json]

_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


MAX_MERGED_VALUES = 4 * MAX_VALUES
"""Values of the document and of the patch that a strategic merge visits. Each is visited once or twice, except if the
patch names one item of a list many times.
"""


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


# --- strategic merge --------------------------------------------------------------------------------------------------


def strategic_merge_patch(target: Json, patch: Json, shape: MergeSchema) -> Json:
    """Apply a Kubernetes strategic merge patch; `shape` says which lists are merged, and by which key.

    The directives are $patch, $retainKeys, $deleteFromPrimitiveList/LIST and $setElementOrder/LIST.
    """
    if not isinstance(patch, dict):
        raise InvalidPatch("a strategic merge patch is an object")
    visits = Budget(MAX_MERGED_VALUES, "merges")
    return _merge_map(target if isinstance(target, dict) else {}, patch, shape, visits)


def _merge_map(
    target: Mapping[str, Json], patch: Mapping[str, Json], shape: MergeSchema, visits: Budget
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


def _delete_from_lists(result: dict[str, Json], patch: Mapping[str, Json], visits: Budget) -> None:
    for key, value in patch.items():
        name, gone = key.removeprefix(_DELETE_FROM), value
        if name != key and name in result:
            removed = set(map(_hashable, _as_list(gone, key)))
            visits.spend(len(_as_list(result[name], name)))
            result[name] = [element for element in _as_list(result[name], name) if _hashable(element) not in removed]


def _merge_field(result: dict[str, Json], key: str, value: Json, shape: MergeSchema, visits: Budget) -> None:
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
    name: str, target: list[Json], patch: list[dict[str, Json]], shape: MergeSchema, visits: Budget
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

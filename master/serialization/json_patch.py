"""RFC 6902 JSON patch, within bounds. Pure.

Documents are decoded JSON. Arguments are not changed. Raises `InvalidPatch` when a patch cannot be applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from api.codec.limits import MAX_DEPTH, copied, is_too_deep

Json = Any

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


class InvalidPatch(ValueError):
    """The patch cannot be applied; says which part of it, and which value was there."""


class FailedTest(InvalidPatch):
    """A test of the patch found another value, or none in the place where it may be."""


class Budget:
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


def json_patch(target: Json, operations: Json, *, replaces_absent: bool = False) -> Json:
    """Apply the operations of RFC 6902 in order, all or none.

    `replaces_absent` lets `replace` set a field of an object that is not there, as Kubernetes does, whose documents
    have fields with zero values.
    """
    if not isinstance(operations, list):
        raise InvalidPatch("a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise InvalidPatch(f"it has {len(operations)} operations; {MAX_OPERATIONS} are accepted")
    result, copied_bytes, shifts = copied(target), 0, Budget(MAX_SHIFTED_ITEMS, "shifts")
    for number, operation in enumerate(operations):
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise InvalidPatch(f"operation {number} is not an object with op and path")
        try:
            if operation.get("op") == "copy":
                copied_bytes += len(msgspec.json.encode(_find(result, _pointer(operation.get("from")))))
                if copied_bytes > MAX_COPIED_BYTES:
                    raise InvalidPatch(f"the patch copies more than {MAX_COPIED_BYTES} bytes")
            made = _adding(operation, result) if replaces_absent else operation
            result = _operate(result, made, shifts)
        except InvalidPatch as error:
            name = f"{operation.get('op')} {operation['path']}"[:MAX_NAME_CHARACTERS]
            raise type(error)(f"operation {number} ({name}): {error}") from error
        except RecursionError:
            raise _too_deep() from None
    if is_too_deep(result):
        raise _too_deep()
    return result


def _too_deep() -> InvalidPatch:
    return InvalidPatch(f"the result has more than {MAX_DEPTH} levels")


def _operate(document: Json, operation: Mapping[str, Json], shifts: Budget) -> Json:
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
        return _test(document, path, operation["value"])
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


def _is_there(parent: Json, part: str) -> bool:
    """Return whether an object has a field. What is no object is looked at later."""
    return not isinstance(parent, dict) or part in parent


def _adding(operation: Mapping[str, Json], document: Json) -> Mapping[str, Json]:
    """Return an operation that adds, for one that would replace a field that an object does not have."""
    path = _pointer(operation["path"])
    if operation.get("op") == "replace" and path and not _is_there(_find(document, path[:-1]), path[-1]):
        return {**operation, "op": "add"}
    return operation


def _test(document: Json, path: Sequence[str], value: Json) -> Json:
    if path and not _is_there(_find(document, path[:-1]), path[-1]):
        raise FailedTest("there is no such place")
    if not _same(_find(document, path), value):
        raise FailedTest("the value there is another one")
    return document


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


def _add(document: Json, path: Sequence[str], value: Json, shifts: Budget) -> Json:
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


def _remove(document: Json, path: Sequence[str], shifts: Budget) -> Json:
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

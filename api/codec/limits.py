"""Limits of decoded documents: their levels and the number of their values; and copies of them. Pure."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 64
"""Levels of maps and lists in a document. Objects of Kubernetes have about 20. So code that descends into a document
needs no limit of its own.
"""

MAX_VALUES = 30_000
"""Values in a document. A RoleBinding of 7,000 subjects has as many, and other objects have much fewer. 3 MiB of JSON
could have 1,500,000, which cost seconds: each value takes about 3 us, in one turn of the event loop.
"""


def is_too_deep(document: object) -> bool:
    """Return whether a decoded document has more than MAX_DEPTH levels. Needs no recursion."""
    level = [document] if isinstance(document, dict | list) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def has_too_many_values(document: object) -> bool:
    """Return whether a decoded document has more than MAX_VALUES values."""
    return value_count(document, MAX_VALUES) > MAX_VALUES


def has_too_many_parts(json: bytes) -> bool:
    """Return True only if a JSON text has more than MAX_VALUES values. It takes a fraction of the time of decoding.

    Each value but the first of a map or list follows a comma, and a map or list is a value itself.
    """
    limit = 2 * MAX_VALUES + 1
    if _structure(json) <= limit:
        return False
    outside_strings = json.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    return _structure(b"".join(outside_strings)) > limit


def _structure(json: bytes) -> int:
    return json.count(b",") + json.count(b"[") + json.count(b"{")


def value_count(document: object, limit: int | None = None) -> int:
    """Return the number of values in a decoded document. Counting ends beyond `limit`."""
    pending, count = [document], 0
    while pending and (limit is None or count <= limit):
        value = pending.pop()
        if isinstance(value, dict | list):
            count += len(value)
            children = value.values() if isinstance(value, dict) else value
            pending += [child for child in children if isinstance(child, dict | list)]
    return count


def copied(value: Any) -> Any:
    """Return a copy of a decoded document that shares no map and no list with it. `copy.deepcopy` takes ten times as
    long.
    """
    if isinstance(value, dict):
        return {key: copied(member) if isinstance(member, dict | list) else member for key, member in value.items()}
    if isinstance(value, list):
        return [copied(member) if isinstance(member, dict | list) else member for member in value]
    return value

"""Fields that a JSON text sets twice, in the words of Kubernetes. Pure.

The decoder keeps the last value. Whether there is such a field is known by counting; only then are they searched for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MAX_DUPLICATE_FIELDS = 100
"""Duplicate fields of a document that are reported, as unknown fields."""

MAX_NAME_LENGTH = 317
"""Characters of a name in a path: more than the longest key of a label."""


def duplicate_fields(text: bytes, document: object) -> tuple[str, ...]:
    """Return a sentence for each field that the text of a document sets more than once."""
    if _field_count(document) == _colon_count(text):
        return ()
    decoded = json.loads(text, object_pairs_hook=_Members)
    paths = dict.fromkeys(path for path, _ in zip(_duplicates(decoded, ""), range(MAX_DUPLICATE_FIELDS), strict=False))
    return tuple(f'duplicate field "{path}"' for path in paths)


class _Members(list[tuple[str, Any]]):
    """The members of a map, in the order of the text."""


def _duplicates(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Members):
        earlier: set[str] = set()
        for name, member in value:
            shown = name[:MAX_NAME_LENGTH]
            member_path = f"{path}.{shown}" if path else shown
            if name in earlier:
                yield member_path
            earlier.add(name)
            yield from _duplicates(member, member_path)
    elif isinstance(value, list):
        for index, element in enumerate(value):
            yield from _duplicates(element, f"{path}[{index}]")


def _colon_count(text: bytes) -> int:
    """Return the number of colons outside of strings: each follows the name of a field."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(text.split(b'"')[::2]).count(b":")


def _field_count(document: object) -> int:
    pending, count = [document], 0
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            count += len(value)
            pending += [child for child in value.values() if isinstance(child, dict | list)]
        elif isinstance(value, list):
            pending += [child for child in value if isinstance(child, dict | list)]
    return count

"""Limits of decoded documents: their levels and the number of their values. Pure."""

from __future__ import annotations

MAX_DEPTH = 64
"""Levels of maps and lists in a document. Objects of Kubernetes have about 20. So code that descends into a document
needs no limit of its own.
"""

MAX_VALUES = 250_000
"""Values in a document. 3 MiB of usual JSON have 150,000 at most, but could have 1,500,000, which cost seconds."""


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
    pending, count = [document], 0
    while pending:
        value = pending.pop()
        if isinstance(value, dict | list):
            count += len(value)
            if count > MAX_VALUES:
                return True
            children = value.values() if isinstance(value, dict) else value
            pending += [child for child in children if isinstance(child, dict | list)]
    return False

"""The limit of the levels of decoded documents; code that descends into them needs no limit of its own. Pure."""

from __future__ import annotations

MAX_DEPTH = 64
"""Levels of maps and lists in a document. Objects of Kubernetes have about 20."""


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

"""Completion indexes of a Job, as sets and as the text in its status: "0,3-5". Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from api.core.pod import Pod

_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")

INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation and label of a pod with an index."""


def index_of(pod: Pod) -> int | None:
    """Which index a pod is for; None if it has none."""
    text = pod.metadata.annotations.get(INDEX, "")
    return int(text) if text.isdecimal() else None


def read(text: str | None, count: int) -> frozenset[int]:
    """The indexes in a text that are below `count`; what is no index is left out."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, dash, last = part.partition("-")
        if first.isdecimal() and (not dash or last.isdecimal()):
            found.update(range(int(first), min(int(last or first), count - 1) + 1))
    return frozenset(found)


def is_list(text: str, count: int) -> bool:
    """Whether a text names nothing but indexes below `count`, in order."""
    least = 0
    for part in text.split(","):
        found = _PART.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (-1, -1)
        if not least <= first <= last < count:
            return False
        least = last + 1
    return True


def shown(indexes: Iterable[int]) -> str:
    """The text; from three in a row on, only the first and the last are named."""
    return ",".join(part for first, last in _rows(sorted(indexes)) for part in _part(first, last))


def _rows(ordered: list[int]) -> Iterator[tuple[int, int]]:
    first = 0
    for place, index in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != index + 1:
            yield ordered[first], index
            first = place + 1


def _part(first: int, last: int) -> Iterator[str]:
    if last == first:
        yield str(first)
    elif last == first + 1:
        yield from (str(first), str(last))
    else:
        yield f"{first}-{last}"

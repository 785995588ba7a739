"""The IDs and the SELinux level that belong to a namespace, in its annotations: parsing and allocation. Pure.

Source: the annotations of OpenShift. The forms of a block are `START/SIZE` and `START-END`. Each namespace gets a block
of user IDs, which are also its groups, and the SELinux level that belongs to the block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from master.allocators import next_numbers
from master.resources.metadata import whole_number
from master.resources.security_context_constraints import MAX_ID, IDRange

UID_RANGE_ANNOTATION = "openshift.io/sa.scc.uid-range"
SUPPLEMENTAL_GROUPS_ANNOTATION = "openshift.io/sa.scc.supplemental-groups"
MCS_ANNOTATION = "openshift.io/sa.scc.mcs"

MAX_BLOCKS = 64
"""Blocks of supplemental groups that are read."""


class BadNamespaceRanges(ValueError):
    """The annotations of a namespace are missing or cannot be read."""


@dataclass(frozen=True, slots=True)
class NamespaceRanges:
    """What MustRunAs strategies without values of their own use: user IDs, groups, and the SELinux level."""

    uids: IDRange
    groups: Sequence[IDRange]
    level: str


def parse_ranges(annotations: Mapping[str, str]) -> NamespaceRanges:
    """Return the ranges of a namespace. Without an annotation for groups, they are the user IDs.

    Raises BadNamespaceRanges.
    """
    uids = _block(UID_RANGE_ANNOTATION, _required(annotations, UID_RANGE_ANNOTATION))
    text = annotations.get(SUPPLEMENTAL_GROUPS_ANNOTATION, "")
    blocks = text.split(",", MAX_BLOCKS)[:MAX_BLOCKS] if text else []
    groups = tuple(_block(SUPPLEMENTAL_GROUPS_ANNOTATION, block.strip()) for block in blocks) or (uids,)
    return NamespaceRanges(uids, groups, _required(annotations, MCS_ANNOTATION))


def _required(annotations: Mapping[str, str], name: str) -> str:
    value = annotations.get(name, "")
    if not value:
        raise BadNamespaceRanges(f"unable to find annotation {name}")
    return value


def _block(annotation: str, text: str) -> IDRange:
    for separator in "/-":
        start, found, rest = text.partition(separator)
        low, number = whole_number(start), whole_number(rest)
        if found and low is not None and number is not None:
            high = low + number - 1 if separator == "/" else number
            if low <= high <= MAX_ID:
                return IDRange(min=low, max=high)
    raise BadNamespaceRanges(f"annotation {annotation} is {text[:64]!r}; START/SIZE and START-END are accepted")


# --- allocation -------------------------------------------------------------------------------------------------------

FIRST_UID, BLOCK_SIZE, BLOCKS = 1_000_000_000, 10_000, 100_000
"""The user IDs of all namespaces: BLOCKS blocks of BLOCK_SIZE IDs from FIRST_UID on."""

UID_BLOCK_CURSOR = "uid-blocks"
"""Name of the cursor of the allocation."""

_LEVELS_PER_BLOCK = 5


def allocate_blocks(
    count: int, allocated: Iterable[Mapping[str, str]], cursor: int
) -> tuple[list[Mapping[str, str]], int]:
    """Return the annotations of `count` new blocks, and the next cursor. There are fewer if fewer blocks are free.

    `allocated` are the annotations of the other namespaces.
    """
    used = {number for annotations in allocated for number in _block_numbers(annotations)}
    numbers, cursor = next_numbers(count, BLOCKS, used, cursor)
    return [_block_annotations(number) for number in numbers], cursor


def _block_numbers(annotations: Mapping[str, str]) -> range:
    """Return the numbers of the blocks that the user IDs of a namespace overlap."""
    try:
        uids = _block(UID_RANGE_ANNOTATION, annotations.get(UID_RANGE_ANNOTATION, ""))
    except BadNamespaceRanges:
        return range(0)
    first, last = (uids.min - FIRST_UID) // BLOCK_SIZE, (uids.max - FIRST_UID) // BLOCK_SIZE
    return range(max(first, 0), min(last, BLOCKS - 1) + 1)


def _block_annotations(number: int) -> Mapping[str, str]:
    block = f"{FIRST_UID + BLOCK_SIZE * number}/{BLOCK_SIZE}"
    return {
        UID_RANGE_ANNOTATION: block,
        SUPPLEMENTAL_GROUPS_ANNOTATION: block,
        MCS_ANNOTATION: _level(_LEVELS_PER_BLOCK * number),
    }


def _level(number: int) -> str:
    """Return the SELinux level with the pair of categories of this number: c1,c0, c2,c0, c2,c1, c3,c0 and so on."""
    high = (1 + math.isqrt(1 + 8 * number)) // 2
    return f"s0:c{high},c{number - high * (high - 1) // 2}"

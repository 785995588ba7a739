"""The cursors of allocators: read and stored with the write that uses the numbers. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from api.meta.types import ObjectMeta
from master.allocators import ALLOCATOR_CURSORS, AllocatorCursor
from master.storage.interface import Key, Transaction


def read_cursor(name: str, get: Callable[[Key], Any]) -> AllocatorCursor:
    """Return the stored cursor of an allocator, or a new one. `get` returns an object, None if there is none."""
    cursor: AllocatorCursor | None = get(Key(ALLOCATOR_CURSORS, "", name))
    return cursor or AllocatorCursor(metadata=ObjectMeta(name=name))


def move_cursor(cursor: AllocatorCursor, after: int, transaction: Transaction) -> None:
    """Store the cursor with another next number, if it is another one."""
    if cursor.next != after:
        transaction.put(ALLOCATOR_CURSORS, replace(cursor, next=after))

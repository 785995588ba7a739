"""The cursors of allocators that reserve in admission: read and stored with the write that uses the numbers. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from api.meta.types import ObjectMeta
from master.allocators import ALLOCATOR_CURSORS, AllocatorCursor
from master.storage.interface import Key, Transaction


def read_cursor(name: str, transaction: Transaction) -> AllocatorCursor:
    """Return the stored cursor of an allocator, or a new one."""
    cursor: AllocatorCursor | None = transaction.get(Key(ALLOCATOR_CURSORS, "", name))
    return cursor or AllocatorCursor(metadata=ObjectMeta(name=name))


def move_cursor(cursor: AllocatorCursor, after: int, transaction: Transaction) -> None:
    """Store the cursor with another next number, if it is another one."""
    if cursor.next != after:
        transaction.put(ALLOCATOR_CURSORS, replace(cursor, next=after))

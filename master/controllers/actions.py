"""The actions of controllers: writes, and warnings for operators. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from api.meta.types import Object
from master.allocators import AllocatorCursor
from master.registry.strategy import BACKGROUND


@dataclass(frozen=True, slots=True)
class Create:
    """A new object; `by`, if anybody, tells its owner in an event that it was made.

    `owner` is for whom it is made, where that is not its controller.
    """

    item: Object
    by: str = ""
    owner: Object | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """An object in another state. `before` must still be the newest."""

    item: Object
    before: Object


@dataclass(frozen=True, slots=True)
class ForceDelete:
    """An object that goes at once."""

    item: Object


@dataclass(frozen=True, slots=True)
class Delete:
    """An object to be deleted as a user would delete it: a pod with its grace period, others by their finalizers.

    `policy` says what becomes of its dependents.
    """

    item: Object
    policy: str = BACKGROUND


@dataclass(frozen=True, slots=True)
class Warn:
    """Something that an operator must know and that no write can mend."""

    text: str
    about: str


WriteAction = Create | Update | ForceDelete | Delete
Action = WriteAction | Warn


def advance_cursor(cursor: AllocatorCursor, after: int) -> Create | Update:
    """The cursor's own write."""
    item = msgspec.structs.replace(cursor, next=after)
    return Update(item, cursor) if cursor.metadata.resource_version else Create(item)

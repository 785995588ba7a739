"""What a controller wishes: writes, and notices for operators. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from api.meta.types import Object
from master.writing.writes import BACKGROUND


class Cursor(Object, frozen=True):
    """Where an allocator goes on; kept in the store beside the objects, not served. Named subnets or vnids."""

    API_VERSION = "internal"
    KIND: ClassVar[str] = "Cursor"

    next: int = 0


@dataclass(frozen=True, slots=True)
class Make:
    """A new object; `by`, if anybody, tells its owner in an event that it was made.

    `owner` is for whom it is made, where that is not its controller.
    """

    item: Object
    by: str = ""
    owner: Object | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """An object in another state. `before` must still be the newest."""

    item: Object
    before: Object


@dataclass(frozen=True, slots=True)
class Drop:
    """An object that goes at once."""

    item: Object


@dataclass(frozen=True, slots=True)
class End:
    """An object to be deleted as a user would delete it: a pod with its grace period, others by their finalizers.

    `policy` says what becomes of its dependents.
    """

    item: Object
    policy: str = BACKGROUND


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that an operator must know and that no write can mend."""

    text: str
    about: str


Write = Make | Change | Drop | End
Outcome = Write | Notice


def moved(cursor: Cursor, after: int) -> Make | Change:
    """The cursor's own write."""
    item = msgspec.structs.replace(cursor, next=after)
    return Change(item, cursor) if cursor.metadata.resource_version else Make(item)

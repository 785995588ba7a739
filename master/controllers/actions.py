"""The actions of controllers: writes, and warnings for operators. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from api.meta.types import Object
from master.allocators import AllocatorCursor
from master.registry.strategy import BACKGROUND


@dataclass(frozen=True, slots=True)
class Create:
    """The creation of an object. It passes admission and `prepare_for_create` of its resource, as that of a client.

    Most resources reset the status there; `accept_status` in `master/resources/resource.py` keeps it.
    """

    object: Object
    by: str = ""
    """The controller that reports the creation in an event of the owner; empty for no event."""
    owner: Object | None = None
    """For whom the object is created, if that is not its controller."""


@dataclass(frozen=True, slots=True)
class Update:
    """The replacement of an object, with its status."""

    object: Object
    before: Object
    """The state that was read; the write fails if it is no longer the newest."""


@dataclass(frozen=True, slots=True)
class ForceDelete:
    """The removal of an object at once, without finalizers and grace period."""

    object: Object


@dataclass(frozen=True, slots=True)
class Delete:
    """The deletion of an object as by a client: a pod with its grace period, others by their finalizers."""

    object: Object
    policy: str = BACKGROUND
    """What happens to dependents."""


@dataclass(frozen=True, slots=True)
class Warn:
    """A condition that operators must know and that no write can repair."""

    text: str
    about: str


WriteAction = Create | Update | ForceDelete | Delete
Action = WriteAction | Warn


def advance_cursor(cursor: AllocatorCursor, after: int) -> Create | Update:
    """Return the write that stores the cursor's next number."""
    moved = msgspec.structs.replace(cursor, next=after)
    return Update(moved, cursor) if cursor.metadata.resource_version else Create(moved)

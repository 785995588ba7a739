"""The actions of controllers: writes, and warnings for operators. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from api.meta.types import O, Object
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


@dataclass(frozen=True, slots=True)
class Failed:
    """An unexpected error while one object was reconciled. The runtime logs it, and the object is retried."""

    object: Object
    error: Exception


WriteAction = Create | Update | ForceDelete | Delete
Action = WriteAction | Warn | Failed

T = TypeVar("T")


def isolate_errors(objects: Iterable[O], function: Callable[[O], Iterable[T]]) -> Iterator[T | Failed]:
    """Yield the results of `function` for each object.

    If it raises for an object, yield `Failed` in place of all results of this object, and continue with the next one.
    So an object that no code expects (written by an earlier version, or by a path without validation) costs the
    others nothing, as a key of client-go's workqueue.
    """
    for obj in objects:
        try:
            results = list(function(obj))
        except Exception as error:  # noqa: BLE001 - reported as Failed, with its traceback
            yield Failed(obj, error)
        else:
            yield from results


def advance_cursor(cursor: AllocatorCursor, after: int) -> Create | Update:
    """Return the write that stores the cursor's next number."""
    moved = msgspec.structs.replace(cursor, next=after)
    return Update(moved, cursor) if cursor.metadata.resource_version else Create(moved)

"""The commit of requests that write: decide on the newest state and write; again, if another writer was first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from master import errors
from master.admission.external_calls import MAX_ROUNDS, CallsPending, PendingWrite
from master.registry.external_caller import ExternalCaller
from master.resources.resource import AnyResource
from master.storage.interface import Conflict, Delete, Put, Storage

T = TypeVar("T")

MAX_ATTEMPTS = 5
"""As many as kube-apiserver makes for a patch."""


@dataclass(frozen=True, slots=True)
class WriteDecision(Generic[T]):
    """The changes that a request writes, and the function that makes its response of the stored objects."""

    respond: Callable[[tuple[Any, ...]], T]
    """Gets the stored objects in the order of `changes`; nothing for a dry run."""
    changes: tuple[Put | Delete, ...] = ()
    is_dry_run: bool = False


async def guaranteed_update(
    storage: Storage,
    resource: AnyResource,
    name: str,
    decide: Callable[[], WriteDecision[T]],
    write: PendingWrite | None = None,
    caller: ExternalCaller | None = None,
) -> T:
    """Write what `decide` returns, and return the response. Raises StatusError and NotReady.

    `decide` reads the newest state, does not wait, and does not change its input, because a Conflict lets it run again
    on the newer state. It raises StatusError if the request does not fit that state: an update or delete with an old
    resourceVersion, or a create of a name that exists meanwhile, is therefore not retried. After MAX_ATTEMPTS conflicts
    the client gets 409.

    If `decide` raises CallsPending, `caller` makes the calls, and `decide` runs again with the results in
    `write.external`. Neither is needed if `decide` makes no external calls.

    Without changes it waits until the state that the decision is based on is durable.
    """
    for _ in range(MAX_ATTEMPTS):
        decision = await decided(decide, write, caller)
        if decision.is_dry_run:
            return decision.respond(())
        try:
            stored = await storage.write(*decision.changes)
        except Conflict:
            continue
        return decision.respond(stored)
    raise errors.conflict(resource, name)


async def decided(decide: Callable[[], T], write: PendingWrite | None, caller: ExternalCaller | None) -> T:
    """Return what `decide` returns, after the external calls that it needs. Raises StatusError."""
    if write is None or caller is None:
        return decide()
    for _ in range(MAX_ROUNDS):
        write.restart()
        try:
            return decide()
        except CallsPending as pending:
            try:
                async with asyncio.timeout_at(write.deadline):
                    await caller.resolve(pending.calls, write.external)
            except TimeoutError:
                raise errors.request_timeout() from None
    raise errors.internal_error(f"the request needs more than {MAX_ROUNDS} rounds of external calls")

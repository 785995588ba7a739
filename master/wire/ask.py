"""A request for objects and its answer, apart from HTTP. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from api.meta.schema import NOT_SUPPORTED, FieldError, quoted
from master.auth.attributes import User
from master.registry.request import DeleteOptions
from master.store.records import Key
from master.wire import answers, request
from master.wire.request import Target, Visible

Clock = Callable[[], datetime.datetime]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for objects, with its body read.

    `user` is who sent it, and sees those objects that are `visible` to him, or all; `manager` is the name under which
    the client owns fields. `address` is where the connection of that user came from; empty if it is another's, who acts
    as him.
    """

    where: Target
    query: Mapping[str, str]
    accept: str = ""
    content_type: str = ""
    manager: str = ""
    user: User = User()  # noqa: RUF009
    visible: Visible | None = None
    document: Any = None
    address: str = ""

    @property
    def key(self) -> Key:
        """The object that is asked for."""
        return Key(self.where.kind.stored, self.where.namespace, self.where.name)


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON body with its code; warnings are for the person who sent the request."""

    code: int
    body: bytes
    warnings: tuple[str, ...] = ()


def delete_options(ask: Ask) -> DeleteOptions:
    """The body of a delete, and what its parameters say instead. Raises Failure."""
    try:
        options = msgspec.convert({} if ask.document is None else ask.document, DeleteOptions)
    except msgspec.ValidationError as error:
        raise answers.bad_request(f"the body is not a DeleteOptions: {error}") from error
    seconds, policy = request.number(ask.query, "gracePeriodSeconds"), ask.query.get("propagationPolicy", "")
    options = msgspec.structs.replace(
        options,
        grace_period_seconds=options.grace_period_seconds if seconds is None else seconds,
        propagation_policy=policy or options.propagation_policy,
    )
    if options.dry_run not in ((), ("All",)):
        problem = FieldError("dryRun", quoted(options.dry_run), 'supported values: "All"', NOT_SUPPORTED)
        raise answers.invalid_options("DeleteOptions", problem)
    if options.orphan_dependents is not None and options.propagation_policy:
        why = "orphanDependents and deletionPropagation cannot be both set"
        problem = FieldError("propagationPolicy", quoted(options.propagation_policy), why)
        raise answers.invalid_options("DeleteOptions", problem)
    return options

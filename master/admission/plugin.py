"""The interface of admission plugins, and the request that they admit. Pure.

Admission runs in three stages (Kubernetes: mutating and validating admission). `mutate` completes an object, `validate`
rejects it, and `reserve` takes what must be unique or limited: addresses, ports, quota. The stages do not wait, and
what they decide is part of the transaction that writes the object, so decisions hold when several writes happen at the
same time.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from master.auth.rbac import Requester
from master.resources.resource import AnyResource
from master.storage.interface import Transaction


class Operation(StrEnum):
    """What happens to the object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """A write that is to be admitted.

    `old` is the stored object, None for a create. `requester` is None for the master's own controllers.
    `client_address` is where the requester's connection comes from, empty if the requester is impersonated.
    `grace_period_seconds` is that of a delete. `random_suffix` returns five letters for a generated name.
    """

    operation: Operation
    resource: AnyResource
    now: datetime.datetime
    random_suffix: Callable[[], str]
    subresource: str = ""
    old: Any = None
    requester: Requester | None = None
    client_address: str = ""
    grace_period_seconds: int | None = None


class AdmissionPlugin:
    """A plugin that admits everything as it is. Plugins override the stages in which they act.

    Each stage raises `errors.StatusError` to reject the write. `objects` are the stored objects with the changes of the
    transaction.
    """

    def mutate(self, request: AdmissionRequest, item: Any, objects: Transaction) -> Any:
        """Return the object as it is to be stored."""
        del request, objects
        return item

    def validate(self, request: AdmissionRequest, item: Any, objects: Transaction) -> None:
        """Reject the write, or do nothing. For a delete, `item` is the stored object."""

    def reserve(self, request: AdmissionRequest, item: Any, objects: Transaction) -> Any:
        """Reserve what the object needs, put what changes with it into the transaction, and return the object."""
        del request, objects
        return item

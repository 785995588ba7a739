"""The interface of admission plugins, and the request that they admit. Pure.

Admission runs in three stages (Kubernetes: mutating and validating admission). `mutate` completes an object, `validate`
rejects it, and `reserve` allocates what is unique or limited: addresses, ports, quota. The stages do not wait. Their
changes are part of the transaction that writes the object, so decisions are valid for concurrent writes, too.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from master.admission.external_calls import ExternalResults
from master.auth.rbac import Requester
from master.resources.resource import AnyResource
from master.resources.scheme import BUILTIN_SCHEME, Scheme
from master.storage.interface import Transaction


class Operation(StrEnum):
    """The operation on the object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CONNECT = "CONNECT"


def ignore_warning(warning: str) -> None:
    """Drop a warning: there is no client that could read it."""


def ignore_annotation(key: str, value: str) -> None:
    """Drop an annotation: the request is not audited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """The attributes of a write that is to be admitted.

    `old` is the stored object, None for a create and for a connection to a pod. `requester` is None for the master's
    own controllers. `client_address` is the address of the requester's connection, empty if the requester is
    impersonated. `grace_period_seconds` is that of a delete. `random_suffix` returns five letters for a generated name.
    `warn` sends a warning to the client with the response. `annotate(key, value)` adds to the audit events of the
    request. `is_dry_run` says that nothing is written. `options` are those of the request, as webhooks see them. `body`
    is the document of a subresource with a kind of its own, such as Scale. `external` has the results of external
    calls; it is None for writes of the master itself, such as tokens and events, about which nobody outside is asked.
    `scheme` has the resources that are served, among which rules and parameters name theirs.
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
    warn: Callable[[str], None] = ignore_warning
    annotate: Callable[[str, str], None] = ignore_annotation
    is_dry_run: bool = False
    options: Mapping[str, Any] | None = None
    body: Any = None
    external: ExternalResults | None = None
    scheme: Scheme = BUILTIN_SCHEME


class AdmissionPlugin:
    """The base of plugins, which admits every object unchanged. A plugin overrides the stages in which it acts.

    Each stage raises `errors.StatusError` to reject the write, and CallsPending (external_calls.py) to have it decided
    again after external calls. `objects` are the stored objects with the changes of the
    transaction.
    """

    sees_actions = False
    """Whether `validate` also runs for the subresources scale, binding, eviction and token, with the object to which
    they belong.
    """

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        """Return the completed object."""
        del request, objects
        return obj

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        """Reject the write, or do nothing. For a delete and for a connection, `obj` is the stored object."""

    def reserve(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        """Reserve what the object needs, put what changes with it into the transaction, and return the object."""
        del request, objects
        return obj

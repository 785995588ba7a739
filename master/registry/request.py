"""Requests for resources and their responses, and their options, apart from HTTP."""

from __future__ import annotations

import msgspec

# --- delete -----------------------------------------------------------------------------------------------------------


class Preconditions(msgspec.Struct, frozen=True, rename="camel"):
    """What must hold of the object that is to be deleted."""

    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(msgspec.Struct, frozen=True, rename="camel"):
    """The body of a delete; `grace_period_seconds` left out means what the object says.

    `propagation_policy` says what becomes of dependents: Background, Foreground or Orphan; without it the kind decides.
    """

    grace_period_seconds: int | None = None
    propagation_policy: str = ""
    orphan_dependents: bool | None = None
    preconditions: Preconditions | None = None
    dry_run: tuple[str, ...] = ()

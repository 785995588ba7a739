"""What controllers could not make, and when they may try again. Pure: the time comes in.

A refusal is kept under the uid of the owner for whom it was to be made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from master.kinds import amounts
from master.kinds.limit_range import LimitRange
from master.kinds.resource_quota import ResourceQuota
from master.kinds.service_account import ServiceAccount
from master.store.records import Event

FIRST, LAST = 1.0, 60.0
"""Seconds before the second try, and between later ones; they double."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """`pause` is how long to wait, `again` until when (seconds of a steady clock)."""

    namespace: str
    message: str
    pause: float
    again: float


Refusals = Mapping[str, Refusal]


def refused(before: Refusal | None, namespace: str, message: str, now: float) -> Refusal:
    """Another refusal."""
    pause = FIRST if before is None else min(2 * before.pause, LAST)
    return Refusal(namespace, message, pause, now + pause)


def relieved(known: Refusals, event: Event, now: float) -> dict[str, Refusal]:
    """The same after a change of a quota, of bounds or of an account: where there is more room, nobody need wait."""
    namespace = event.record.key.namespace
    if not _is_relief(event):
        return dict(known)
    return {uid: replace(one, again=now) if one.namespace == namespace else one for uid, one in known.items()}


def _is_relief(event: Event) -> bool:
    new, old = event.record.object, event.previous.object if event.previous is not None else None
    if isinstance(new, ServiceAccount):
        return event.type == "ADDED"
    if event.type == "DELETED" or isinstance(new, LimitRange):
        return True
    if not isinstance(new, ResourceQuota) or old is None:
        return False
    if new.spec.hard != old.spec.hard:
        return True
    before, after = amounts.read(old.status.used), amounts.read(new.status.used)
    return any(name in after and after[name].milli < before[name].milli for name in before)

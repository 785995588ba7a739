"""What the server itself writes down in a CertificateSigningRequest: who asks, and when something was decided. Pure."""

from __future__ import annotations

import datetime
from typing import Any

from msgspec.structs import replace

from api.core.certificates import CertificateSigningRequest, csr_condition
from master.access.authorize import User
from master.access.serving import ADDRESS, written
from master.kinds.kind import show_time


def asked_by(item: Any, user: User, address: str) -> Any:
    """A new object with who asks for it, and from which address; those of other kinds as they are."""
    if not isinstance(item, CertificateSigningRequest):
        return item
    # Who acts as somebody else chooses what else is known of him: never this.
    extra = {key: values for key, values in user.extra if key != ADDRESS}
    if known := written(address):
        extra[ADDRESS] = (known,)
    spec = replace(item.spec, username=user.name, uid=user.uid, groups=tuple(sorted(user.groups)), extra=extra)
    return replace(item, spec=spec)


def dated(new: Any, old: Any, now: datetime.datetime) -> Any:
    """An object whose conditions say since when; those of other kinds as they are."""
    if not isinstance(new, CertificateSigningRequest):
        return new
    moment, rows = show_time(now), []
    for row in new.status.conditions:
        before = csr_condition(old, row.type)
        same = before is not None and before.status == row.status
        since = row.last_transition_time or (before.last_transition_time if before and same else None)
        rows.append(replace(row, last_update_time=row.last_update_time or moment, last_transition_time=since or moment))
    return replace(new, status=replace(new.status, conditions=tuple(rows)))

"""CertificateSigningRequests: requester and condition times; who may request, approve and sign. Pure."""

from __future__ import annotations

import datetime
from typing import Any

from msgspec.structs import replace

from api.core.certificates import CLIENT, CertificateSigningRequest, csr_condition
from api.pki import keys
from master import errors
from master.auth.attributes import SYSTEM_MASTERS, Attributes, User
from master.auth.certificate_signing import ADDRESS_EXTRA, NODE_SIGNERS, Authorize, normalize_address
from master.resources.certificate_requests import CERTIFICATE_SIGNING_REQUESTS as KIND
from master.resources.metadata import format_time

# --- who may ask, approve and sign ------------------------------------------------------------------------------------


def check_csr_create(item: CertificateSigningRequest, user: User) -> None:
    """Whether somebody may ask for that. Raises StatusError."""
    signer, subject = item.spec.signer_name, keys.parse_request(item.spec.request).subject
    if signer == CLIENT and SYSTEM_MASTERS in subject.groups:
        why = f"use of {CLIENT} signer with {SYSTEM_MASTERS} group is not allowed"
        raise errors.forbidden(KIND, item.metadata.name, why)
    if user.node and SYSTEM_MASTERS not in user.groups and signer in NODE_SIGNERS and subject.user != user.name:
        raise errors.forbidden(KIND, item.metadata.name, f"can only create a node CSR with CN={user.name}")


def check_csr_update(
    new: CertificateSigningRequest, old: CertificateSigningRequest, part: str, user: User, may: Authorize
) -> None:
    """Whether somebody may write that part of a request, `approval` or `status`. Raises StatusError."""
    if part == "approval":
        verb = "approve"
    elif part == "status" and new.status != old.status:
        verb = "sign"
    else:
        return
    signer = old.spec.signer_name
    wild = f"{signer.partition('/')[0]}/*"
    rights = (Attributes(verb, KIND.group, "signers", name=name) for name in (signer, wild))
    if not any(may(user, right) for right in rights):
        why = f'user not permitted to {verb} requests with signerName "{signer}"'
        raise errors.forbidden(KIND, old.metadata.name, why)


def set_requester(item: Any, user: User, address: str) -> Any:
    """A new object with who asks for it, and from which address; those of other kinds as they are."""
    if not isinstance(item, CertificateSigningRequest):
        return item
    # Who acts as somebody else chooses what else is known of him: never this.
    extra = {key: values for key, values in user.extra if key != ADDRESS_EXTRA}
    if known := normalize_address(address):
        extra[ADDRESS_EXTRA] = (known,)
    spec = replace(item.spec, username=user.name, uid=user.uid, groups=tuple(sorted(user.groups)), extra=extra)
    return replace(item, spec=spec)


def set_condition_times(new: Any, old: Any, now: datetime.datetime) -> Any:
    """An object whose conditions say since when; those of other kinds as they are."""
    if not isinstance(new, CertificateSigningRequest):
        return new
    moment, rows = format_time(now), []
    for row in new.status.conditions:
        before = csr_condition(old, row.type)
        same = before is not None and before.status == row.status
        since = row.last_transition_time or (before.last_transition_time if before and same else None)
        rows.append(replace(row, last_update_time=row.last_update_time or moment, last_transition_time=since or moment))
    return replace(new, status=replace(new.status, conditions=tuple(rows)))

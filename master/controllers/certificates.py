"""Requests for certificates that are approved by themselves, and those that are signed. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Iterator

from msgspec.structs import replace

from api.core.certificates import (
    APPROVED,
    DENIED,
    FAILED,
    CertificateSigningRequest,
    CertificateSigningRequestCondition,
    csr_condition,
)
from api.core.node import Node
from api.pki import keys
from master.access import signers
from master.access.serving import Reserved
from master.access.signers import May
from master.kinds.kind import show_time
from master.writing.outcomes import Change, Notice

Sign = Callable[[CertificateSigningRequest], bytes]


def approvals(
    requests: Iterable[CertificateSigningRequest],
    nodes: Collection[Node],
    reserved: Reserved,
    may: May,
    now: datetime.datetime,
) -> Iterator[Change | Notice]:
    """Those of nodes that may have what they ask for; that others wait for somebody is told."""
    for item in requests:
        decided = any(csr_condition(item, kind) for kind in (APPROVED, DENIED, FAILED))
        if decided or item.spec.signer_name not in signers.OF_NODES:
            continue
        name, spec = item.metadata.name, item.spec
        found = signers.verdict(item, nodes, reserved, may)
        if found.approved:
            yield Change(_with(item, APPROVED, "AutoApproved", found.words, now), item)
        else:
            asked = f"{spec.username} asks {spec.signer_name} for {signers.wanted(item)}"
            words = f"{asked}; not approved by itself: {found.words}; kubectl certificate approve {name}"
            yield Notice(words, f"CertificateSigningRequest {name}")


def signings(requests: Iterable[CertificateSigningRequest], sign: Sign, now: datetime.datetime) -> Iterator[Change]:
    """Approved ones get their certificate, or are told why they do not."""
    for item in requests:
        approved = csr_condition(item, APPROVED) and not (csr_condition(item, DENIED) or csr_condition(item, FAILED))
        if item.status.certificate or not approved or item.spec.signer_name not in signers.OURS:
            continue
        why = signers.refusal(item, keys.read_request(item.spec.request))
        if why:
            yield Change(_with(item, FAILED, "SignerValidationFailure", why, now), item)
        else:
            yield Change(replace(item, status=replace(item.status, certificate=sign(item))), item)


def _with(
    item: CertificateSigningRequest, kind: str, reason: str, words: str, now: datetime.datetime
) -> CertificateSigningRequest:
    moment = show_time(now)
    row = CertificateSigningRequestCondition(
        type=kind, status="True", reason=reason, message=words, last_update_time=moment, last_transition_time=moment
    )
    return replace(item, status=replace(item.status, conditions=(*item.status.conditions, row)))

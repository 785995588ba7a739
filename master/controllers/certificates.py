"""Approval and signing of CertificateSigningRequests. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator

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
from master.auth import certificate_signing
from master.auth.certificate_signing import Authorize, ReservedNames
from master.controllers.actions import Action, Update, Warn
from master.controllers.context import Lister, Sign
from master.controllers.network import kubernetes_service
from master.resources.metadata import format_time


def approve_requests(
    requests: Iterable[CertificateSigningRequest],
    nodes: Collection[Node],
    reserved: ReservedNames,
    may: Authorize,
    now: datetime.datetime,
) -> Iterator[Update | Warn]:
    """Those of nodes that may have what they ask for; that others wait for somebody is told."""
    for item in requests:
        decided = any(csr_condition(item, kind) for kind in (APPROVED, DENIED, FAILED))
        if decided or item.spec.signer_name not in certificate_signing.NODE_SIGNERS:
            continue
        name, spec = item.metadata.name, item.spec
        found = certificate_signing.approve(item, nodes, reserved, may)
        if found.approved:
            yield Update(_with(item, APPROVED, "AutoApproved", found.words, now), item)
        else:
            asked = f"{spec.username} asks {spec.signer_name} for {certificate_signing.describe_csr(item)}"
            words = f"{asked}; not approved by itself: {found.words}; kubectl certificate approve {name}"
            yield Warn(words, f"CertificateSigningRequest {name}")


def sign_requests(
    requests: Iterable[CertificateSigningRequest], sign: Sign, now: datetime.datetime
) -> Iterator[Update]:
    """Approved ones get their certificate, or are told why they do not."""
    for item in requests:
        approved = csr_condition(item, APPROVED) and not (csr_condition(item, DENIED) or csr_condition(item, FAILED))
        if item.status.certificate or not approved or item.spec.signer_name not in certificate_signing.BUILTIN_SIGNERS:
            continue
        why = certificate_signing.signing_denial(item, keys.read_request(item.spec.request))
        if why:
            yield Update(_with(item, FAILED, "SignerValidationFailure", why, now), item)
        else:
            yield Update(replace(item, status=replace(item.status, certificate=sign(item))), item)


def _with(
    item: CertificateSigningRequest, kind: str, reason: str, words: str, now: datetime.datetime
) -> CertificateSigningRequest:
    moment = format_time(now)
    row = CertificateSigningRequestCondition(
        type=kind, status="True", reason=reason, message=words, last_update_time=moment, last_transition_time=moment
    )
    return replace(item, status=replace(item.status, conditions=(*item.status.conditions, row)))


def sync_approvals(lister: Lister) -> Iterable[Action]:
    """Approve the requests that need no approval by an administrator."""
    found = lister.list("CertificateSigningRequest")
    if not found:
        return ()
    place, wish = lister.context.server_address(), lister.context.network
    networks = (*(pool.network for pool in wish.pools.pools), wish.service_network)
    reserved = ReservedNames(
        networks,
        place.address if place else "",
        frozenset((*kubernetes_service.DNS_NAMES, lister.context.hostname().lower())),
    )
    return approve_requests(found, lister.list("Node"), reserved, lister.context.authorize, lister.now)


def sync_signatures(lister: Lister) -> Iterable[Action]:
    """Sign the approved requests."""
    return sign_requests(lister.list("CertificateSigningRequest"), lister.context.issue_certificate, lister.now)

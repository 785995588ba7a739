"""Approval and signing of CertificateSigningRequests. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator

from msgspec.structs import replace

from api.core.certificates import (
    APPROVED,
    DENIED,
    FAILED,
    KUBELET_CLIENT_SIGNER,
    CertificateSigningRequest,
    CertificateSigningRequestCondition,
    csr_condition,
)
from api.core.node import Node
from api.pki import keys
from api.pki.pem import BadPem
from master.auth import certificate_signing
from master.auth.attributes import Authorize
from master.auth.certificate_signing import ReservedNames
from master.controllers.actions import Action, Failed, Update, Warn, isolate_errors
from master.controllers.context import Lister, Sign
from master.controllers.network import kubernetes_service
from master.resources.metadata import format_time


def approve_requests(
    requests: Iterable[CertificateSigningRequest],
    nodes: Collection[Node],
    reserved: ReservedNames,
    authorize: Authorize,
    now: datetime.datetime,
) -> Iterator[Update | Warn | Failed]:
    """Yield the approval of requests of nodes that get what they request, and a warning for those that an administrator
    must approve.
    """
    requests = tuple(requests)
    claims: dict[str, set[str]] = {}
    if any(_is_undecided(csr) and csr.spec.signer_name == KUBELET_CLIENT_SIGNER for csr in requests):
        for approved in requests:
            if csr_condition(approved, APPROVED) and (claim := _claim(approved)):
                claims.setdefault(claim[0], set()).add(claim[1])

    def approve_request(csr: CertificateSigningRequest) -> Iterator[Update | Warn]:
        if not _is_undecided(csr) or csr.spec.signer_name not in certificate_signing.NODE_SIGNERS:
            return
        name, spec = csr.metadata.name, csr.spec
        approval = certificate_signing.approve(csr, nodes, reserved, authorize, claims)
        if approval.approved:
            if claim := certificate_signing.node_claim(csr):
                claims.setdefault(claim[0], set()).add(claim[1])
            yield Update(_with(csr, APPROVED, "AutoApproved", approval.message, now), csr)
        else:
            request = f"{spec.username} requests from {spec.signer_name}: {certificate_signing.describe_csr(csr)}"
            message = f"{request}; not approved automatically: {approval.message}; kubectl certificate approve {name}"
            yield Warn(message, f"CertificateSigningRequest {name}")

    return isolate_errors(requests, approve_request)


def _is_undecided(csr: CertificateSigningRequest) -> bool:
    return not any(csr_condition(csr, condition_type) for condition_type in (APPROVED, DENIED, FAILED))


def _claim(csr: CertificateSigningRequest) -> tuple[str, str] | None:
    """Return for which node, and from where, a certificate was requested; None for what is no such request."""
    try:
        return certificate_signing.node_claim(csr)
    except BadPem:
        return None


def sign_requests(
    requests: Iterable[CertificateSigningRequest], sign: Sign, now: datetime.datetime
) -> Iterator[Update | Failed]:
    """Yield approved requests with their certificate, or with the condition why it is not issued."""

    def sign_request(csr: CertificateSigningRequest) -> Iterator[Update]:
        is_approved = csr_condition(csr, APPROVED) and not (csr_condition(csr, DENIED) or csr_condition(csr, FAILED))
        if csr.status.certificate or not is_approved or csr.spec.signer_name not in certificate_signing.BUILTIN_SIGNERS:
            return
        reason = certificate_signing.signing_denial(csr, keys.parse_request(csr.spec.request))
        if reason:
            yield Update(_with(csr, FAILED, "SignerValidationFailure", reason, now), csr)
        else:
            yield Update(replace(csr, status=replace(csr.status, certificate=sign(csr))), csr)

    return isolate_errors(requests, sign_request)


def _with(
    csr: CertificateSigningRequest, condition_type: str, reason: str, message: str, now: datetime.datetime
) -> CertificateSigningRequest:
    time = format_time(now)
    condition = CertificateSigningRequestCondition(
        type=condition_type,
        status="True",
        reason=reason,
        message=message,
        last_update_time=time,
        last_transition_time=time,
    )
    return replace(csr, status=replace(csr.status, conditions=(*csr.status.conditions, condition)))


def sync_approvals(lister: Lister) -> Iterable[Action]:
    """Approve the requests that need no approval by an administrator."""
    requests = lister.list(CertificateSigningRequest)
    if not requests:
        return ()
    server, config = lister.context.server_address(), lister.context.network
    networks = (*(pool.network for pool in config.pools.pools), config.service_network)
    reserved = ReservedNames(
        networks,
        server.address if server else "",
        frozenset((*kubernetes_service.DNS_NAMES, lister.context.hostname().lower())),
    )
    return approve_requests(requests, lister.list(Node), reserved, lister.context.authorize, lister.now)


def sync_signatures(lister: Lister) -> Iterable[Action]:
    """Sign the approved requests."""
    return sign_requests(lister.list(CertificateSigningRequest), lister.context.issue_certificate, lister.now)

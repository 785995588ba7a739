"""CertificateSigningRequests: requester and condition times; who may request, approve and sign. Pure."""

from __future__ import annotations

import datetime
from typing import Any

from msgspec.structs import replace

from api.core.certificates import CLIENT_SIGNER, CertificateSigningRequest, csr_condition
from api.pki import keys
from master import errors
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.auth.attributes import SYSTEM_CLUSTER_ADMINS, SYSTEM_MASTERS, Attributes, User
from master.auth.certificate_signing import ADDRESS_EXTRA, NODE_SIGNERS, normalize_address
from master.auth.rbac import Requester
from master.resources.certificate_requests import CERTIFICATE_SIGNING_REQUESTS as KIND
from master.resources.metadata import format_time
from master.storage.interface import Transaction


class CertificateRequests(AdmissionPlugin):
    """Records the requester of a CertificateSigningRequest; checks who may request, approve and sign."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        del objects
        if not isinstance(obj, CertificateSigningRequest):
            return obj
        if request.operation is Operation.CREATE and request.requester is not None:
            return set_requester(obj, request.requester.user, request.client_address)
        return set_condition_times(obj, request.old, request.now) if request.subresource else obj

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        del objects
        requester = request.requester
        if not isinstance(obj, CertificateSigningRequest) or requester is None:
            return
        if request.operation is Operation.CREATE:
            check_csr_create(obj, requester.user)
        elif request.operation is Operation.UPDATE:
            check_csr_update(obj, request.old, request.subresource, requester)


# --- who may request, approve and sign --------------------------------------------------------------------------------


def check_csr_create(csr: CertificateSigningRequest, user: User) -> None:
    """Require that the user may request this certificate. Raises Forbidden."""
    signer, subject = csr.spec.signer_name, keys.parse_request(csr.spec.request).subject
    administrators = {SYSTEM_MASTERS, SYSTEM_CLUSTER_ADMINS} & set(subject.groups)
    if signer == CLIENT_SIGNER and administrators:
        reason = f"use of {CLIENT_SIGNER} signer with {min(administrators)} group is not allowed"
        raise errors.forbidden(KIND, csr.metadata.name, reason)
    if user.node and SYSTEM_MASTERS not in user.groups and signer in NODE_SIGNERS and subject.user != user.name:
        raise errors.forbidden(KIND, csr.metadata.name, f"can only create a node CSR with CN={user.name}")


def check_csr_update(
    new: CertificateSigningRequest, old: CertificateSigningRequest, subresource: str, requester: Requester
) -> None:
    """Require that the user may write this subresource of a request: approve it, or sign it. Raises Forbidden."""
    if subresource == "approval":
        verb = "approve"
    elif subresource == "status" and new.status != old.status:
        verb = "sign"
    else:
        return
    signer = old.spec.signer_name
    all_names = f"{signer.partition('/')[0]}/*"
    required = (Attributes(verb, KIND.group, "signers", name=name) for name in (signer, all_names))
    if not any(map(requester.is_allowed, required)):
        reason = f'user not permitted to {verb} requests with signerName "{signer}"'
        raise errors.forbidden(KIND, old.metadata.name, reason)


def set_requester(csr: CertificateSigningRequest, user: User, address: str) -> CertificateSigningRequest:
    """Record the requester and the client address in the spec."""
    # An impersonating client chooses the extra values, but not the address.
    extra = {key: values for key, values in user.extra if key != ADDRESS_EXTRA}
    if client_address := normalize_address(address):
        extra[ADDRESS_EXTRA] = (client_address,)
    spec = replace(csr.spec, username=user.name, uid=user.uid, groups=tuple(sorted(user.groups)), extra=extra)
    return replace(csr, spec=spec)


def set_condition_times(
    new: CertificateSigningRequest, old: CertificateSigningRequest, now: datetime.datetime
) -> CertificateSigningRequest:
    """Set the update and transition times that conditions lack."""
    time = format_time(now)
    conditions = []
    for condition in new.status.conditions:
        before = csr_condition(old, condition.type)
        is_same = before is not None and before.status == condition.status
        since = condition.last_transition_time or (before.last_transition_time if before and is_same else None)
        conditions.append(
            replace(
                condition,
                last_update_time=condition.last_update_time or time,
                last_transition_time=since or time,
            )
        )
    return replace(new, status=replace(new.status, conditions=tuple(conditions)))

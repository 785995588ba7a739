"""CertificateSigningRequest. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from api.core.certificates import (
    APPROVED,
    DENIED,
    FAILED,
    CertificateSigningRequest,
    CertificateSigningRequestCondition,
    CertificateSigningRequestStatus,
    csr_condition,
)
from api.meta import names
from api.meta.schema import DUPLICATE, FORBIDDEN, MISSING, NOT_SUPPORTED, FieldError, duplicate_values, quoted
from api.pki import keys
from api.pki.pem import BadPem
from api.validation.registry import KindRules
from master.resources.metadata import with_metadata
from master.resources.printing import AGE, NAME, duration
from master.resources.resource import Column, Resource, Subresource
from master.resources.validation import minimum

MIN_EXPIRATION_SECONDS = 600
"""The shortest lifetime of a certificate that may be requested."""

LEGACY_SIGNER = "kubernetes.io/legacy-unknown"
DECISIONS = (APPROVED, DENIED)
MAX_SIGNER_LENGTH = 571

USAGES = frozenset(
    (
        *("signing", "digital signature", "content commitment", "key encipherment", "key agreement"),
        *("data encipherment", "cert sign", "crl sign", "encipher only", "decipher only", "any", "server auth"),
        *("client auth", "code signing", "email protection", "s/mime", "ipsec end system", "ipsec tunnel"),
        *("ipsec user", "timestamping", "ocsp signing", "microsoft sgc", "netscape sgc"),
    )
)

Conditions = tuple[CertificateSigningRequestCondition, ...]


def _validate_csr(csr: CertificateSigningRequest) -> Iterator[FieldError]:
    spec = csr.spec
    try:
        keys.check_request(spec.request)
    except BadPem as error:
        yield FieldError("spec.request", quoted(spec.request.decode(errors="replace")), str(error))
    yield from _validate_signer(spec.signer_name)
    yield from minimum(("spec.expirationSeconds", spec.expiration_seconds, MIN_EXPIRATION_SECONDS))
    if not spec.usages:
        yield FieldError("spec.usages", "[]", "usages must be provided", MISSING)
    for number, usage in enumerate(spec.usages):
        if usage not in USAGES:
            accepted = ", ".join(sorted(USAGES))
            yield FieldError(f"spec.usages[{number}]", quoted(usage), f"{accepted} are accepted", NOT_SUPPORTED)
    yield from duplicate_values("spec.usages[{}]", list(spec.usages))


def _validate_signer(name: str) -> Iterator[FieldError]:
    path = "spec.signerName"
    domain, slash, rest = name.partition("/")
    if not name:
        yield FieldError(path, '""', "signerName must be provided", MISSING)
    elif name == LEGACY_SIGNER:
        yield FieldError(path, quoted(name), "the legacy signerName is not allowed via this API version")
    elif not slash or "/" in rest:
        reason = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        yield FieldError(path, quoted(name), reason)
    elif len(name) > MAX_SIGNER_LENGTH:
        yield FieldError(path, quoted(name), f"must be no more than {MAX_SIGNER_LENGTH} characters")
    else:
        if wrong := names.dns_subdomain_error(domain):
            yield FieldError(path, quoted(domain), wrong)
        elif "." not in domain:
            yield FieldError(path, quoted(domain), "should be a domain with at least two segments separated by dots")
        if wrong := names.dns_subdomain_error(rest):
            yield FieldError(path, quoted(rest), wrong)


# --- conditions -------------------------------------------------------------------------------------------------------


def _replace_approval(
    new: CertificateSigningRequest, old: CertificateSigningRequest
) -> tuple[CertificateSigningRequest, tuple[FieldError, ...]]:
    """Replace the conditions, labels and annotations."""
    after = new.status.conditions
    problems = (*_validate_conditions(after), *_removed_conditions(after, old.status.conditions))
    return _with_conditions(new, old, CertificateSigningRequestStatus(after, old.status.certificate)), problems


def _replace_status(
    new: CertificateSigningRequest, old: CertificateSigningRequest
) -> tuple[CertificateSigningRequest, tuple[FieldError, ...]]:
    """Replace the certificate and other conditions; approvals and denials are kept."""
    decided = {condition.type: condition for condition in old.status.conditions if condition.type in DECISIONS}
    after = tuple(decided.get(condition.type, condition) for condition in new.status.conditions)
    problems = (
        *_validate_conditions(after),
        *_removed_conditions(after, old.status.conditions),
        *_added_conditions(after, decided.keys()),
        *_validate_certificate(new.status.certificate, old.status.certificate),
    )
    return _with_conditions(new, old, CertificateSigningRequestStatus(after, new.status.certificate)), problems


def _with_conditions(
    new: CertificateSigningRequest, old: CertificateSigningRequest, status: CertificateSigningRequestStatus
) -> CertificateSigningRequest:
    meta = new.metadata
    return with_metadata(replace(old, status=status), labels=meta.labels, annotations=meta.annotations)


def _validate_conditions(conditions: Conditions) -> Iterator[FieldError]:
    seen: set[str] = set()
    for number, condition in enumerate(conditions):
        path = f"status.conditions[{number}]"
        accepted = ("True",) if condition.type in (*DECISIONS, FAILED) else ("False", "True", "Unknown")
        if not condition.type:
            yield FieldError(f"{path}.type", '""', "a value is required", MISSING)
        if not condition.status:
            yield FieldError(f"{path}.status", '""', "a value is required", MISSING)
        elif condition.status not in accepted:
            yield FieldError(
                f"{path}.status", quoted(condition.status), f"{', '.join(accepted)} are accepted", NOT_SUPPORTED
            )
        if condition.type in DECISIONS and seen & (set(DECISIONS) - {condition.type}):
            reason = "Approved and Denied conditions are mutually exclusive"
            yield FieldError(f"{path}.type", quoted(condition.type), reason)
        if condition.type in seen:
            yield FieldError(f"{path}.type", quoted(condition.type), "must be unique", DUPLICATE)
        seen.add(condition.type)


def _removed_conditions(after: Conditions, before: Conditions) -> Iterator[FieldError]:
    lasting = {condition.type for condition in before if condition.type in (*DECISIONS, FAILED)}
    for kind in sorted(lasting - {condition.type for condition in after}):
        reason = f"updates may not remove a condition of type {quoted(kind)}"
        yield FieldError("status.conditions", "[]", reason, FORBIDDEN)


def _added_conditions(after: Conditions, decided: object) -> Iterator[FieldError]:
    for condition in after:
        if condition.type in DECISIONS and condition.type not in decided:  # type: ignore[operator]
            reason = f"updates may not add a condition of type {quoted(condition.type)}"
            yield FieldError("status.conditions", quoted(condition.type), reason, FORBIDDEN)


def _validate_certificate(new: bytes, old: bytes) -> Iterator[FieldError]:
    path = "status.certificate"
    if new == old:
        return
    if old:
        yield FieldError(path, "given", "updates may not modify existing certificate content", FORBIDDEN)
    try:
        keys.parse_certificate(new)
    except BadPem as error:
        yield FieldError(path, "<certificate data>", str(error))


# --- columns ----------------------------------------------------------------------------------------------------------


def _csr_state(csr: CertificateSigningRequest) -> str:
    decided = next((kind for kind in (DENIED, APPROVED) if csr_condition(csr, kind)), "Pending")
    failed = FAILED if csr_condition(csr, FAILED) else ""
    return ",".join(word for word in (decided, failed, "Issued" if csr.status.certificate else "") if word)


def _prepare_csr_for_update(
    new: CertificateSigningRequest, old: CertificateSigningRequest
) -> CertificateSigningRequest:
    """Accept changes of metadata only: the request itself is immutable."""
    return replace(new, spec=old.spec, status=old.status)


CERTIFICATE_SIGNING_REQUESTS = Resource(
    type=CertificateSigningRequest,
    short_names=("csr",),
    columns=(
        NAME,
        AGE,
        Column("SignerName", "The requested signer.", lambda csr, _: csr.spec.signer_name),
        Column("Requestor", "The user who created the request.", lambda csr, _: csr.spec.username),
        Column(
            "RequestedDuration",
            "Requested validity of the certificate.",
            lambda csr, _: "<none>" if csr.spec.expiration_seconds is None else duration(csr.spec.expiration_seconds),
        ),
        Column(
            "Condition",
            "Pending, Approved or Denied, with Failed if the signer cannot sign, or Issued.",
            lambda csr, _: _csr_state(csr),
        ),
    ),
    selectable_fields=lambda csr: {"spec.signerName": csr.spec.signer_name},
    prepare_for_update=_prepare_csr_for_update,
    rules=KindRules(validate=_validate_csr, validate_name=names.path_segment_error),
    subresources=(Subresource("status", _replace_status), Subresource("approval", _replace_approval)),
    acted_on_by="the master approves requests of nodes, signs for its three signers, and deletes old requests",
)

"""CertificateSigningRequest: signed at once when an administrator asks, and not kept. Pure."""

from __future__ import annotations

import datetime

from api.objects import Condition, Object
from api.rules import Rules
from api.value import Value
from master.kinds.kind import AGE, NAME, READ_VERBS, Column, Kind, age


class CertificateSigningRequestSpec(Value, frozen=True):
    """What is asked for; `request` is a PEM certificate request in base64."""

    request: str = ""
    signer_name: str = ""
    usages: tuple[str, ...] = ()


class CertificateSigningRequestStatus(Value, frozen=True):
    """`certificate` is PEM in base64."""

    conditions: tuple[Condition, ...] = ()
    certificate: str = ""


class CertificateSigningRequest(Object, frozen=True):
    """Asks for the certificate of a node; the answer has it."""

    API_VERSION = "certificates.k8s.io/v1"
    KIND = "CertificateSigningRequest"

    spec: CertificateSigningRequestSpec = CertificateSigningRequestSpec()
    status: CertificateSigningRequestStatus = CertificateSigningRequestStatus()


def _cells(item: CertificateSigningRequest, now: datetime.datetime) -> tuple[object, ...]:
    said = ",".join(row.type for row in item.status.conditions) or "Pending"
    made = age(item.metadata.creation_timestamp, now)
    return item.metadata.name, made, item.spec.signer_name, "<none>", "<none>", said


CERTIFICATE_SIGNING_REQUEST = Kind(
    type=CertificateSigningRequest,
    plural="certificatesigningrequests",
    singular="certificatesigningrequest",
    namespaced=False,
    short=("csr",),
    columns=(
        NAME,
        AGE,
        Column("SignerName", "Who is to sign."),
        Column("Requestor", "Who asks."),
        Column("RequestedDuration", "For how long it is to hold."),
        Column("Condition", "Approved, once it is signed."),
    ),
    cells=_cells,
    own_rules=Rules(),
    verbs=("create", *READ_VERBS),
    refusal="a request is sent by POST, signed at once and not kept",
)

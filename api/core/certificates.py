"""CertificateSigningRequest: a request for a certificate, its approval and the certificate. Pure."""

from __future__ import annotations

from typing import Annotated

from api.meta.types import Object, Value, merge_keys

CLIENT = "kubernetes.io/kube-apiserver-client"
NODE_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
NODE_SERVING = "kubernetes.io/kubelet-serving"
"""Who signs: for clients, for nodes as clients, for the servers of nodes."""

APPROVED, DENIED, FAILED = "Approved", "Denied", "Failed"
"""What conditions say of a request; their status is always True."""

DIGITAL_SIGNATURE, KEY_ENCIPHERMENT = "digital signature", "key encipherment"
CLIENT_AUTH, SERVER_AUTH = "client auth", "server auth"
CLIENT_USAGES = (DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, CLIENT_AUTH)
SERVER_USAGES = (DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, SERVER_AUTH)
"""What nodes ask for: signers of Kubernetes before 1.27 want all three, whether the key can encipher or not."""

NODES, NODE_PREFIX = "system:nodes", "system:node:"
"""The organization in the certificate of a node, and how its common name begins."""


class CertificateSigningRequestSpec(Value, frozen=True):
    """What is asked for; `request` is a certificate request (PKCS 10) as PEM.

    `expirationSeconds` is for how long the certificate is to hold; a signer may choose less. The server writes down
    who asks, from `username` on.
    """

    request: bytes = b""
    signer_name: str = ""
    expiration_seconds: int | None = None
    usages: tuple[str, ...] = ()
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class CertificateSigningRequestCondition(Value, frozen=True):
    """What was decided, and by whom or what (`reason`)."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_update_time: str | None = None
    last_transition_time: str | None = None


class CertificateSigningRequestStatus(Value, frozen=True):
    """`certificate` is PEM, there when the signer has signed."""

    conditions: Annotated[tuple[CertificateSigningRequestCondition, ...], merge_keys("type")] = ()
    certificate: bytes = b""


class CertificateSigningRequest(Object, frozen=True):
    """Asks for a certificate."""

    API_VERSION = "certificates.k8s.io/v1"
    KIND = "CertificateSigningRequest"

    spec: CertificateSigningRequestSpec = CertificateSigningRequestSpec()
    status: CertificateSigningRequestStatus = CertificateSigningRequestStatus()


def csr_condition(item: CertificateSigningRequest, kind: str) -> CertificateSigningRequestCondition | None:
    """The condition of that type, if there is one."""
    return next((row for row in item.status.conditions if row.type == kind), None)

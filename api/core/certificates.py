"""CertificateSigningRequest: a request for a certificate, its approval and the certificate. Pure."""

from __future__ import annotations

from typing import Annotated

from api.meta.types import Object, Value, merge_keys
from api.meta.values import Int32, Time

CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client"
KUBELET_CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING_SIGNER = "kubernetes.io/kubelet-serving"
"""Signers of certificates for clients, for nodes as clients, and for the HTTPS servers of nodes."""

APPROVED, DENIED, FAILED = "Approved", "Denied", "Failed"
"""Types of conditions. Their status is always True."""

DIGITAL_SIGNATURE, KEY_ENCIPHERMENT = "digital signature", "key encipherment"
CLIENT_AUTH, SERVER_AUTH = "client auth", "server auth"
CLIENT_USAGES = (DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, CLIENT_AUTH)
SERVER_USAGES = (DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, SERVER_AUTH)
"""Usages that nodes request. Signers of Kubernetes before 1.27 require all three, even for keys that cannot encipher.
"""

NODES_GROUP = "system:nodes"
NODE_USER_PREFIX = "system:node:"
"""Organization and prefix of the common name in the certificate of a node."""


class CertificateSigningRequestSpec(Value, frozen=True):
    """The requested certificate.

    `request` is a certificate request (PKCS 10) as PEM. `expirationSeconds` is the requested lifetime; a signer may
    issue a shorter one. The server sets `username`, `uid`, `groups` and `extra` to the identity of the requester.
    """

    request: bytes = b""
    signer_name: str = ""
    expiration_seconds: Int32 | None = None
    usages: tuple[str, ...] = ()
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class CertificateSigningRequestCondition(Value, frozen=True):
    """A decision about a request. `reason` names the component that decided."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_update_time: Time | None = None
    last_transition_time: Time | None = None


class CertificateSigningRequestStatus(Value, frozen=True):
    """The decisions, and the `certificate` as PEM when it was issued."""

    conditions: Annotated[tuple[CertificateSigningRequestCondition, ...], merge_keys("type")] = ()
    certificate: bytes = b""


class CertificateSigningRequest(Object, frozen=True):
    """A request for a certificate."""

    API_VERSION = "certificates.k8s.io/v1"
    KIND = "CertificateSigningRequest"
    PLURAL = "certificatesigningrequests"
    NAMESPACED = False

    spec: CertificateSigningRequestSpec = CertificateSigningRequestSpec()
    status: CertificateSigningRequestStatus = CertificateSigningRequestStatus()


def csr_condition(csr: CertificateSigningRequest, condition_type: str) -> CertificateSigningRequestCondition | None:
    """Return the condition of a type, None if the request has none."""
    return next((condition for condition in csr.status.conditions if condition.type == condition_type), None)

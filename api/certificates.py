"""How a node gets its certificate: a key made here, a request signed by the master."""

from __future__ import annotations

import base64

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from api.client import Client
from api.kubeconfig import Kubeconfig

PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"


class _Status(msgspec.Struct):
    certificate: str


class _Signed(msgspec.Struct):
    status: _Status


async def node_kubeconfig(client: Client, administrator: Kubeconfig, node: str) -> str:
    """The text of a kubeconfig with which `node` speaks to the master. Raises ClientError.

    `client` must be the administrator's: the master signs at once what such a client asks for.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}"),
        ]
    )
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    document = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": f"node-{node}"},
        "spec": {
            "signerName": SIGNER,
            "usages": ["digital signature", "client auth"],
            "request": base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(),
        },
    }
    answer = msgspec.json.decode(await client.request("POST", PATH, msgspec.json.encode(document)), type=_Signed)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificate = base64.b64decode(answer.status.certificate)
    return Kubeconfig(administrator.server, administrator.ca, certificate, private).text(
        "podlane", f"system:node:{node}"
    )

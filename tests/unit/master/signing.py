"""Signing requests, nodes that create them, and the results."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from api.core.certificates import (
    APPROVED,
    KUBELET_CLIENT_SIGNER,
    KUBELET_SERVING_SIGNER,
    SERVER_USAGES,
    CertificateSigningRequest,
    CertificateSigningRequestCondition,
    CertificateSigningRequestSpec,
    CertificateSigningRequestStatus,
)
from api.core.node import Node, NodeAddress, NodeStatus
from api.meta.types import Condition, ObjectMeta
from api.pki import keys
from api.pki.pem import Subject
from master.auth.attributes import Attributes, User
from master.auth.certificate_signing import ADDRESS_EXTRA, ReservedNames
from master.controllers import certificates
from master.controllers.actions import Failed, Update, Warn
from master.resources.metadata import format_time

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
HOUR, MINUTE = datetime.timedelta(hours=1), datetime.timedelta(minutes=1)
KEY = keys.generate_key()
KEY_OBJECT = ec.generate_private_key(ec.SECP256R1())
N1 = "system:node:n1"
NODES = ("system:nodes",)
BOOTSTRAP = "system:bootstrap:abcdef"


def request(
    subject: Subject,
    signer: str,
    usages: tuple[str, ...],
    user: str = "system:bootstrap:abcdef",
    groups: tuple[str, ...] = (),
    came_from: str = "",
    pem: bytes = b"",
) -> CertificateSigningRequest:
    spec = CertificateSigningRequestSpec(
        request=pem or keys.create_request(KEY, subject),
        signer_name=signer,
        usages=usages,
        username=user,
        groups=groups,
        extra={ADDRESS_EXTRA: (came_from,)} if came_from else {},
    )
    return CertificateSigningRequest(metadata=ObjectMeta(name="x", creation_timestamp=format_time(NOW)), spec=spec)


def node(name: str, *addresses: str, kind: str = "InternalIP", is_ready: str = "True") -> Node:
    node_addresses = tuple(NodeAddress(type=kind, address=address) for address in addresses)
    conditions = (Condition(type="Ready", status=is_ready),)
    return Node(metadata=ObjectMeta(name=name), status=NodeStatus(addresses=node_addresses, conditions=conditions))


@dataclass(frozen=True)
class Rights:
    """An authorizer with the (user, subresource) pairs that may have such a certificate."""

    held: frozenset[tuple[str, str]] = frozenset()

    def __call__(self, user: User, attributes: Attributes) -> bool:
        assert attributes.group == "certificates.k8s.io"
        if attributes.verb == "approve":
            assert (attributes.resource, attributes.name) == ("signers", KUBELET_CLIENT_SIGNER)
            return (user.name, "approve") in self.held
        assert (attributes.verb, attributes.resource) == ("create", "certificatesigningrequests")
        return (user.name, attributes.subresource) in self.held


RESERVED = ReservedNames((IPv4Network("10.128.0.0/14"), IPv4Network("172.30.0.0/16")), "10.0.0.7", frozenset(("head",)))


def why(csr: CertificateSigningRequest, nodes: Iterable[Node] = (), *held: tuple[str, str]) -> str:
    """Return the reason why a request is not approved; empty if it is approved."""
    (actual,) = certificates.approve_requests([csr], list(nodes), RESERVED, Rights(frozenset(held)), NOW)
    if isinstance(actual, Warn):
        assert "kubectl certificate approve x" in actual.text
        return actual.text
    assert request_in(actual).status.conditions[0].type == APPROVED
    return ""


def approved(csr: CertificateSigningRequest, nodes: Iterable[Node] = (), *held: tuple[str, str]) -> bool:
    return not why(csr, nodes, *held)


def serving(
    names: tuple[str, ...],
    addresses: tuple[str, ...],
    came_from: str = "10.0.0.1",
    user: str = N1,
    groups: tuple[str, ...] = NODES,
) -> CertificateSigningRequest:
    subject = Subject(user if user.startswith("system:node:") else N1, NODES, names, addresses)
    return request(subject, KUBELET_SERVING_SIGNER, SERVER_USAGES, user, groups, came_from)


def request_in(change: Update | Failed) -> CertificateSigningRequest:
    assert isinstance(change.object, CertificateSigningRequest)
    return change.object


def decided(csr: CertificateSigningRequest, *kinds: str, at: datetime.datetime = NOW) -> CertificateSigningRequest:
    certificate_signing_request_conditions = tuple(
        CertificateSigningRequestCondition(type=kind, status="True", last_update_time=format_time(at)) for kind in kinds
    )
    return replace(csr, status=CertificateSigningRequestStatus(conditions=certificate_signing_request_conditions))


def pem_of(rows: Sequence[x509.RelativeDistinguishedName], *places: x509.GeneralName) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(rows))
    if places:
        builder = builder.add_extension(x509.SubjectAlternativeName(places), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def part(*rows: tuple[x509.ObjectIdentifier, str]) -> x509.RelativeDistinguishedName:
    return x509.RelativeDistinguishedName(x509.NameAttribute(oid, value) for oid, value in rows)


O, CN, OU = NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME
PLAIN = (part((O, "system:nodes")), part((CN, N1)))

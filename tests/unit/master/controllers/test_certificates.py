"""Approval, signing and removal of signing requests, and bootstrap tokens."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from api.core.certificates import (
    APPROVED,
    CLIENT_SIGNER,
    CLIENT_USAGES,
    DENIED,
    FAILED,
    KUBELET_CLIENT_SIGNER,
    KUBELET_SERVING_SIGNER,
    SERVER_USAGES,
    CertificateSigningRequest,
)
from api.core.config import Secret
from api.core.node import Node
from api.meta.types import ObjectMeta
from api.pki import keys
from api.pki.pem import Subject
from master.auth import authentication
from master.controllers import certificates, expiration
from master.controllers.actions import Warn
from master.resources.certificate_requests import CERTIFICATE_SIGNING_REQUESTS
from master.resources.metadata import format_time
from reconcile.errors import Refused
from tests.unit.master.signing import (
    BOOTSTRAP,
    CN,
    HOUR,
    KEY,
    KEY_OBJECT,
    MINUTE,
    N1,
    NODES,
    NOW,
    OU,
    PLAIN,
    RESERVED,
    O,
    Rights,
    approved,
    decided,
    node,
    part,
    pem_of,
    request,
    request_in,
    serving,
    why,
)


def test_client_certificate_approval_needs_nodeclient_or_selfnodeclient_permission() -> None:
    first = request(Subject(N1, NODES), KUBELET_CLIENT_SIGNER, CLIENT_USAGES)
    assert not approved(first)
    assert approved(first, (), (first.spec.username, "nodeclient"))
    assert not approved(first, (), (first.spec.username, "selfnodeclient"))
    renewal = request(Subject(N1, NODES), KUBELET_CLIENT_SIGNER, CLIENT_USAGES, N1, NODES)
    assert approved(renewal, (), (N1, "selfnodeclient"))
    another = request(Subject("system:node:n2", NODES), KUBELET_CLIENT_SIGNER, CLIENT_USAGES, N1, NODES)
    assert not approved(another, (), (N1, "selfnodeclient"))


@pytest.mark.parametrize(
    ("subject", "usages", "why"),
    [
        (Subject(N1, ("system:masters",)), CLIENT_USAGES, "organization"),
        (Subject(N1, (*NODES, "system:masters")), CLIENT_USAGES, "organization"),
        (Subject("admin", NODES), CLIENT_USAGES, "common name"),
        (Subject(N1, NODES), SERVER_USAGES, "usages"),
        (Subject(N1, NODES), (*CLIENT_USAGES, "server auth"), "usages"),
        (Subject(N1, NODES, ("n1",)), CLIENT_USAGES, "subjectAltNames"),
    ],
)
def test_request_that_is_no_node_certificate_is_neither_approved_nor_signed(
    subject: Subject, usages: tuple[str, ...], why: str
) -> None:
    csr = request(subject, KUBELET_CLIENT_SIGNER, usages)
    assert not approved(csr, (), (csr.spec.username, "nodeclient"))
    (change,) = certificates.sign_requests([decided(csr, APPROVED)], lambda _: b"never", NOW)
    assert not request_in(change).status.certificate
    assert request_in(change).status.conditions[-1].type == FAILED
    assert why in request_in(change).status.conditions[-1].message


@pytest.mark.parametrize(
    ("rows", "good"),
    [
        (PLAIN, True),
        ((*PLAIN, part((OU, "system:masters"))), False),
        ((*PLAIN, part((CN, N1))), False),
        ((*PLAIN, part((CN, "system:admin"))), False),
        ((*PLAIN, part((O, "system:nodes"))), False),
        ((part((O, "system:nodes"), (CN, N1)),), False),
        ((*PLAIN, part((NameOID.SERIAL_NUMBER, "1"))), False),
    ],
)
def test_certificate_subject_has_node_and_group_only(
    rows: Sequence[x509.RelativeDistinguishedName], good: bool
) -> None:
    renewal = request(Subject(""), KUBELET_CLIENT_SIGNER, CLIENT_USAGES, N1, NODES, pem=pem_of(rows))
    assert approved(renewal, (), (N1, "selfnodeclient")) == good
    server = request(
        Subject(""), KUBELET_SERVING_SIGNER, SERVER_USAGES, N1, NODES, "10.0.0.1", pem_of(rows, x509.DNSName("n1"))
    )
    assert approved(server, [node("n1", "10.0.0.1")]) == good


@pytest.mark.parametrize(
    "alternative_name",
    [
        x509.RegisteredID(x509.ObjectIdentifier("1.2.3.4")),
        x509.DirectoryName(x509.Name(PLAIN)),
        x509.OtherName(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"),
        x509.RFC822Name("a@example.org"),
        x509.UniformResourceIdentifier("https://kubernetes"),
    ],
)
def test_other_subject_alternative_names_are_denied(alternative_name: x509.GeneralName) -> None:
    client = request(Subject(""), KUBELET_CLIENT_SIGNER, CLIENT_USAGES, N1, NODES, pem=pem_of(PLAIN, alternative_name))
    assert "subjectAltNames are not allowed" in why(client, (), (N1, "selfnodeclient"))
    pem = pem_of(PLAIN, x509.DNSName("n1"), alternative_name)
    server = request(Subject(""), KUBELET_SERVING_SIGNER, SERVER_USAGES, N1, NODES, "10.0.0.1", pem)
    assert "subjectAltNames are not allowed" in why(server, [node("n1", "10.0.0.1")])


@pytest.mark.parametrize("name", ["", "a/b", "N1", "a b", "-a", "a."])
def test_invalid_node_name_gets_no_certificate(name: str) -> None:
    csr = request(Subject(f"system:node:{name}", NODES), KUBELET_CLIENT_SIGNER, CLIENT_USAGES)
    assert "is not that of a node" in why(csr, (), (BOOTSTRAP, "nodeclient"))


def test_bootstrap_token_may_request_for_an_existing_node_only_while_it_is_unreachable() -> None:
    csr = request(Subject(N1, NODES), KUBELET_CLIENT_SIGNER, CLIENT_USAGES)
    right = (BOOTSTRAP, "nodeclient")
    assert approved(csr, [node("n2")], right)
    for state in ("True", "False"):
        assert "the Node n1 exists already" in why(csr, [node("n1", is_ready=state)], right)
        assert approved(csr, [node("n1", is_ready=state)], right, (BOOTSTRAP, "approve")), "who may say so himself"
    assert approved(csr, [node("n1", is_ready="Unknown")], right)
    assert approved(csr, [Node(metadata=ObjectMeta(name="n1"))], right), "made by an administrator, not joined yet"
    renewal = request(Subject(N1, NODES), KUBELET_CLIENT_SIGNER, CLIENT_USAGES, N1, NODES)
    assert approved(renewal, [node("n1")], (N1, "selfnodeclient"))


def test_bootstrap_token_gets_the_certificate_of_a_lost_node_only_at_the_address_of_that_node() -> None:
    right, lost = (BOOTSTRAP, "nodeclient"), node("n1", "10.0.0.1", is_ready="Unknown")
    for came_from in ("10.0.0.2", ""):
        csr = request(Subject(N1, NODES), KUBELET_CLIENT_SIGNER, CLIENT_USAGES, came_from=came_from)
        assert f"with the address 10.0.0.1; the request came from {came_from or 'an'}" in why(csr, [lost], right)
        assert approved(csr, [lost], right, (BOOTSTRAP, "approve"))
    same = request(Subject(N1, NODES), KUBELET_CLIENT_SIGNER, CLIENT_USAGES, came_from="10.0.0.1")
    assert approved(same, [lost], right)


def test_one_of_two_machines_that_join_under_one_name_gets_a_certificate() -> None:
    may = Rights(frozenset({(BOOTSTRAP, "nodeclient")}))

    def joining(name: str, came_from: str) -> CertificateSigningRequest:
        csr = request(Subject(N1, NODES), KUBELET_CLIENT_SIGNER, CLIENT_USAGES, came_from=came_from)
        return replace(csr, metadata=replace(csr.metadata, name=name))

    def decide(*requests: CertificateSigningRequest) -> list[str]:
        actions = certificates.approve_requests(requests, [], RESERVED, may, NOW)
        return [action.text if isinstance(action, Warn) else "" for action in actions]

    first, second = joining("a", "10.0.0.1"), joining("b", "10.0.0.2")
    assert decide(first)[0] == decide(second)[0] == ""
    assert ["was issued to 10.0.0.1 just now" in text for text in decide(first, second)] == [False, True]
    assert ["was issued to 10.0.0.1 just now" in text for text in decide(decided(first, APPROVED), second)] == [True]
    assert decide(decided(first, APPROVED), joining("b", "10.0.0.1")) == [""], "the same machine, with a new key"
    assert decide(decided(first, DENIED), second) == [""]


def test_certificate_condition_message_is_truncated() -> None:
    long = serving(tuple(f"name-{number}" for number in range(500)), ())
    assert len(why(long, [node("n1")])) < 1000


# --- what is refused --------------------------------------------------------------------------------------------------


def weak(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | dsa.DSAPrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    name = x509.Name([x509.NameAttribute(CN, "dave")])
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    created = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, digest)
    return created.public_bytes(serialization.Encoding.PEM)


def refused(pem: bytes) -> str:
    csr = request(Subject("dave"), CLIENT_SIGNER, CLIENT_USAGES, pem=pem)
    assert CERTIFICATE_SIGNING_REQUESTS.rules is not None
    assert CERTIFICATE_SIGNING_REQUESTS.rules.validate is not None
    return "; ".join(error.detail for error in CERTIFICATE_SIGNING_REQUESTS.rules.validate(csr))


def test_weak_keys_are_rejected() -> None:
    assert "an RSA key of 1024 bits" in refused(weak(rsa.generate_private_key(65537, 1024)))
    assert "a key of 192 bits" in refused(weak(ec.generate_private_key(ec.SECP192R1())))
    assert "DSA" in refused(weak(dsa.generate_private_key(2048)))
    for good in (rsa.generate_private_key(65537, 2048), KEY_OBJECT, ed25519.Ed25519PrivateKey.generate()):
        assert refused(weak(good)) == ""


def test_csr_is_one_pem_block_of_limited_size() -> None:
    pem = weak(KEY_OBJECT)
    assert refused(b"made by openssl\n" + pem) == ""
    assert "2 blocks" in refused(pem + pem)
    assert "2 blocks" in refused(pem + b"-----BEGIN NOTE-----\n-----END NOTE-----\n")
    assert "0 blocks" in refused(b"x")
    assert f"at most {64 << 10}" in refused(b"\n" * (64 << 10) + pem)


def test_only_approved_requests_are_signed_and_only_once() -> None:
    csr = request(Subject("dave", ("dev",)), CLIENT_SIGNER, CLIENT_USAGES)
    foreign = replace(csr, spec=replace(csr.spec, signer_name="example.org/x"))
    denied, failed = decided(csr, DENIED), decided(csr, APPROVED, FAILED)
    done = replace(csr, status=replace(decided(csr, APPROVED).status, certificate=b"there"))
    waiting = [csr, denied, failed, done, decided(foreign, APPROVED)]
    assert list(certificates.sign_requests(waiting, lambda _: b"no", NOW)) == []
    (change,) = certificates.sign_requests([decided(csr, APPROVED)], lambda _: b"yes", NOW)
    assert request_in(change).status.certificate == b"yes"


def test_signing_requests_are_deleted_after_their_time() -> None:
    pending = request(Subject("dave"), CLIENT_SIGNER, CLIENT_USAGES)
    pem = keys.self_signed(KEY, Subject("dave"), NOW)
    issued = replace(pending, status=replace(decided(pending, APPROVED).status, certificate=pem))

    def gone(csr: CertificateSigningRequest, after: datetime.timedelta) -> bool:
        return bool(list(expiration.expired_csrs([csr], NOW + after)))

    for certificate_signing_request, last in (
        (pending, 24 * HOUR),
        (decided(pending, DENIED), HOUR),
        (decided(pending, FAILED), HOUR),
        (issued, HOUR),
    ):
        assert not gone(certificate_signing_request, last)
        assert gone(certificate_signing_request, last + MINUTE)
    assert not gone(decided(pending, APPROVED), 100 * HOUR), "the signer has not come yet"
    later = decided(issued, APPROVED, at=NOW + 1000 * 24 * HOUR)
    assert gone(replace(later, status=replace(later.status, certificate=pem)), 366 * 24 * HOUR)


# --- tokens to join by ------------------------------------------------------------------------------------------------

TOKEN = "abcdef.0123456789abcdef"


def secret(**changes: str) -> Secret:
    fields = {
        "token-id": "abcdef",
        "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true",
        "expiration": format_time(NOW + HOUR),
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }
    meta = ObjectMeta(name="bootstrap-token-abcdef", namespace="kube-system")
    return Secret(
        metadata=meta,
        type=authentication.BOOTSTRAP_TOKEN_TYPE,
        data={key: value.encode() for key, value in fields.items()},
    )


def test_bootstrap_token_authenticates_as_a_bootstrapper() -> None:
    user = authentication.user_from_bootstrap_token(
        TOKEN, secret(auth_extra_groups="system:bootstrappers:a, system:bootstrappers:b:c"), NOW
    )
    assert user.name == "system:bootstrap:abcdef"
    more = {"system:bootstrappers:a", "system:bootstrappers:b:c"}
    assert user.groups == {"system:bootstrappers", "system:authenticated", *more}


@pytest.mark.parametrize(
    "token_secret",
    [
        None,
        replace(secret(), type="Opaque"),
        secret(token_secret="0123456789abcdeX"),
        secret(token_secret=""),
        secret(token_id="abcdeg"),
        secret(expiration=format_time(NOW)),
        secret(expiration="soon"),
        secret(usage_bootstrap_authentication="false"),
        secret(auth_extra_groups="system:masters"),
    ],
)
def test_invalid_bootstrap_token_is_rejected(token_secret: Secret | None) -> None:
    with pytest.raises(Refused):
        authentication.user_from_bootstrap_token(TOKEN, token_secret, NOW)


def test_expired_bootstrap_tokens_are_deleted() -> None:
    lasting = replace(secret(), data={key: value for key, value in secret().data.items() if key != "expiration"})
    other = replace(secret(expiration=format_time(NOW)), type="Opaque")
    over = secret(expiration=format_time(NOW))
    force_deletes = expiration.expired_bootstrap_tokens([secret(), lasting, other, over], NOW)
    assert [force_delete.object for force_delete in force_deletes] == [over]


def test_bootstrap_token_has_id_and_secret() -> None:
    assert authentication.bootstrap_token_secret_name(TOKEN) == "bootstrap-token-abcdef"
    for text in ("abcdef.0123456789abcde", "abcdef.0123456789abcdef\n", "ABCDEF.0123456789abcdef", "a.b.c", ""):
        assert authentication.bootstrap_token_secret_name(text) == ""

"""What is approved by itself, what is signed, what is forgotten, and who a token to join by is."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from api import keys
from api.configuration import Secret
from api.objects import Node, NodeAddress, NodeStatus, ObjectMeta
from api.pem import Subject
from api.signing_requests import (
    APPROVED,
    CLIENT,
    CLIENT_USAGES,
    DENIED,
    FAILED,
    NODE_CLIENT,
    NODE_SERVING,
    SERVER_USAGES,
    CertificateSigningRequest,
    CertificateSigningRequestCondition,
    CertificateSigningRequestSpec,
    CertificateSigningRequestStatus,
)
from master.access import bootstrap_tokens
from master.access.authorize import Attributes, User
from master.controllers import certificates, forgetting
from master.kinds.kind import show_time
from master.writing.outcomes import Change, Notice
from reconcile.errors import Refused

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
HOUR, MINUTE = datetime.timedelta(hours=1), datetime.timedelta(minutes=1)
KEY = keys.new_key()
N1 = "system:node:n1"
NODES = ("system:nodes",)


def request(
    subject: Subject,
    signer: str,
    usages: tuple[str, ...],
    user: str = "system:bootstrap:abcdef",
    groups: tuple[str, ...] = (),
) -> CertificateSigningRequest:
    spec = CertificateSigningRequestSpec(
        request=keys.request(KEY, subject), signer_name=signer, usages=usages, username=user, groups=groups
    )
    return CertificateSigningRequest(metadata=ObjectMeta(name="x", creation_timestamp=show_time(NOW)), spec=spec)


def node(name: str, *addresses: str) -> Node:
    rows = tuple(NodeAddress(type="InternalIP", address=one) for one in addresses)
    return Node(metadata=ObjectMeta(name=name), status=NodeStatus(addresses=rows))


@dataclass(frozen=True)
class Rights:
    """(user, subresource) of those who may have such a certificate."""

    held: frozenset[tuple[str, str]] = frozenset()

    def __call__(self, user: User, asked: Attributes) -> bool:
        assert (asked.verb, asked.group, asked.resource) == (
            "create", "certificates.k8s.io", "certificatesigningrequests",
        )  # fmt: skip
        return (user.name, asked.subresource) in self.held


def approved(item: CertificateSigningRequest, nodes: Iterable[Node] = (), *held: tuple[str, str]) -> bool:
    (found,) = certificates.approvals([item], list(nodes), Rights(frozenset(held)), NOW)
    if isinstance(found, Notice):
        assert "kubectl certificate approve x" in found.text
        return False
    assert request_in(found).status.conditions[0].type == APPROVED
    return True


def test_a_first_certificate_needs_the_right_for_first_ones_and_a_renewal_that_for_ones_own() -> None:
    first = request(Subject(N1, NODES), NODE_CLIENT, CLIENT_USAGES)
    assert not approved(first)
    assert approved(first, (), (first.spec.username, "nodeclient"))
    assert not approved(first, (), (first.spec.username, "selfnodeclient"))
    renewal = request(Subject(N1, NODES), NODE_CLIENT, CLIENT_USAGES, N1, NODES)
    assert approved(renewal, (), (N1, "selfnodeclient"))
    another = request(Subject("system:node:n2", NODES), NODE_CLIENT, CLIENT_USAGES, N1, NODES)
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
def test_what_is_no_certificate_of_a_node_is_neither_approved_nor_signed(
    subject: Subject, usages: tuple[str, ...], why: str
) -> None:
    item = request(subject, NODE_CLIENT, usages)
    assert not approved(item, (), (item.spec.username, "nodeclient"))
    (change,) = certificates.signings([decided(item, APPROVED)], lambda _: b"never", NOW)
    assert not request_in(change).status.certificate
    assert request_in(change).status.conditions[-1].type == FAILED
    assert why in request_in(change).status.conditions[-1].message


def serving(
    names: tuple[str, ...], addresses: tuple[str, ...], user: str = N1, groups: tuple[str, ...] = NODES
) -> CertificateSigningRequest:
    return request(Subject(N1, NODES, names, addresses), NODE_SERVING, SERVER_USAGES, user, groups)


def test_the_certificate_of_a_server_is_for_the_places_of_its_own_node() -> None:
    nodes = [node("n1", "10.0.0.1", "10.0.0.9"), node("n2", "10.0.0.2", "10.0.0.9")]
    assert approved(serving(("n1",), ("10.0.0.1",)), nodes)
    assert approved(serving((), ("10.0.0.1",)), nodes)
    assert not approved(serving(("n1",), ("10.0.0.3",)), nodes)
    assert not approved(serving(("n2",), ()), nodes)
    assert not approved(serving(("n1",), ("10.0.0.2",)), nodes)
    assert not approved(serving(("n1",), ("10.0.0.1",)), nodes[1:]), "the node has not registered"
    assert not approved(serving(("n1",), ("10.0.0.9",)), nodes), "two nodes say that they are there"
    assert not approved(serving(("n1",), ("10.0.0.1",), "system:admin", ("system:masters",)), nodes)
    assert not approved(serving(("n1",), ("10.0.0.1",), N1, ()), nodes), "somebody of that name who is no node"


def test_only_what_is_approved_is_signed_and_only_once() -> None:
    item = request(Subject("dave", ("dev",)), CLIENT, CLIENT_USAGES)
    foreign = replace(item, spec=replace(item.spec, signer_name="example.org/x"))
    denied, failed = decided(item, DENIED), decided(item, APPROVED, FAILED)
    done = replace(item, status=replace(decided(item, APPROVED).status, certificate=b"there"))
    waiting = [item, denied, failed, done, decided(foreign, APPROVED)]
    assert list(certificates.signings(waiting, lambda _: b"no", NOW)) == []
    (change,) = certificates.signings([decided(item, APPROVED)], lambda _: b"yes", NOW)
    assert request_in(change).status.certificate == b"yes"


def request_in(change: Change) -> CertificateSigningRequest:
    assert isinstance(change.item, CertificateSigningRequest)
    return change.item


def decided(item: CertificateSigningRequest, *kinds: str, at: datetime.datetime = NOW) -> CertificateSigningRequest:
    rows = tuple(
        CertificateSigningRequestCondition(type=kind, status="True", last_update_time=show_time(at)) for kind in kinds
    )
    return replace(item, status=CertificateSigningRequestStatus(conditions=rows))


def test_requests_are_forgotten_in_their_time() -> None:
    item = request(Subject("dave"), CLIENT, CLIENT_USAGES)
    pem = keys.self_signed(KEY, Subject("dave"), NOW)
    issued = replace(item, status=replace(decided(item, APPROVED).status, certificate=pem))

    def gone(one: CertificateSigningRequest, after: datetime.timedelta) -> bool:
        return bool(list(forgetting.old_requests([one], NOW + after)))

    for one, last in ((item, 24 * HOUR), (decided(item, DENIED), HOUR), (decided(item, FAILED), HOUR), (issued, HOUR)):
        assert not gone(one, last)
        assert gone(one, last + MINUTE)
    assert not gone(decided(item, APPROVED), 100 * HOUR), "the signer has not come yet"
    later = decided(issued, APPROVED, at=NOW + 1000 * 24 * HOUR)
    assert gone(replace(later, status=replace(later.status, certificate=pem)), 366 * 24 * HOUR)


# --- tokens to join by ------------------------------------------------------------------------------------------------

TOKEN = "abcdef.0123456789abcdef"


def secret(**changes: str) -> Secret:
    told = {
        "token-id": "abcdef",
        "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true",
        "expiration": show_time(NOW + HOUR),
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }
    meta = ObjectMeta(name="bootstrap-token-abcdef", namespace="kube-system")
    return Secret(metadata=meta, type=bootstrap_tokens.TYPE, data={key: value.encode() for key, value in told.items()})


def test_who_presents_a_token_is_a_bootstrapper() -> None:
    user = bootstrap_tokens.user(
        TOKEN, secret(auth_extra_groups="system:bootstrappers:a, system:bootstrappers:b:c"), NOW
    )
    assert user.name == "system:bootstrap:abcdef"
    more = {"system:bootstrappers:a", "system:bootstrappers:b:c"}
    assert user.groups == {"system:bootstrappers", "system:authenticated", *more}


@pytest.mark.parametrize(
    "found",
    [
        None,
        replace(secret(), type="Opaque"),
        secret(token_secret="0123456789abcdeX"),
        secret(token_secret=""),
        secret(token_id="abcdeg"),
        secret(expiration=show_time(NOW)),
        secret(expiration="soon"),
        secret(usage_bootstrap_authentication="false"),
        secret(auth_extra_groups="system:masters"),
    ],
)
def test_a_token_that_is_none_is_refused(found: Secret | None) -> None:
    with pytest.raises(Refused):
        bootstrap_tokens.user(TOKEN, found, NOW)


def test_tokens_are_forgotten_when_they_are_over() -> None:
    lasting = replace(secret(), data={key: value for key, value in secret().data.items() if key != "expiration"})
    other = replace(secret(expiration=show_time(NOW)), type="Opaque")
    over = secret(expiration=show_time(NOW))
    found = forgetting.old_tokens([secret(), lasting, other, over], NOW)
    assert [one.item for one in found] == [over]


def test_the_form_of_a_token() -> None:
    assert bootstrap_tokens.name(TOKEN) == "bootstrap-token-abcdef"
    for text in ("abcdef.0123456789abcde", "abcdef.0123456789abcdef\n", "ABCDEF.0123456789abcdef", "a.b.c", ""):
        assert bootstrap_tokens.name(text) == ""

"""Automatic approval of serving certificates of nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from master.admission.certificate_requests import set_requester
from master.auth.attributes import User
from master.auth.certificate_signing import ADDRESS_EXTRA
from master.controllers.actions import Update, Warn
from master.controllers.context import Lister, ServerAddress
from master.controllers.controllers import STATELESS_CONTROLLERS
from tests.unit.master.action_lines import CONFIG
from tests.unit.master.signing import (
    N1,
    NODES,
    NOW,
    approved,
    node,
    serving,
    why,
)


def test_serving_certificate_is_approved_for_node_name_and_requesters_address() -> None:
    nodes = [node("n1", "10.0.0.1", "10.0.0.9"), node("n2", "10.0.0.2", "10.0.0.9")]
    assert approved(serving(("n1",), ("10.0.0.1",)), nodes)
    assert approved(serving((), ("10.0.0.1",)), nodes)
    assert approved(serving(("n1",), ()), nodes)
    assert "10.0.0.3" in why(serving(("n1",), ("10.0.0.3",)), nodes)
    assert "is not the name of the node" in why(serving(("n2",), ()), nodes)
    assert not approved(serving(("n1",), ("10.0.0.2",)), nodes)
    assert "there is no Node n1" in why(serving(("n1",), ("10.0.0.1",)), nodes[1:])
    assert "is also an address of the Node n2" in why(serving(("n1",), ("10.0.0.9",), "10.0.0.9"), nodes)
    assert not approved(serving(("n1",), ("10.0.0.1",), user="system:admin", groups=("system:masters",)), nodes)
    assert not approved(serving(("n1",), ("10.0.0.1",), groups=()), nodes), "somebody of that name who is no node"


def test_serving_certificate_address_must_be_the_connections_source() -> None:
    """A node writes the addresses in its own Node, so it could write those of the master, of another node, or
    0.0.0.0.
    """
    own = node("n1", "10.0.0.1", "10.0.0.7", "172.30.0.1", "0.0.0.0")
    for address in ("10.0.0.7", "172.30.0.1", "0.0.0.0", "10.0.0.1"):
        assert "is not the client address of the request" in why(serving(("n1",), (address,), "10.0.0.5"), [own])
    assert "an unknown address" in why(serving(("n1",), ("10.0.0.1",), ""), [own])
    assert approved(serving(("n1",), ("10.0.0.7",), "10.0.0.7"), [own]), "a node on the master's own host"
    assert "not an InternalIP" in why(serving(("n1",), ("10.0.0.5",), "10.0.0.5"), [own])
    outer = node("n1", "10.0.0.5", kind="ExternalIP")
    assert "not an InternalIP" in why(serving(("n1",), ("10.0.0.5",), "10.0.0.5"), [outer])
    claimed = node("n2", "10.0.0.1", kind="ExternalIP")
    assert "is also an address of the Node n2" in why(serving(("n1",), ("10.0.0.1",)), [own, claimed])


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "::1",
        "169.254.1.1",
        "fe80::1",
        "0.0.0.0",
        "224.0.0.1",
        "::ffff:10.0.0.1",
        "172.30.0.1",
        "10.129.3.4",
    ],
)
def test_serving_certificate_is_denied_for_reserved_addresses(address: str) -> None:
    assert not approved(serving(("n1",), (address,), address), [node("n1", address)])


@pytest.mark.parametrize(
    "name",
    ["kubernetes", "kubernetes.default", "a.svc", "a.b.svc.cluster.local", "localhost", "a.localhost", "172.30.0.1"],
)
def test_serving_certificate_is_denied_for_reserved_names(name: str) -> None:
    csr = serving((name,), (), user=f"system:node:{name}")
    assert "is a name of the master or of the cluster" in why(csr, [node(name, "10.0.0.1")])


def test_serving_certificate_for_the_masters_hostname_needs_its_address() -> None:
    nodes = [node("head", "10.0.0.1", "10.0.0.7")]
    assert not approved(serving(("head",), (), "10.0.0.1", user="system:node:head"), nodes)
    assert not approved(serving(("head",), (), "", user="system:node:head"), nodes)
    assert approved(serving(("head",), (), "10.0.0.7", user="system:node:head"), nodes)


@pytest.mark.parametrize(("names", "addresses"), [(("n1", "n1"), ()), ((), ("10.0.0.1", "10.0.0.1"))])
def test_serving_certificate_has_one_name_and_one_address(names: tuple[str, ...], addresses: tuple[str, ...]) -> None:
    assert "more than one name or more than one address" in why(serving(names, addresses), [node("n1", "10.0.0.1")])


@pytest.mark.parametrize("name", ["kubernetes.default.svc", "*", "N1"])
def test_serving_certificate_with_a_foreign_name_is_denied(name: str) -> None:
    """The name is in the node's own Node."""
    own = node("n1", "10.0.0.1", name)
    assert not approved(serving((name,), ()), [own])
    assert not approved(serving(("n1", name), ()), [own])


def passed(name: str, address: str) -> list[type]:
    """Return the actions of the master for a request of that server, on a host of the name `head`."""
    csr = serving((name,), (address,), address, user=f"system:node:{name}")
    objects = {"CertificateSigningRequest": [csr], "Node": [node(name, address)]}
    server = ServerAddress("10.0.0.7", 8443)
    context = SimpleNamespace(
        network=CONFIG, server_address=lambda: server, hostname=lambda: "Head", authorize=lambda user, requested: False
    )
    lister = SimpleNamespace(list=lambda kind: objects[kind.KIND], context=context, now=NOW)
    (controller,) = (
        candidate
        for candidate in STATELESS_CONTROLLERS
        if candidate.name == "certificatesigningrequest-approving-controller"
    )
    return [type(action) for action in controller.reconcile(cast("Lister", lister))]


def test_reserved_networks_and_names_are_taken_from_settings() -> None:
    assert passed("n1", "10.0.0.1") == [Update]
    for network in (CONFIG.service_network, *(pool.network for pool in CONFIG.pools.pools)):
        assert passed("n1", str(network[5])) == [Warn]
    assert passed("head", "10.0.0.1") == [Warn]
    assert passed("head", "10.0.0.7") == [Update]


def test_requesters_address_annotation_is_set_by_the_server_only() -> None:
    csr = serving(("n1",), (), "10.6.6.6")
    forger = User(N1, frozenset(NODES), extra=((ADDRESS_EXTRA, ("10.6.6.6",)), ("scopes", ("a",))))
    assert set_requester(csr, forger, "").spec.extra == {"scopes": ("a",)}
    assert set_requester(csr, forger, "10.0.0.1").spec.extra == {"scopes": ("a",), ADDRESS_EXTRA: ("10.0.0.1",)}
    assert set_requester(csr, User(N1), "::ffff:10.0.0.1").spec.extra == {ADDRESS_EXTRA: ("10.0.0.1",)}

"""Secrets with the token of a service account."""

from __future__ import annotations

import datetime

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace

from api.core.config import ACCOUNT_NAME, ACCOUNT_TOKEN, ACCOUNT_UID, Secret
from master.auth import service_account_tokens
from master.auth.service_account_tokens import TokenSigner
from master.controllers.actions import ForceDelete, Update
from master.controllers.service_accounts import reconcile
from master.resources.configuration import ServiceAccount
from master.resources.metadata import with_metadata
from reconcile.errors import Refused
from tests.unit.master.examples import meta

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ISSUER = TokenSigner(ec.generate_private_key(ec.SECP256R1()))
ROBOT = ServiceAccount(metadata=meta("robot", namespace="red"))
EMPTY = Secret(metadata=meta("key", namespace="red", annotations={ACCOUNT_NAME: "robot"}), type=ACCOUNT_TOKEN)


def signed(account: ServiceAccount, secret: Secret) -> str:
    return ISSUER.sign(service_account_tokens.secret_token_claims(account, secret, NOW))


def filled(secret: Secret) -> Secret:
    (write,) = reconcile([secret], [ROBOT], "CA", signed)
    assert isinstance(write, Update)
    assert isinstance(write.item, Secret)
    assert list(reconcile([write.item], [ROBOT], "CA", signed)) == []
    return write.item


def test_a_secret_gets_a_token_that_is_good_as_long_as_it_is_there() -> None:
    done = filled(EMPTY)
    assert (done.data["ca.crt"], done.data["namespace"]) == (b"CA", b"red")
    assert done.metadata.annotations[ACCOUNT_UID] == "uid-robot"
    found = ISSUER.read(done.data["token"].decode(), NOW + datetime.timedelta(days=5000))
    assert service_account_tokens.user_from_claims(found).name == "system:serviceaccount:red:robot"
    assert service_account_tokens.bound_objects(found) == [
        ("ServiceAccount", "red", "robot", "uid-robot"),
        ("Secret", "red", "key", "uid-key"),
    ]


def test_what_is_changed_or_taken_out_comes_back() -> None:
    done = filled(EMPTY)
    assert filled(replace(done, data={**done.data, "ca.crt": b"other", "mine": b"1"})).data == {
        **done.data,
        "mine": b"1",
    }
    assert filled(replace(done, data={})).data.keys() == done.data.keys()


def test_a_secret_of_an_account_that_is_not_there_goes() -> None:
    assert [type(write) for write in reconcile([EMPTY], [], "CA", signed)] == [ForceDelete]
    other = with_metadata(EMPTY, annotations={ACCOUNT_NAME: "robot", ACCOUNT_UID: "another"})
    assert [type(write) for write in reconcile([other], [ROBOT], "CA", signed)] == [ForceDelete]
    assert list(reconcile([replace(EMPTY, type="Opaque")], [], "CA", signed)) == []


def test_no_other_token_is_without_an_end() -> None:
    claims = service_account_tokens.secret_token_claims(ROBOT, EMPTY, NOW)
    private = {key: value for key, value in claims[service_account_tokens.KUBERNETES_CLAIM].items() if key != "secret"}
    with pytest.raises(Refused):
        ISSUER.read(ISSUER.sign({**claims, service_account_tokens.KUBERNETES_CLAIM: private}), NOW)

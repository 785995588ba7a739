"""Secrets with the token of a service account."""

from __future__ import annotations

import datetime

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace

from api.core.config import ACCOUNT_NAME, ACCOUNT_TOKEN, ACCOUNT_UID, Secret
from master.access import accounts
from master.access.service_tokens import Issuer
from master.controllers.account_secrets import passes
from master.kinds.kind import with_metadata
from master.kinds.service_account import ServiceAccount
from master.writing.outcomes import Change, Drop
from reconcile.errors import Refused
from tests.unit.master.make import meta

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ISSUER = Issuer(ec.generate_private_key(ec.SECP256R1()))
ROBOT = ServiceAccount(metadata=meta("robot", namespace="red"))
EMPTY = Secret(metadata=meta("key", namespace="red", annotations={ACCOUNT_NAME: "robot"}), type=ACCOUNT_TOKEN)


def signed(account: ServiceAccount, secret: Secret) -> str:
    return ISSUER.sign(accounts.lasting_claims(account, secret, NOW))


def filled(secret: Secret) -> Secret:
    (write,) = passes([secret], [ROBOT], "CA", signed)
    assert isinstance(write, Change)
    assert isinstance(write.item, Secret)
    assert list(passes([write.item], [ROBOT], "CA", signed)) == []
    return write.item


def test_a_secret_gets_a_token_that_is_good_as_long_as_it_is_there() -> None:
    done = filled(EMPTY)
    assert (done.data["ca.crt"], done.data["namespace"]) == (b"CA", b"red")
    assert done.metadata.annotations[ACCOUNT_UID] == "uid-robot"
    found = ISSUER.read(done.data["token"].decode(), NOW + datetime.timedelta(days=5000))
    assert accounts.user(found).name == "system:serviceaccount:red:robot"
    assert accounts.needed(found) == [
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
    assert [type(write) for write in passes([EMPTY], [], "CA", signed)] == [Drop]
    other = with_metadata(EMPTY, annotations={ACCOUNT_NAME: "robot", ACCOUNT_UID: "another"})
    assert [type(write) for write in passes([other], [ROBOT], "CA", signed)] == [Drop]
    assert list(passes([replace(EMPTY, type="Opaque")], [], "CA", signed)) == []


def test_no_other_token_is_without_an_end() -> None:
    claims = accounts.lasting_claims(ROBOT, EMPTY, NOW)
    private = {key: value for key, value in claims[accounts.PRIVATE].items() if key != "secret"}
    with pytest.raises(Refused):
        ISSUER.read(ISSUER.sign({**claims, accounts.PRIVATE: private}), NOW)

"""Secrets with the token of a service account."""

from __future__ import annotations

import datetime

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace

from api.core.config import SERVICE_ACCOUNT_NAME, SERVICE_ACCOUNT_TOKEN, SERVICE_ACCOUNT_UID, Secret
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
EMPTY = Secret(
    metadata=meta("key", namespace="red", annotations={SERVICE_ACCOUNT_NAME: "robot"}), type=SERVICE_ACCOUNT_TOKEN
)


def signed(account: ServiceAccount, secret: Secret) -> str:
    return ISSUER.sign(service_account_tokens.secret_token_claims(account, secret, NOW))


def filled(secret: Secret) -> Secret:
    (write,) = reconcile([secret], [ROBOT], "CA", signed)
    assert isinstance(write, Update)
    assert isinstance(write.object, Secret)
    assert list(reconcile([write.object], [ROBOT], "CA", signed)) == []
    return write.object


def test_token_secret_gets_a_token_valid_while_it_exists() -> None:
    done = filled(EMPTY)
    assert (done.data["ca.crt"], done.data["namespace"]) == (b"CA", b"red")
    assert done.metadata.annotations[SERVICE_ACCOUNT_UID] == "uid-robot"
    actual = ISSUER.verify(done.data["token"].decode(), NOW + datetime.timedelta(days=5000))
    assert service_account_tokens.user_from_claims(actual).name == "system:serviceaccount:red:robot"
    assert service_account_tokens.bound_objects(actual) == [
        ("ServiceAccount", "red", "robot", "uid-robot"),
        ("Secret", "red", "key", "uid-key"),
    ]


def test_changed_token_secret_is_repaired() -> None:
    done = filled(EMPTY)
    assert filled(replace(done, data={**done.data, "ca.crt": b"other", "mine": b"1"})).data == {
        **done.data,
        "mine": b"1",
    }
    assert filled(replace(done, data={})).data.keys() == done.data.keys()


def test_token_secret_of_a_missing_service_account_is_deleted() -> None:
    assert [type(write) for write in reconcile([EMPTY], [], "CA", signed)] == [ForceDelete]
    other = with_metadata(EMPTY, annotations={SERVICE_ACCOUNT_NAME: "robot", SERVICE_ACCOUNT_UID: "another"})
    assert [type(write) for write in reconcile([other], [ROBOT], "CA", signed)] == [ForceDelete]
    assert list(reconcile([replace(EMPTY, type="Opaque")], [], "CA", signed)) == []


def test_only_secret_tokens_never_expire() -> None:
    claims = service_account_tokens.secret_token_claims(ROBOT, EMPTY, NOW)
    private = {key: value for key, value in claims[service_account_tokens.KUBERNETES_CLAIM].items() if key != "secret"}
    with pytest.raises(Refused):
        ISSUER.verify(ISSUER.sign({**claims, service_account_tokens.KUBERNETES_CLAIM: private}), NOW)

"""Codes, tokens and grants in the store: redemption, and how many one user can have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from api.core.oauth import token_name
from api.meta.types import Object, ObjectMeta
from master.oauth import tokens
from master.oauth.authorize import AuthorizeRequest, Client
from master.oauth.errors import OAuthError
from master.oauth.tokens import TokenIssuer
from master.resources.oauth import MAX_SCOPES, OAuthAccessToken, OAuthAuthorizeToken, OAuthClientAuthorization
from master.resources.scheme import STORED_TYPES, group_resource
from master.resources.users import User
from master.storage.interface import Key
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import delete, put
from tests.unit.master.controller_context import controller_context

ALICE, BOB = (User(metadata=ObjectMeta(name=name, uid=f"uid-{name}")) for name in ("alice", "bob"))
BACK = "https://app.example/back"
APP = Client("app", ("s3cret",), (BACK,))
REQUEST = AuthorizeRequest(APP, BACK, "code", "s", ("user:info",))
NewIssuer = Callable[[], TokenIssuer]


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    await storage.write(put(ALICE), put(BOB))
    yield storage
    await storage.close()


@pytest.fixture
def new_issuer(storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch) -> NewIssuer:
    for name in ("MAX_CODES", "MAX_ACCESS_TOKENS", "MAX_AUTHORIZATIONS"):
        monkeypatch.setattr(tokens, name, 3)
    creation = controller_context(storage).creation
    return lambda: TokenIssuer(storage, creation, creation.clock, lambda token: "")


def names(storage: SQLiteStorage, kind: type[Object], user: User = ALICE) -> set[str]:
    records = storage.list(group_resource(kind))
    return {record.key.name for record in records if record.object.user_name == user.metadata.name}


async def redeem_error(
    issuer: TokenIssuer, code: str, client: Client | None = APP, verifier: str = "", uri: str = BACK
) -> str:
    with pytest.raises(OAuthError) as raised:
        await issuer.redeem(client, "s3cret", code, uri, verifier)
    return raised.value.code


async def test_oldest_codes_of_a_user_make_room(storage: SQLiteStorage, new_issuer: NewIssuer) -> None:
    issuer = new_issuer()
    other = await issuer.issue_code(BOB, REQUEST)
    codes = [await issuer.issue_code(ALICE, REQUEST) for _ in range(5)]
    assert names(storage, OAuthAuthorizeToken) == {token_name(code) for code in codes[2:]}
    assert names(storage, OAuthAuthorizeToken, BOB) == {token_name(other)}
    assert await redeem_error(issuer, codes[0]) == "unauthorized_client"
    assert (await issuer.redeem(APP, "s3cret", codes[4], BACK, "")).scopes == ("user:info",)


async def test_oldest_tokens_of_a_user_make_room(storage: SQLiteStorage, new_issuer: NewIssuer) -> None:
    """Those that codes are exchanged for count, too, and those that were there before a start."""
    issuer = new_issuer()
    issued = [(await issuer.issue_token(ALICE, REQUEST)).access_token for _ in range(3)]
    issued.append((await issuer.issue_token(ALICE, REQUEST)).access_token)
    assert names(storage, OAuthAccessToken) == {token_name(token) for token in issued[1:]}
    other = (await issuer.issue_token(BOB, REQUEST)).access_token
    restarted = new_issuer()
    for _ in range(2):
        code = await restarted.issue_code(ALICE, REQUEST)
        issued.append((await restarted.redeem(APP, "s3cret", code, BACK, "")).access_token)
    stored = names(storage, OAuthAccessToken)
    assert len(stored) == 3
    assert {token_name(token) for token in issued[4:]} <= stored
    assert names(storage, OAuthAccessToken, BOB) == {token_name(other)}


async def test_deleted_tokens_make_room(storage: SQLiteStorage, new_issuer: NewIssuer) -> None:
    issuer = new_issuer()
    first, second, _ = [token_name((await issuer.issue_token(ALICE, REQUEST)).access_token) for _ in range(3)]
    record = storage.get(Key(group_resource(OAuthAccessToken), "", second))
    assert record is not None
    await storage.write(delete(record.object))
    await issuer.issue_token(ALICE, REQUEST)
    assert first in names(storage, OAuthAccessToken)


async def test_oldest_grants_of_a_user_make_room(storage: SQLiteStorage, new_issuer: NewIssuer) -> None:
    """More scopes for a client make none."""
    issuer = new_issuer()
    clients = [replace(APP, name=f"app-{number}") for number in range(5)]
    for client in clients:
        await issuer.grant(ALICE, client, ("user:info",))
        await issuer.grant(ALICE, client, ("user:check-access",))
    assert names(storage, OAuthClientAuthorization) == {"alice:app-2", "alice:app-3", "alice:app-4"}
    assert issuer.granted_scopes(ALICE, clients[4]) == ("user:check-access", "user:info")
    assert issuer.granted_scopes(ALICE, clients[0]) == issuer.granted_scopes(BOB, clients[4]) == ()


async def test_grant_of_an_earlier_user_is_none(storage: SQLiteStorage, new_issuer: NewIssuer) -> None:
    issuer = new_issuer()
    await issuer.grant(ALICE, APP, ("user:info",))
    again = User(metadata=ObjectMeta(name="alice", uid="uid-2"))
    assert issuer.granted_scopes(again, APP) == ()
    await issuer.grant(again, APP, ("user:check-access",))
    assert issuer.granted_scopes(again, APP) == ("user:check-access",)


CHALLENGED = replace(REQUEST, code_challenge="c" * 43, code_challenge_method="plain")


@pytest.mark.parametrize(
    ("request_", "client", "uri", "verifier", "error"),
    [
        (REQUEST, None, BACK, "", "unauthorized_client"),
        (REQUEST, replace(APP, secrets=("other",)), BACK, "", "unauthorized_client"),
        (REQUEST, replace(APP, name="other"), BACK, "", "invalid_grant"),
        (REQUEST, APP, f"{BACK}/", "", "invalid_grant"),
        (REQUEST, APP, BACK, "c" * 43, "invalid_grant"),
        (CHALLENGED, APP, BACK, "", "invalid_request"),
        (CHALLENGED, APP, BACK, "d" * 43, "invalid_grant"),
    ],
)
async def test_code_is_for_its_client_and_request(
    new_issuer: NewIssuer, request_: AuthorizeRequest, client: Client | None, uri: str, verifier: str, error: str
) -> None:
    """A verifier without a challenge means that somebody has removed the challenge from the request."""
    issuer = new_issuer()
    code = await issuer.issue_code(ALICE, request_)
    assert await redeem_error(issuer, code, client, verifier, uri) == error


async def test_code_ends_with_its_user(storage: SQLiteStorage, new_issuer: NewIssuer) -> None:
    issuer = new_issuer()
    code = await issuer.issue_code(ALICE, REQUEST)
    await storage.write(put(User(metadata=ObjectMeta(name="alice", uid="uid-2"))))
    assert await redeem_error(issuer, code) == "invalid_grant"


async def test_code_is_no_token_and_a_token_no_code(new_issuer: NewIssuer) -> None:
    issuer = new_issuer()
    code, token = await issuer.issue_code(ALICE, REQUEST), (await issuer.issue_token(ALICE, REQUEST)).access_token
    assert await redeem_error(issuer, token) == "unauthorized_client"
    with pytest.raises(OAuthError):
        issuer.describe(code)
    assert issuer.describe(token)["client_id"] == "app"


async def test_too_many_scopes_of_a_grant_drop_the_earlier_ones(new_issuer: NewIssuer) -> None:
    issuer = new_issuer()
    await issuer.grant(ALICE, APP, tuple(f"role:r{number}:red" for number in range(MAX_SCOPES)))
    assert len(issuer.granted_scopes(ALICE, APP)) == MAX_SCOPES
    await issuer.grant(ALICE, APP, ("role:r0:red", "user:info"))
    assert issuer.granted_scopes(ALICE, APP) == ("role:r0:red", "user:info")


async def test_client_with_one_uri_may_omit_it(new_issuer: NewIssuer) -> None:
    issuer = new_issuer()
    codes = [await issuer.issue_code(ALICE, REQUEST) for _ in range(2)]
    assert (await issuer.redeem(APP, "s3cret", codes[0], "", "")).scopes == ("user:info",)
    several = replace(APP, redirect_uris=(BACK, "https://app.example/other"))
    assert await redeem_error(issuer, codes[1], several, uri="") == "invalid_grant"


async def test_client_does_not_inherit_from_an_earlier_one_of_its_name(new_issuer: NewIssuer) -> None:
    """A project can be deleted, and created again by another tenant with a service account of the same name."""
    issuer = new_issuer()
    first, second = replace(APP, uid="1"), replace(APP, uid="2")
    await issuer.grant(ALICE, first, ("user:info",))
    code = await issuer.issue_code(ALICE, replace(REQUEST, client=first))
    assert issuer.granted_scopes(ALICE, first) == ("user:info",)
    assert issuer.granted_scopes(ALICE, second) == ()
    assert await redeem_error(issuer, code, second) == "invalid_grant"
    assert (await issuer.redeem(first, "s3cret", code, BACK, "")).scopes == ("user:info",)

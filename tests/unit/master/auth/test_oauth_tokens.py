"""OAuth access tokens: their names, their users, their lifetimes, and the groups of users."""

from __future__ import annotations

import base64
import datetime
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from api.core.oauth import token_name
from api.meta.types import ObjectMeta
from master.auth.oauth_tokens import (
    MASKED_ERROR,
    GroupIndex,
    OAuthTokenAuthenticator,
    new_token,
    user_of_token,
    with_extended_timeout,
)
from master.resources.metadata import format_time, with_metadata
from master.resources.oauth import OAuthAccessToken, OAuthAuthorizeToken, OAuthClient, is_expired
from master.resources.scheme import STORED_TYPES
from master.resources.users import Group, User
from master.storage.sqlite import SQLiteStorage
from reconcile.errors import Refused
from tests.testbed.apiserver.changes import delete, put

CREATED = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
RAW = f"sha256~{'r' * 43}"
ALICE = User(metadata=ObjectMeta(name="alice", uid="1"))
TOKEN = OAuthAccessToken(
    metadata=ObjectMeta(name=token_name(RAW), creation_timestamp=format_time(CREATED)),
    client_name="app",
    expires_in=86400,
    scopes=("user:full",),
    user_name="alice",
    user_uid="1",
)
APP = OAuthClient(metadata=ObjectMeta(name="app"), access_token_inactivity_timeout_seconds=600)


class Clock:
    """The time, in seconds after the creation of the token."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> datetime.datetime:
        """Return the time."""
        return after(self.seconds)


def after(seconds: float) -> datetime.datetime:
    return CREATED + datetime.timedelta(seconds=seconds)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    await storage.write(put(ALICE), put(TOKEN), put(APP))
    yield storage
    await storage.close()


# --- names ------------------------------------------------------------------------------------------------------------


def test_tokens_are_random_and_no_options() -> None:
    tokens = {new_token() for _ in range(500)}
    assert len(tokens) == 500
    assert {len(token) for token in tokens} == {50}
    assert not [token for token in tokens if not token.startswith("sha256~") or token.startswith("sha256~-")]


def test_name_of_a_token_is_the_hash_of_its_random_part() -> None:
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"r" * 43).digest()).decode().rstrip("=")
    assert token_name(RAW) == f"sha256~{digest}"
    assert token_name(token_name(RAW)) != token_name(RAW)
    assert token_name("\ud800")


# --- users ------------------------------------------------------------------------------------------------------------


def test_user_of_a_token_has_groups_and_scopes() -> None:
    user = user_of_token(TOKEN, ALICE, ("team",))
    assert (user.name, user.uid) == ("alice", "1")
    assert user.groups == {"team", "system:authenticated", "system:authenticated:oauth"}
    assert user.extra == (("scopes.authorization.openshift.io", ("user:full",)),)


DELETED = format_time(CREATED)


@pytest.mark.parametrize(
    ("token", "user"),
    [
        (None, ALICE),
        (TOKEN, None),
        (with_metadata(TOKEN, deletion_timestamp=DELETED), ALICE),
        (TOKEN, with_metadata(ALICE, deletion_timestamp=DELETED)),
        (TOKEN, with_metadata(ALICE, uid="2")),
        (replace(TOKEN, user_uid=""), ALICE),
    ],
)
def test_invalid_token_has_no_user(token: OAuthAccessToken | None, user: User | None) -> None:
    """The error does not tell why."""
    with pytest.raises(Refused) as raised:
        user_of_token(token, user, ())
    assert str(raised.value) == MASKED_ERROR


async def test_token_is_accepted_until_it_expires(storage: SQLiteStorage) -> None:
    clock = Clock()
    tokens = OAuthTokenAuthenticator(storage, clock)
    for seconds in (-3600.0, 0.0, 86399.0):
        clock.seconds = seconds
        assert tokens.authenticate(RAW).name == "alice"
    clock.seconds = 86400.0
    with pytest.raises(Refused, match=MASKED_ERROR):
        tokens.authenticate(RAW)


@pytest.mark.parametrize(
    "token", ["", "sha256~", TOKEN.metadata.name, f"{RAW}x", RAW[:-1], RAW.upper(), f" {RAW}", "sha256~" + "x" * 10_000]
)
async def test_other_token_is_refused(storage: SQLiteStorage, token: str) -> None:
    with pytest.raises(Refused, match=MASKED_ERROR):
        OAuthTokenAuthenticator(storage, Clock()).authenticate(token)


async def test_token_ends_with_its_user(storage: SQLiteStorage) -> None:
    tokens = OAuthTokenAuthenticator(storage, Clock())
    assert tokens.authenticate(RAW).uid == "1"
    await storage.write(delete(ALICE))
    with pytest.raises(Refused, match=MASKED_ERROR):
        tokens.authenticate(RAW)
    await storage.write(put(with_metadata(ALICE, uid="2")))
    with pytest.raises(Refused, match=MASKED_ERROR):
        tokens.authenticate(RAW)


# --- lifetimes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expires_in", "seconds", "expected"),
    [(300, 299, False), (300, 300, True), (300, -1e6, False), (0, 1e9, False), (10**30, 1e9, False), (-1, 0, True)],
)
def test_lifetime_counts_from_the_creation(expires_in: int, seconds: float, expected: bool) -> None:
    assert is_expired(replace(TOKEN, expires_in=expires_in), after(seconds)) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(299, False), (300, False), (301, True)])
def test_unused_token_expires(seconds: float, expected: bool) -> None:
    token = replace(TOKEN, inactivity_timeout_seconds=300)
    assert is_expired(token, after(seconds)) == expected
    assert is_expired(replace(token, expires_in=0), after(seconds)) == expected


@pytest.mark.parametrize("creation", ["", "yesterday"])
def test_token_without_a_creation_time_has_expired(creation: str) -> None:
    token = with_metadata(TOKEN, creation_timestamp=creation)
    assert is_expired(token, CREATED)
    assert is_expired(replace(token, expires_in=0, inactivity_timeout_seconds=300), CREATED)
    code = OAuthAuthorizeToken(metadata=token.metadata, expires_in=300)
    assert is_expired(code, CREATED)


@pytest.mark.parametrize(
    ("client_timeout", "used", "expected"),
    [(600, 100, 700), (600, 0, 650), (600, 49, 650), (600, 51, 651), (0, 100, 0), (None, 100, 650), (300, 100, 650)],
)
def test_use_extends_the_timeout_of_inactivity(client_timeout: int | None, used: float, expected: int) -> None:
    """It never shrinks. A client without a timeout leaves it, one with 0 removes it."""
    token = replace(TOKEN, inactivity_timeout_seconds=650)
    client = replace(APP, access_token_inactivity_timeout_seconds=client_timeout)
    assert with_extended_timeout(token, client, after(used)).inactivity_timeout_seconds == expected
    assert with_extended_timeout(token, None, after(used)) == token


# --- groups -----------------------------------------------------------------------------------------------------------


async def test_groups_follow_their_objects(storage: SQLiteStorage) -> None:
    def group(name: str, *users: str) -> Group:
        return Group(metadata=ObjectMeta(name=name), users=users)

    await storage.write(put(group("a", "alice", "alice", "bob")))
    index = GroupIndex(storage)
    assert (set(index.of("alice")), set(index.of("bob")), set(index.of("nobody"))) == ({"a"}, {"a"}, set())
    await storage.write(put(group("b", "alice")))
    assert set(index.of("alice")) == {"a", "b"}
    await storage.write(put(group("a", "bob")))
    assert (set(index.of("alice")), set(index.of("bob"))) == ({"b"}, {"a"})
    await storage.write(delete(group("b", "alice")), delete(group("a", "bob")))
    assert (set(index.of("alice")), set(index.of("bob"))) == (set(), set())

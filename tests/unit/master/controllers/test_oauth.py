"""Default clients of the OAuth server, and the deletion of expired tokens."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from api.meta.types import ObjectMeta
from master.controllers.actions import Create, Failed, Update
from master.controllers.context import Lister
from master.controllers.oauth import expired_tokens, sync_oauth_clients
from master.resources.oauth import OAuthAccessToken, OAuthAuthorizeToken
from master.resources.scheme import STORED_TYPES
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import put
from tests.unit.master.action_lines import lines
from tests.unit.master.controller_context import controller_context

NOW = datetime.datetime(2026, 1, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    yield storage
    await storage.close()


async def test_default_clients_are_created_once_the_url_is_known(storage: SQLiteStorage) -> None:
    context = controller_context(storage)
    assert list(sync_oauth_clients(Lister(context))) == []
    context = replace(context, public_url=lambda: "https://master.example")
    created = list(sync_oauth_clients(Lister(context)))
    names = ("openshift-browser-client", "openshift-challenging-client", "openshift-cli-client")
    assert lines(created) == [f"+ OAuthClient {name}" for name in names]
    assert all(isinstance(action, Create) for action in created)
    await storage.write(*(put(action.object) for action in created if isinstance(action, Create)))
    assert list(sync_oauth_clients(Lister(context))) == []
    moved = replace(context, public_url=lambda: "https://other.example")
    updates = list(sync_oauth_clients(Lister(moved)))
    assert lines(updates) == [f"~ OAuthClient {name}" for name in names[:2]]
    assert all(isinstance(action, Update) for action in updates)


def test_expired_tokens_are_deleted() -> None:
    def meta(name: str, created: str = "2026-01-01T00:00:00Z") -> ObjectMeta:
        return ObjectMeta(name=name, creation_timestamp=created)

    tokens: list[OAuthAccessToken | OAuthAuthorizeToken] = [
        OAuthAccessToken(metadata=meta("expired"), expires_in=3600),
        OAuthAccessToken(metadata=meta("valid"), expires_in=3601),
        OAuthAccessToken(metadata=meta("forever"), expires_in=0),
        OAuthAccessToken(metadata=meta("unused"), expires_in=0, inactivity_timeout_seconds=300),
        OAuthAccessToken(metadata=meta("used"), expires_in=0, inactivity_timeout_seconds=3600),
        OAuthAccessToken(metadata=meta("odd", "?"), expires_in=3601),
        OAuthAuthorizeToken(metadata=meta("code"), expires_in=300),
        OAuthAuthorizeToken(metadata=meta("new code", "2026-01-01T00:59:00Z"), expires_in=300),
    ]
    actions = list(expired_tokens(tokens, NOW))
    assert not [action for action in actions if isinstance(action, Failed)]
    kinds = {"code": "OAuthAuthorizeToken"}
    expected = [f"- {kinds.get(name, 'OAuthAccessToken')} {name}" for name in ("expired", "unused", "odd", "code")]
    assert lines(actions) == expected

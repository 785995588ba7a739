"""A master whose users have passwords, a browser, and the administrator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.testbed.apiserver.oauth import OAuthSession, oauth_session, server_with_users
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.users import user_session


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = server_with_users(tmp_path_factory.mktemp("master"))
    api_server.start()
    yield api_server
    assert api_server.stop() == 0


@pytest.fixture
async def browser(server: ApiServer) -> AsyncIterator[OAuthSession]:
    async with oauth_session(server) as session:
        yield session


@pytest.fixture
async def admin(server: ApiServer, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with user_session(server, tmp_path, "system:admin", "system:masters") as session:
        yield session

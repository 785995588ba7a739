"""Hostile people, pages, clients and tenants against the OAuth server and against the tokens that it issued."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import psutil
import pytest

from api.client.kubeconfig import Kubeconfig
from master.auth.oauth_tokens import token_name
from tests.testbed.apiserver.oauth import PASSWORDS, OAuthSession, oauth_session, server_with_users
from tests.testbed.apiserver.oauth_fuzz import RawConnection, Secrets, fault, hostile_request, location_of
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.users import user_session

OAUTH = "/apis/oauth.openshift.io/v1"
CLIENT_SECRET = "s3cret" * 8


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
async def admin(server: ApiServer, tmp_path: Any) -> AsyncIterator[aiohttp.ClientSession]:
    async with user_session(server, tmp_path, "system:admin", "system:masters") as session:
        yield session


async def make_client(admin: aiohttp.ClientSession, name: str, **fields: Any) -> None:
    document = {"metadata": {"name": name}, "grantMethod": "auto", "secret": CLIENT_SECRET, **fields}
    async with admin.post(f"{OAUTH}/oauthclients", json=document) as response:
        assert response.status in (201, 409), await response.text()


async def cookies_of(browser: OAuthSession, user: str) -> dict[str, str]:
    """Return the cookies of a browser after a login."""
    answer = await browser.log_in("/login?then=/x", user, PASSWORDS[user])
    assert answer.location == "/x"
    return browser.cookies()


# --- random requests --------------------------------------------------------------------------------------------------

REQUESTS = 400


async def fuzz(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession, count: int, seed: int
) -> Counter[str]:
    """Send random requests, check each response and the tokens in the store, and return how often what happened."""
    await make_client(admin, "strict", redirectURIs=["https://app.example/back"])
    cookies = await cookies_of(browser, "alice")
    sessions, csrf, codes = (cookies["__Host-ssn"],), cookies["__Host-csrf"], ["sha256~x"]
    config = Kubeconfig.load(server.kubeconfig)
    origins = (
        *(server.url, "https://app.example", "https://proxy.example"),
        *("http://127.0.0.1", "http://[::1]", "http://127.0.0.1:1", "http://[::1]:1"),
    )
    url = urlsplit(server.url)
    context = ssl.create_default_context(cadata=config.ca.decode())
    connection = RawConnection(str(url.hostname), url.port or 443, context)
    chance, seen, clients_of_codes = random.Random(seed), Counter[str](), {}
    for number in range(count):
        if number % 20 == 0:
            await connection.close()
        request = hostile_request(chance, Secrets(sessions, csrf, tuple(codes[-20:]), CLIENT_SECRET))
        async with asyncio.timeout(10):
            response = await connection.send(request)
        seen[response[9:12].decode() or "closed"] += 1
        if not response:
            continue
        assert not fault(response, origins), (fault(response, origins), request, response)
        target = urlsplit(location_of(response))
        if code := parse_qs(target.query).get("code", [""])[0]:
            seen["code"] += 1
            codes.append(code)
            own = {"app.example": "strict", str(url.hostname): ""}.get(target.hostname or "", "openshift-cli-client")
            clients_of_codes[token_name(code)] = own if target.port != url.port else "openshift"
        seen["token in a fragment"] += "access_token" in target.fragment
        seen["token redeemed"] += b'"access_token"' in response or b"Your API token is" in response
    await connection.close()
    async with admin.get(f"{OAUTH}/oauthaccesstokens") as answer:
        tokens = (await answer.json())["items"]
    for token in tokens:
        assert token["clientName"].startswith(clients_of_codes.get(token.get("authorizeToken", ""), "")), token
    return seen


async def test_random_requests_gain_nothing(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    """No redirect to another place, no failure of the server, no token for another client, no response after 10 s."""
    seen = await fuzz(server, admin, browser, REQUESTS, seed=15)
    assert seen["code"] > 3, seen
    assert seen["200"] > 20, seen
    assert psutil.Process(server.pid).memory_info().rss < 300 << 20
    for line in server.log().splitlines():
        assert "Traceback" not in line
        assert not [password for password in PASSWORDS.values() if password in line]

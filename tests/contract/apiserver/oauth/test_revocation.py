"""Requests that run on end when their access token or its user is deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from api.core.oauth import token_name
from streams.connection import Connection
from streams.upgrade import upgraded_connection
from tests.testbed.apiserver.oauth import OAuthSession, token_session
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.streaming.fake_kubelet import NODE, PODS, ProxyTestbed, proxy_testbed

OAUTH, USERS = "/apis/oauth.openshift.io/v1", "/apis/user.openshift.io/v1/users"
UPGRADE = {"Connection": "Upgrade", "Upgrade": "other/1.0", "X-Stream-Protocol-Version": "v4.channel.k8s.io"}
SECONDS = 20.0


@pytest.fixture
async def testbed(server: ApiServer, api_client: UntypedClient, tmp_path: Path) -> AsyncIterator[ProxyTestbed]:
    async with proxy_testbed(server, api_client, tmp_path) as new_testbed:
        await new_testbed.pod("web")
        new_testbed.node.answer = endless
        await api_client.create(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            name=f"everybody-{new_testbed.node.port}",
            subjects=[{"kind": "Group", "name": "system:authenticated:oauth", "apiGroup": "rbac.authorization.k8s.io"}],
            roleRef={"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"},
        )
        yield new_testbed


async def endless(http: web.Request) -> web.StreamResponse:
    """Send a line, and more when the client reads on."""
    response = web.StreamResponse()
    await response.prepare(http)
    await response.write(b"begun\n")
    await asyncio.Event().wait()
    return response


async def rest_of(connection: Connection) -> bytes:
    """Return what is sent until the connection ends in one way or another."""
    with contextlib.suppress(ConnectionError):
        return await connection.read()
    return b""


class Streams:
    """All kinds of requests that run on, with one token."""

    def __init__(self) -> None:
        self.responses: list[aiohttp.ClientResponse] = []
        self.connections: list[Connection] = []

    async def start(self, session: aiohttp.ClientSession) -> None:
        """Open them, and wait until each one has sent something."""
        async with asyncio.timeout(SECONDS):
            await self._start(session)

    async def _start(self, session: aiohttp.ClientSession) -> None:
        for path in ("/api/v1/configmaps?watch=1", f"{PODS}/web/log?follow=true", f"/api/v1/nodes/{NODE}/proxy/logs/"):
            response = await session.get(path)
            assert response.status == 200, await response.text()
            assert await response.content.readline()
            self.responses.append(response)
        for path in (f"{PODS}/web/exec?command=a", f"{PODS}/web/attach", f"{PODS}/web/portforward"):
            response = await session.post(path, headers=UPGRADE)
            assert response.status == 101, await response.text()
            connection = upgraded_connection(response)
            assert await connection.read() == b"hello"
            self.connections.append(connection)

    async def ended(self) -> None:
        """Wait until the server has ended all of them."""
        async with asyncio.timeout(SECONDS):
            for response in self.responses:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
            for connection in self.connections:
                assert await rest_of(connection) == b""

    async def are_open(self) -> None:
        """Require that all of them still work."""
        async with asyncio.timeout(SECONDS):
            assert await self.responses[0].content.readline()
            for connection in self.connections:
                await connection.write(b"more")
                assert await connection.read() == b"more"
        assert not any(response.content.at_eof() for response in self.responses)

    def close(self) -> None:
        for response in self.responses:
            response.close()
        for connection in self.connections:
            connection.abort()


@pytest.mark.parametrize("what", ["token", "user"])
async def test_open_requests_end_with_their_token_and_its_user(
    server: ApiServer, testbed: ProxyTestbed, admin: aiohttp.ClientSession, browser: OAuthSession, what: str
) -> None:
    revoked_token, other_token = await browser.token("alice"), await browser.token("bob")
    async with token_session(server, revoked_token) as alice, token_session(server, other_token) as bob:
        revoked, other = Streams(), Streams()
        await revoked.start(alice)
        await other.start(bob)
        path = f"{OAUTH}/oauthaccesstokens/{token_name(revoked_token)}" if what == "token" else f"{USERS}/alice"
        async with admin.delete(path) as response:
            assert response.status == 200
        await revoked.ended()
        await testbed.api_client.create("/api/v1/namespaces/default/configmaps", name=f"after-{what}")
        await other.are_open()
        other.close()
        revoked.close()
    await testbed.node.quiet()

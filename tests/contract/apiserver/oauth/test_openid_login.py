"""A person logs in at an OpenID provider and gets a token of the cluster, with which kubectl works."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.testbed.apiserver.oauth import CLI, OAuthSession, json_of, oauth_session, pkce, token_session
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.identity_providers.https_server import server_files
from tests.testbed.identity_providers.openid_provider import CLIENT_ID, CLIENT_SECRET, OpenIDServer, openid_server
from tests.testbed.kubectl import OLDEST_AND_NEWEST

CLAIMS = {"sub": "1001", "name": "Alice", "preferred_username": "alice", "groups": ["dev"]}
LOOPBACK = "http://127.0.0.1:4711/callback"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A master whose people log in at the provider."""

    server: ApiServer
    provider: OpenIDServer


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    (tmp_path / "provider").mkdir()
    files = server_files(tmp_path / "provider")
    async with openid_server(files, **CLAIMS) as provider:
        configured = {
            "apiVersion": "v1",
            "kind": "OpenIDIdentityProvider",
            "clientID": CLIENT_ID,
            "clientSecret": CLIENT_SECRET,
            "ca": str(files.authority),
            "issuer": provider.issuer,
            "claims": {"preferredUsername": ["preferred_username"], "name": ["name"], "groups": ["groups"]},
        }
        providers = [{"name": "openid", "login": True, "provider": configured}]
        server = ApiServer(tmp_path, "--identity-providers", json.dumps(providers))
        await asyncio.to_thread(server.start)
        try:
            provider.callback_url = f"{server.url}/oauth2callback/openid"
            yield Cluster(server, provider)
        finally:
            await asyncio.to_thread(server.stop)


async def come_back(cluster: Cluster, browser: OAuthSession, challenge: str) -> str:
    """Request a code and log in at the provider. Return the path to which it redirects the browser."""
    demanded = await browser.authorize(
        client_id=CLI,
        redirect_uri=LOOPBACK,
        response_type="code",
        code_challenge=challenge,
        code_challenge_method="S256",
        state="of the program",
    )
    assert demanded.status == 302
    query = cluster.provider.authorize(demanded.location)
    return f"/oauth2callback/openid?{urlencode(query)}"


async def test_person_logs_in_at_the_provider_and_kubectl_works_with_the_token(
    cluster: Cluster, tmp_path: Path
) -> None:
    verifier, challenge = pkce()
    async with oauth_session(cluster.server) as browser:
        logged_in = await browser.get(await come_back(cluster, browser, challenge))
        assert logged_in.location.startswith("/oauth/authorize?")
        at_program = await browser.get(logged_in.location)
        assert at_program.location.startswith(f"{LOOPBACK}?")
        assert at_program.query["state"] == "of the program"
        redeemed = await browser.redeem(
            CLI, code=at_program.query["code"], code_verifier=verifier, redirect_uri=LOOPBACK
        )
    token = str(json_of(redeemed)["access_token"])
    async with (
        token_session(cluster.server, token) as session,
        session.get("/apis/user.openshift.io/v1/users/~") as response,
    ):
        user = await response.json()
    assert (user["metadata"]["name"], user["fullName"], user["identities"]) == ("alice", "Alice", ["openid:1001"])
    assert "dev" in user["groups"]
    kubeconfig = tmp_path / "alice.kubeconfig"
    kubeconfig.touch()
    certificate = cluster.server.root / "state" / "pki" / "ca.crt"
    options = (f"--server={cluster.server.url}", f"--certificate-authority={certificate}", f"--token={token}")
    process = await asyncio.create_subprocess_exec(
        *(OLDEST_AND_NEWEST[-1], f"--kubeconfig={kubeconfig}", *options, "auth", "whoami", "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert json.loads(output)["status"]["userInfo"]["username"] == "alice"


async def test_redirect_of_another_browser_or_a_second_time_logs_nobody_in(cluster: Cluster) -> None:
    """A thief sends the redirect of the own login to a victim, who would then work as the thief."""
    async with oauth_session(cluster.server) as thief, oauth_session(cluster.server) as victim:
        path = await come_back(cluster, thief, pkce()[1])
        assert not (await victim.get(path)).location
        assert "__Host-ssn" not in victim.cookies()
        assert "/token" not in cluster.provider.requests
        assert (await thief.get(path)).location.startswith("/oauth/authorize?")
        again = await thief.get(path)
        assert not again.location
        assert "An authentication error occurred." in again.text

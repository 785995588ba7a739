"""A client of the OAuth server of a master, and a master whose users have passwords."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import re
import secrets
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import aiohttp
import bcrypt

from api.client.kubeconfig import Kubeconfig
from master.auth import pki
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.tls_connector import tls_connector

PASSWORDS = {"alice": "wonderland", "bob": "builder", "carol": "carols secret"}
"""User name → password."""

CHALLENGING, BROWSER, CLI = "openshift-challenging-client", "openshift-browser-client", "openshift-cli-client"


def server_with_users(root: Path) -> ApiServer:
    """Return a master that is not started.

    The users of PASSWORDS can log in with a password, and the proxy with the certificate `proxy.pem` names users in the
    header X-Remote-User. `impostor.pem` is another certificate of the proxy's authority.
    """
    root.joinpath("htpasswd").write_text(
        "".join(
            f"{name}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4, b'2a')).decode()}\n"
            for name, password in PASSWORDS.items()
        )
    )
    now = datetime.datetime.now(datetime.UTC)
    proxies = pki.authority(root / "proxies", now)
    for name, identity in (
        ("proxy", pki.client_identity(proxies, "front-proxy", (), now)),
        ("impostor", pki.client_identity(proxies, "system:admin", ("system:masters",), now)),
    ):
        (root / f"{name}.pem").write_bytes(identity.key + identity.certificate)
    root.joinpath("master.yaml").write_text(
        "identityProviders:\n"
        "- name: proxy\n"
        "  provider: {apiVersion: v1, kind: RequestHeaderIdentityProvider, headers: [X-Remote-User], "
        f"clientCA: {root / 'proxies' / 'ca.crt'}, clientCommonNames: [front-proxy], "
        "challengeURL: 'https://proxy.example/challenge?${query}'}\n"
        "- name: local\n  challenge: true\n  login: true\n"
        "  provider: {apiVersion: v1, kind: HTPasswdPasswordIdentityProvider, "
        f"file: {root / 'htpasswd'}}}\n"
    )
    return ApiServer(root, "--config", str(root / "master.yaml"))


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, with its body read. `location` is the target of a redirect."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def location(self) -> str:
        """Return where the response redirects; empty if it does not."""
        return self.headers.get("Location", "")

    @property
    def query(self) -> dict[str, str]:
        """Return the parameters of the redirect."""
        return dict(parse_qsl(urlsplit(self.location).query, keep_blank_values=True))

    @property
    def fragment(self) -> dict[str, str]:
        """Return the parameters in the fragment of the redirect."""
        return dict(parse_qsl(urlsplit(self.location).fragment, keep_blank_values=True))

    def hidden(self, name: str) -> str:
        """Return the value of a hidden field of the page."""
        match = re.search(rf'name="{name}" value="([^"]*)"', self.text)
        assert match is not None, self.text
        return match[1].replace("&amp;", "&")


class OAuthSession:
    """A browser or a program with cookies, that follows no redirect by itself."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self.url = url

    def cookies(self) -> dict[str, str]:
        """Return the values of the cookies by their names."""
        return {cookie.key: cookie.value for cookie in self._http.cookie_jar}

    async def send(self, method: str, target: str, **options: Any) -> Answer:
        """Send a request and return the response. `target` is a path or a URL of this server."""
        path = target.removeprefix(self.url)
        async with self._http.request(method, path, allow_redirects=False, **options) as response:
            return Answer(response.status, dict(response.headers), await response.text())

    async def get(self, target: str, **options: Any) -> Answer:
        """Send a GET."""
        return await self.send("GET", target, **options)

    async def post(self, target: str, form: Mapping[str, str], **options: Any) -> Answer:
        """Send a form."""
        return await self.send("POST", target, data=dict(form), **options)

    async def authorize(self, **parameters: str) -> Answer:
        """Send a request for authorization."""
        return await self.get(f"/oauth/authorize?{urlencode(parameters)}")

    async def log_in(self, page_path: str, user: str, password: str) -> Answer:
        """Send the form of a login page."""
        page = await self.get(page_path)
        form = {"then": page.hidden("then"), "csrf": page.hidden("csrf"), "username": user, "password": password}
        return await self.post(page_path, form)

    async def challenge(self, user: str, password: str, **parameters: str) -> Answer:
        """Request an authorization with Basic credentials, as `oc login` does."""
        headers = {"X-CSRF-Token": "1", "Authorization": basic(user, password)}
        target = {
            "client_id": CHALLENGING,
            "redirect_uri": f"{self.url}/oauth/token/implicit",
            "response_type": "code",
            **parameters,
        }
        return await self.get(f"/oauth/authorize?{urlencode(target)}", headers=headers)

    async def token(self, user: str, password: str = "", scope: str = "") -> str:
        """Return an access token of a user, by the requests of `oc login`."""
        verifier, challenge = pkce()
        more = {"scope": scope} if scope else {}
        answer = await self.challenge(
            user, password or PASSWORDS[user], code_challenge=challenge, code_challenge_method="S256", **more
        )
        assert "code" in answer.query, (answer.status, answer.location, answer.text)
        redeemed = await self.redeem(CHALLENGING, code=answer.query["code"], code_verifier=verifier)
        assert redeemed.status == 200, redeemed.text
        return str(json_of(redeemed)["access_token"])

    async def redeem(self, client: str, secret: str = "", **form: str) -> Answer:
        """Exchange a code for a token."""
        complete = {
            "grant_type": "authorization_code",
            "redirect_uri": f"{self.url}/oauth/token/implicit",
            **form,
        }
        return await self.post("/oauth/token", complete, headers={"Authorization": basic(quote(client), quote(secret))})


def basic(user: str, password: str) -> str:
    """Return the Authorization header with a name and a password (RFC 7617)."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def json_of(answer: Answer) -> dict[str, Any]:
    """Return the JSON object in a response."""
    document: dict[str, Any] = json.loads(answer.text)
    return document


def pkce() -> tuple[str, str]:
    """Return a code verifier and its challenge by S256."""
    verifier = secrets.token_urlsafe(48)
    digest = hashlib.sha256(verifier.encode()).digest()
    return verifier, base64.urlsafe_b64encode(digest).decode().rstrip("=")


@asynccontextmanager
async def oauth_session(server: ApiServer, certificate: Path | None = None) -> AsyncIterator[OAuthSession]:
    """Yield a session without cookies, and without a certificate unless one is given."""
    config = Kubeconfig.load(server.kubeconfig)
    context = ssl.create_default_context(cadata=config.ca.decode())
    if certificate is not None:
        context.load_cert_chain(certificate)
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(config.server, connector=tls_connector(context), cookie_jar=jar) as http:
        yield OAuthSession(http, config.server)


@asynccontextmanager
async def token_session(server: ApiServer, token: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a session that authenticates by a token."""
    config = Kubeconfig.load(server.kubeconfig)
    context = ssl.create_default_context(cadata=config.ca.decode())
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(config.server, connector=tls_connector(context), headers=headers) as http:
        yield http

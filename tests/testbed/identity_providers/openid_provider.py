"""An OpenID provider with one person who is logged in, by OpenID Connect Core 1.0 and Discovery 1.0.

It has what the code flow needs, and compares what a provider must compare: client, secret, redirect URI, and that a
code is redeemed once. With `changes` it differs from the specification.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

from aiohttp import web

from tests.testbed.identity_providers.https_server import ServerFiles, https_server

CLIENT_ID, CLIENT_SECRET = "podlane", "s3cret:+ /é"
CALLBACK_URL = "https://master.example:8443/oauth2callback/openid"


@dataclass(slots=True)
class Changes:
    """What is different from the specification: documents of discovery, id_token, token endpoint and userinfo."""

    metadata: dict[str, Any] = field(default_factory=dict)
    id_token: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, Any] = field(default_factory=dict)
    user_info: dict[str, Any] = field(default_factory=dict)


def changed(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a document with changes; None removes a field."""
    return {key: value for key, value in (document | changes).items() if value is not None}


@dataclass(slots=True)
class OpenIDServer:
    """The provider. `requests` are the paths that were asked for, `callback_url` is registered for the client."""

    claims: dict[str, Any]
    changes: Changes = field(default_factory=Changes)
    issuer: str = ""
    callback_url: str = CALLBACK_URL
    requests: list[str] = field(default_factory=list)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)
    _access_tokens: set[str] = field(default_factory=set)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request of the client."""
        self.requests.append(request.path)
        if request.path == "/.well-known/openid-configuration":
            return web.json_response(changed(self._metadata(), self.changes.metadata))
        if request.path == "/token" and request.method == "POST":
            return await self._token(request)
        if request.path == "/userinfo":
            return self._user_info(request)
        return web.Response(status=404)

    def authorize(self, url: str) -> dict[str, str]:
        """Log in at the authorization endpoint, as a browser does. Return the query of the redirect."""
        parts = urlsplit(url)
        assert f"{parts.scheme}://{parts.netloc}{parts.path}" == f"{self.issuer}/authorize"
        query = {name: value for name, (value,) in parse_qs(parts.query, strict_parsing=True).items()}
        assert query["client_id"] == CLIENT_ID
        assert query["redirect_uri"] == self.callback_url
        assert query["response_type"] == "code"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe()
        self._codes[code] = query
        redirect = urlencode({"code": code, "state": query["state"], "iss": self.issuer})
        return {name: value for name, (value,) in parse_qs(redirect).items()}

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        authorization = request.headers.get("Authorization", "")
        if authorization.startswith("Basic "):
            client, _, secret = base64.b64decode(authorization[6:]).decode().partition(":")
            credentials = unquote_plus(client), unquote_plus(secret)
        else:
            credentials = str(form.get("client_id")), str(form.get("client_secret"))
            if "client_secret_post" not in self.changes.metadata.get("token_endpoint_auth_methods_supported", ()):
                return web.json_response({"error": "invalid_request"}, status=400)
        if credentials != (CLIENT_ID, CLIENT_SECRET):
            return web.json_response({"error": "invalid_client"}, status=401)
        query = self._codes.pop(str(form.get("code")), None)
        is_granted = query is not None and form.get("redirect_uri") == query["redirect_uri"]
        if not is_granted or form.get("grant_type") != "authorization_code":
            return web.json_response({"error": "invalid_grant", "error_description": "unknown code"}, status=400)
        assert query is not None
        now, access_token = int(time.time()), secrets.token_urlsafe()
        self._access_tokens.add(access_token)
        claims = {"iss": self.issuer, "aud": CLIENT_ID, "exp": now + 300, "iat": now, "nonce": query.get("nonce")}
        id_token = unverifiable_jwt(changed(claims | {"sub": self.claims["sub"]}, self.changes.id_token))
        tokens = {"access_token": access_token, "token_type": "Bearer", "expires_in": 300, "id_token": id_token}
        return web.json_response(changed(tokens, self.changes.tokens))

    def _user_info(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self._access_tokens:
            return web.Response(status=401)
        return web.json_response(changed(self.claims, self.changes.user_info))


def unverifiable_jwt(claims: dict[str, Any]) -> str:
    """Return a JWT whose signature nobody can verify."""
    parts = (json.dumps({"alg": "RS256", "kid": "1"}).encode(), json.dumps(claims).encode(), secrets.token_bytes(256))
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@asynccontextmanager
async def openid_server(files: ServerFiles, **claims: Any) -> AsyncIterator[OpenIDServer]:
    """Run a provider, until the end of the block. The claims are those of the person, at the userinfo endpoint."""
    server = OpenIDServer(claims)
    async with https_server(files, server.serve) as server.issuer:
        yield server

"""Login with a name and a password at the OAuth server of a master, as `oc login` does.

The client sends the password in answer to a challenge, gets a code, and exchanges it for a token (RFC 6749, RFC 7636).
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp

from api.client.client import ClientError, InvalidResponse, unreachable
from api.client.kubeconfig import Kubeconfig

DISCOVERY_PATH = "/.well-known/oauth-authorization-server"
CLIENT, IMPLICIT_PATH = "openshift-challenging-client", "/oauth/token/implicit"
TIMEOUT_SECONDS = 60.0


class LoginFailed(ClientError):
    """A name or a password that the server does not accept."""


async def request_token(server: Kubeconfig, user: str, password: str) -> str:
    """Return a token of the user. Of the kubeconfig, server and CA count. Raises ClientError."""
    connector = aiohttp.TCPConnector(ssl=server.ssl_context())
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with aiohttp.ClientSession(server.server, connector=connector, timeout=timeout) as http:
            return await _request_token(http, server.server, user, password)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise unreachable(server.server, error) from error
    except ValueError as error:
        raise InvalidResponse(f"{server.server}: the answer is malformed: {error}") from error


async def _request_token(http: aiohttp.ClientSession, server: str, user: str, password: str) -> str:
    metadata = await _json(await http.get(DISCOVERY_PATH))
    issuer = str(metadata.get("issuer", server))
    verifier = secrets.token_urlsafe(64)
    parameters = {
        "client_id": CLIENT,
        "redirect_uri": f"{issuer}{IMPLICIT_PATH}",
        "response_type": "code",
        "code_challenge": _unpadded(hashlib.sha256(verifier.encode()).digest()),
        "code_challenge_method": "S256",
    }
    credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
    headers = {"X-CSRF-Token": "1", "Authorization": f"Basic {credentials}"}
    authorize = _path(metadata, "authorization_endpoint")
    async with http.get(authorize, params=parameters, headers=headers, allow_redirects=False) as response:
        if response.status == 401:
            raise LoginFailed(f"{server} does not accept the name {user!r} with this password")
        query = dict(parse_qsl(urlsplit(response.headers.get("Location", "")).query))
        if "code" not in query:
            reason = query.get("error_description") or query.get("error") or f"status {response.status}"
            raise LoginFailed(f"{server} gives {user!r} no token: {reason}")
    form = {
        "grant_type": "authorization_code",
        "code": query["code"],
        "redirect_uri": parameters["redirect_uri"],
        "code_verifier": verifier,
        "client_id": CLIENT,
    }
    issued = await _json(await http.post(_path(metadata, "token_endpoint"), data=form))
    token = issued.get("access_token")
    if not isinstance(token, str):
        raise InvalidResponse(f"{server}: the answer to a code has no access_token")
    return token


def _path(metadata: dict[str, Any], endpoint: str) -> str:
    """Return the path of an endpoint. Requests go to the server of the kubeconfig, whose certificate is checked."""
    path = urlsplit(str(metadata.get(endpoint, ""))).path
    if not path.startswith("/") or path.startswith("//"):
        raise InvalidResponse(f"{endpoint} is {metadata.get(endpoint)!r}, which is no URL of a page")
    return path


async def _json(response: aiohttp.ClientResponse) -> dict[str, Any]:
    async with response:
        if response.status != 200:
            raise InvalidResponse(f"{response.url.path}: status {response.status}")
        document = await response.json(content_type=None)
        if not isinstance(document, dict):
            raise InvalidResponse(f"{response.url.path}: the answer is no JSON object")
        return document


def _unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")

"""The provider OpenID: people log in at an OpenID Connect provider, by the code flow. Driver.

Source: OpenID Connect Core 1.0 and Discovery 1.0. The id_token comes from the token endpoint over TLS, so its signature
is not checked, as the specification allows (3.1.3.7, 6); its claims are.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import jwt
import msgspec

from master.auth.identity_providers.provider import (
    AuthorizationError,
    ProviderError,
    ProviderIdentity,
    is_text,
    reported_identity,
)
from master.auth.identity_providers.remote import Answer, RemoteClient

DISCOVERY_PATH = "/.well-known/openid-configuration"
DISCOVERY_SECONDS = 3600.0
CLOCK_SKEW_SECONDS = 60
MAX_ERROR_BYTES, MAX_CODE_BYTES = 1024, 4096

REQUEST_PARAMETERS = frozenset(("response_type", "client_id", "redirect_uri", "scope", "state", "nonce"))
"""The parameters that the master sets."""


class Metadata(msgspec.Struct, frozen=True):
    """The part of the discovery document that is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    userinfo_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class TokenAnswer(msgspec.Struct, frozen=True):
    """The body of an answer of the token endpoint."""

    access_token: str = ""
    token_type: str = ""
    id_token: str = ""
    error: str = ""
    error_description: str = ""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The endpoints of a provider. An empty `issuer` is not compared, an empty `user_info` is not asked."""

    issuer: str
    authorize: str
    token: str
    user_info: str
    is_secret_in_form: bool = True
    """Whether the token endpoint gets the client's secret in the form instead of by HTTP Basic authentication."""


class ClaimNames(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The claims of each part of an identity. The first with a value counts."""

    id: tuple[str, ...] = ("sub",)
    preferred_username: tuple[str, ...] = ("preferred_username",)
    name: tuple[str, ...] = ("name",)
    email: tuple[str, ...] = ("email",)
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenIDClient:
    """The registration of the master at the provider, and what it asks for."""

    id: str
    secret: str = field(repr=False)
    scopes: tuple[str, ...]
    parameters: Mapping[str, str]
    claims: ClaimNames


def nonce_of(state: str) -> str:
    """Return the nonce of a request. A code that was stolen from another login has another nonce in its id_token."""
    digest = hashlib.sha256(b"nonce:" + state.encode(errors="replace")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class OpenIDProvider:
    """Authenticates people at a provider. `server` is its issuer, which is discovered when needed, or its endpoints."""

    def __init__(self, name: str, client: OpenIDClient, server: str | Endpoints, remote: RemoteClient) -> None:
        self.name = name
        self._client = client
        self._server = server
        self._remote = remote
        self._discovered: Endpoints | None = None
        self._discovered_at = 0.0

    async def authorization_url(self, callback_url: str, state: str) -> str:
        """Return the URL at the provider where the person logs in. Raises ProviderError."""
        url = (await self._endpoints()).authorize
        parameters = {
            **self._client.parameters,
            "response_type": "code",
            "client_id": self._client.id,
            "redirect_uri": callback_url,
            "scope": " ".join(dict.fromkeys(("openid", *self._client.scopes))),
            "state": state,
            "nonce": nonce_of(state),
        }
        return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(parameters)}"

    async def redeem(self, query: Mapping[str, str], callback_url: str) -> ProviderIdentity:
        """Return the identity for the query with which the provider redirected back. Raises ProviderError.

        The caller has compared the state.
        """
        if error := query.get("error", ""):
            description = query.get("error_description", "")
            if not is_text(error, MAX_ERROR_BYTES) or not is_text(description, MAX_ERROR_BYTES):
                raise ProviderError(f"{self.name}: the error of the provider is too long or no text")
            raise AuthorizationError(error, description)
        code = query.get("code", "")
        if not code or not is_text(code, MAX_CODE_BYTES):
            raise ProviderError(f"{self.name}: the provider redirected back without a code that can be used")
        endpoints = await self._endpoints()
        if endpoints.issuer and query.get("iss", endpoints.issuer) != endpoints.issuer:
            raise ProviderError(f"{self.name}: the provider redirected back as another issuer")
        tokens = await self._tokens(endpoints, code, callback_url)
        claims = self._id_claims(endpoints, tokens.id_token, nonce_of(query.get("state", "")))
        if endpoints.user_info:
            claims |= await self._user_info(endpoints.user_info, tokens, claims["sub"])
        return self._identity(claims)

    async def _endpoints(self) -> Endpoints:
        if isinstance(self._server, Endpoints):
            return self._server
        if self._discovered is None or time.monotonic() - self._discovered_at > DISCOVERY_SECONDS:
            self._discovered = await self._discover(self._server)
            self._discovered_at = time.monotonic()
        return self._discovered

    async def _discover(self, issuer: str) -> Endpoints:
        url = issuer.rstrip("/") + DISCOVERY_PATH
        answer = await self._remote.request("GET", url, headers={"Accept": "application/json"})
        _check_status(answer)
        found = answer.decode(Metadata)
        if found.issuer != issuer:
            raise ProviderError(f"{url}: found the issuer {found.issuer!r:.200}; {issuer!r} is accepted")
        for endpoint in (found.authorization_endpoint, found.token_endpoint, found.userinfo_endpoint):
            if endpoint and not is_https_url(endpoint):
                raise ProviderError(f"{url}: found the endpoint {endpoint!r:.200}; an https URL is accepted")
        return Endpoints(
            issuer,
            found.authorization_endpoint,
            found.token_endpoint,
            found.userinfo_endpoint,
            "client_secret_post" in found.token_endpoint_auth_methods_supported,
        )

    async def _tokens(self, endpoints: Endpoints, code: str, callback_url: str) -> TokenAnswer:
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": callback_url}
        headers = {"Accept": "application/json"}
        if endpoints.is_secret_in_form:
            form |= {"client_id": self._client.id, "client_secret": self._client.secret}
        else:
            credentials = f"{quote_plus(self._client.id)}:{quote_plus(self._client.secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
        answer = await self._remote.request("POST", endpoints.token, headers=headers, data=form)
        if answer.status not in {200, 400, 401}:
            _check_status(answer)
        tokens = answer.decode(TokenAnswer)
        if answer.status != 200 or tokens.error:
            raise ProviderError(f"{endpoints.token}: {tokens.error!r:.100} {tokens.error_description!r:.200}")
        if not tokens.id_token:
            raise ProviderError(f"{endpoints.token}: found no id_token")
        return tokens

    def _id_claims(self, endpoints: Endpoints, id_token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an id_token for this client, issuer and login. Raises ProviderError."""
        required = ["sub", "aud", "exp", *(["iss"] if endpoints.issuer else [])]
        try:
            claims: dict[str, Any] = jwt.decode(
                id_token,
                options={
                    "verify_signature": False,
                    "verify_exp": True,
                    "verify_nbf": True,
                    "verify_aud": True,
                    "verify_iss": bool(endpoints.issuer),
                    "verify_sub": True,
                    "require": required,
                },
                audience=self._client.id,
                issuer=endpoints.issuer or None,
                leeway=CLOCK_SKEW_SECONDS,
            )
        except (jwt.InvalidTokenError, RecursionError, ValueError) as error:
            raise ProviderError(f"{endpoints.token}: found an id_token that is not accepted: {error}") from None
        if claims.get("azp", self._client.id) != self._client.id:
            raise ProviderError(f"{endpoints.token}: found an id_token for the client {claims['azp']!r:.200}")
        if claims.get("nonce", nonce) != nonce:
            raise ProviderError(f"{endpoints.token}: found an id_token of another login")
        if not claims["sub"]:
            raise ProviderError(f"{endpoints.token}: found an id_token without a sub")
        return claims

    async def _user_info(self, url: str, tokens: TokenAnswer, subject: str) -> dict[str, Any]:
        if tokens.token_type.lower() != "bearer" or not is_text(tokens.access_token) or not tokens.access_token:
            raise ProviderError(f"{self.name}: the provider issued no bearer token")
        headers = {"Authorization": f"Bearer {tokens.access_token}", "Accept": "application/json"}
        answer = await self._remote.request("GET", url, headers=headers)
        _check_status(answer)
        claims = answer.decode(dict[str, Any])
        if claims.get("sub") != subject:
            raise ProviderError(f"{url}: found the sub {claims.get('sub')!r:.200}; the id_token has {subject!r:.200}")
        return claims

    def _identity(self, claims: Mapping[str, Any]) -> ProviderIdentity:
        names = self._client.claims
        return reported_identity(
            self.name,
            _first_text(claims, names.id),
            name=_first_text(claims, names.name),
            email=_first_text(claims, names.email),
            preferred_username=_first_text(claims, names.preferred_username),
            groups=_first_texts(claims, names.groups) if names.groups else None,
        )


def is_https_url(text: str) -> bool:
    """Return whether a text is an https URL with a host, without credentials and without a fragment."""
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:
        return False
    has_credentials = url.username is not None or url.password is not None
    is_plain = is_text(text) and " " not in text and "\\" not in text and "#" not in text
    return url.scheme == "https" and bool(url.hostname) and not has_credentials and is_plain


def _check_status(answer: Answer) -> None:
    if answer.status != 200:
        raise ProviderError(f"{answer.url}: found the status {answer.status}; 200 is accepted")


def _first_text(claims: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((value for name in names if isinstance(value := claims.get(name), str) and value), "")


def _first_texts(claims: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts of the first claim that has some; a single text is a list of it. Raises ProviderError."""
    for name in names:
        value = claims.get(name)
        texts = [value] if isinstance(value, str) else value
        if not texts:
            continue
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ProviderError(f"found the claim {name} {value!r:.200}; a list of texts is accepted")
        return tuple(dict.fromkeys(text for text in texts if text))
    return ()

"""Requests for authorization (RFC 6749, 4.1.1 and 4.2.1; RFC 7636): their parameters and the checks of them. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from master.oauth.errors import OAuthError, RedirectError
from master.oauth.redirect_uris import match_redirect_uri
from master.resources.oauth import (
    GRANT_PROMPT,
    MAX_SCOPES,
    PKCE_PLAIN,
    PKCE_S256,
    SERVICE_ACCOUNT_CLIENT_PREFIX,
    USER_FULL,
    ScopeRestriction,
    is_code_challenge,
    is_scope_allowed,
    scope_error,
)

CODE, TOKEN = "code", "token"
"""Response types: a code that the client exchanges for a token, or the token itself (implicit flow)."""

MAX_PARAMETERS, MAX_VALUE_LENGTH = 50, 4096
MAX_STATE_LENGTH = 2048


@dataclass(frozen=True, slots=True)
class Client:
    """A client of the OAuth server: an OAuthClient or a service account. A public client has no secret.

    `uid` is that of the object. What was granted to a client is not granted to another one that has its name later.
    """

    name: str
    secrets: tuple[str, ...] = ()
    redirect_uris: tuple[str, ...] = ()
    responds_with_challenges: bool = False
    grant_method: str = GRANT_PROMPT
    scope_restrictions: tuple[ScopeRestriction, ...] = ()
    max_age_seconds: int | None = None
    inactivity_seconds: int | None = None
    uid: str = ""

    @property
    def is_public(self) -> bool:
        """Return whether the client cannot keep a secret."""
        return not any(self.secrets) and not self.is_service_account

    @property
    def is_service_account(self) -> bool:
        """Return whether the client is a service account, whose tokens are its secrets."""
        return self.name.startswith(SERVICE_ACCOUNT_CLIENT_PREFIX)

    def has_secret(self, secret: str) -> bool:
        """Return whether a secret is one of the client's. The time does not depend on where the texts differ."""
        if self.is_public:
            return not secret
        checks = [hmac.compare_digest(own.encode(), secret.encode()) for own in self.secrets if own]
        return any(checks)


@dataclass(frozen=True, slots=True)
class AuthorizeRequest:
    """A valid request for authorization. `redirect_uri` is one that the client may use."""

    client: Client
    redirect_uri: str
    response_type: str
    state: str
    scopes: tuple[str, ...]
    code_challenge: str = ""
    code_challenge_method: str = ""


def single_parameters(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the parameters of a query or a form. Raises OAuthError if one is given twice (RFC 6749, 3.1)."""
    parameters: dict[str, str] = {}
    for name, value in pairs:
        if name in parameters or len(parameters) >= MAX_PARAMETERS or len(value) > MAX_VALUE_LENGTH:
            raise OAuthError("invalid_request")
        if "\0" in value or "\r" in value or "\n" in value:
            raise OAuthError("invalid_request")
        parameters[name] = value
    return parameters


def redirect_uri_of(client: Client | None, parameters: dict[str, str]) -> str:
    """Return the redirect URI of a request. Without it, nobody is sent anywhere. Raises OAuthError."""
    if client is None or not client.redirect_uris:
        raise OAuthError("unauthorized_client")
    redirect_uri = match_redirect_uri(client.redirect_uris, parameters.get("redirect_uri", ""))
    if not redirect_uri:
        raise OAuthError("invalid_request")
    return redirect_uri


def parse_authorize_request(client: Client, redirect_uri: str, parameters: dict[str, str]) -> AuthorizeRequest:
    """Return the request of the parameters. Raises RedirectError.

    A public client must send a code challenge, because whoever sees its redirects sees its codes (RFC 9700, 2.1.1).
    """
    response_type, state = parameters.get("response_type", ""), parameters.get("state", "")
    if response_type not in (CODE, TOKEN):
        raise RedirectError("unsupported_response_type")
    if len(state) > MAX_STATE_LENGTH:
        raise RedirectError("invalid_request", f"state is longer than {MAX_STATE_LENGTH} characters")
    challenge, method = parameters.get("code_challenge", ""), parameters.get("code_challenge_method", "")
    if response_type == CODE:
        if challenge:
            method = method or PKCE_PLAIN
            if method not in (PKCE_PLAIN, PKCE_S256):
                raise RedirectError("invalid_request", "code_challenge_method transform algorithm not supported")
            if not is_code_challenge(challenge):
                raise RedirectError("invalid_request", "code_challenge invalid (rfc7636)")
        elif client.is_public:
            raise RedirectError("invalid_request", "code_challenge (rfc7636) required for public clients")
        else:
            method = ""
    else:
        challenge = method = ""
    return AuthorizeRequest(client, redirect_uri, response_type, state, _scopes(client, parameters), challenge, method)


def _scopes(client: Client, parameters: dict[str, str]) -> tuple[str, ...]:
    """Return the requested scopes, `user:full` if none is requested. Raises RedirectError."""
    requested = tuple(dict.fromkeys(parameters.get("scope", "").split())) or (USER_FULL,)
    if len(requested) > MAX_SCOPES:
        raise RedirectError("invalid_scope", f"{len(requested)} scopes are requested; {MAX_SCOPES} are accepted")
    for number, scope in enumerate(requested):
        if error := scope_error(scope):
            raise RedirectError("invalid_scope", f'[{number}]: Invalid value: "{_printable(scope)}": {error}')
    denied = [scope for scope in requested if not is_scope_allowed(client.scope_restrictions, scope)]
    if denied:
        raise RedirectError("access_denied", f"scope denied: {' '.join(denied)}")
    return requested


def _printable(text: str) -> str:
    return text[:100].encode("unicode_escape").decode()


def missing_scopes(granted: Sequence[str], requested: Sequence[str]) -> tuple[str, ...]:
    """Return the requested scopes that are not granted. `user:full` contains all."""
    return () if USER_FULL in granted else tuple(scope for scope in requested if scope not in granted)


def is_verifier(challenge: str, method: str, verifier: str) -> bool:
    """Return whether a code verifier belongs to a challenge (RFC 7636, 4.6), in constant time."""
    computed = verifier
    if method == PKCE_S256:
        computed = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    return hmac.compare_digest(challenge.encode(), computed.encode())

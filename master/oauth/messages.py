"""Requests and responses of the OAuth server: parameters, credentials and cookies; JSON, pages and redirects."""

from __future__ import annotations

import asyncio
import base64
import binascii
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from master.oauth import pages
from master.oauth.authorize import single_parameters
from master.oauth.errors import OAuthError
from master.oauth.paths import APPROVE_PATH, AUTHORIZE_PATH
from master.oauth.redirect_uris import server_relative, with_query
from master.oauth.session import CSRF_COOKIE, is_same_csrf_token

MAX_FORM_BYTES, FORM_SECONDS = 64 << 10, 30.0

Annotate = Callable[[str, str], None]


class PageError(Exception):
    """An error that a person gets as a page."""

    def __init__(self, code: str, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.status = status


@dataclass(frozen=True, slots=True)
class OAuthRequest:
    """A request with its parameters: those of the form of a POST, else those of the query.

    `address` is the client's. `certificate` is its client certificate as DER. `annotate` adds to the audit event.
    """

    http: web.Request
    parameters: dict[str, str]
    address: str
    certificate: bytes | None
    annotate: Annotate

    def csrf_token(self) -> str:
        """Return the token of the cookie; empty if there is none."""
        return self.http.cookies.get(CSRF_COOKIE, "")

    @property
    def has_csrf_token(self) -> bool:
        """Return whether the form has the token of the cookie."""
        return is_same_csrf_token(self.csrf_token(), self.parameters.get("csrf", ""))

    def require_csrf_token(self) -> None:
        """Require that the form has the token of the cookie. Raises PageError."""
        if not self.has_csrf_token:
            raise PageError("token_expired", pages.REASONS["token_expired"])


# --- parsing ----------------------------------------------------------------------------------------------------------


async def parse_parameters(http: web.Request) -> dict[str, str]:
    """Return the parameters of the form of a POST, or of the query. Raises OAuthError.

    The boxes of a grant form repeat `scope`; they are joined.
    """
    text = http.rel_url.raw_query_string
    if http.method == "POST":
        if http.content_type != "application/x-www-form-urlencoded":
            raise OAuthError("invalid_request", "application/x-www-form-urlencoded is accepted")
        text = await _form(http)
    try:
        pairs = urllib.parse.parse_qsl(text, keep_blank_values=True, max_num_fields=100, errors="strict")
    except ValueError as error:
        raise OAuthError("invalid_request") from error
    if http.path == APPROVE_PATH and http.method == "POST":
        scopes = " ".join(value for name, value in pairs if name == "scope")
        pairs = [*((name, value) for name, value in pairs if name != "scope"), ("scope", scopes)]
    return single_parameters(pairs)


async def _form(http: web.Request) -> str:
    """Return the body of a form. Raises OAuthError."""
    try:
        async with asyncio.timeout(FORM_SECONDS):
            body = bytearray()
            async for chunk in http.content.iter_any():
                body += chunk
                if len(body) > MAX_FORM_BYTES:
                    raise OAuthError("invalid_request", f"a form of at most {MAX_FORM_BYTES} bytes is accepted")
    except TimeoutError as error:
        raise OAuthError("invalid_request", "the form was not received in time") from error
    try:
        return body.decode("ascii")
    except UnicodeDecodeError as error:
        raise OAuthError("invalid_request") from error


def basic_credentials(authorization: str) -> tuple[str, str] | None:
    """Return name and password of a Basic Authorization header; None if it is another one or malformed."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    name, colon, password = text.partition(":")
    return (name, password) if colon and name else None


def client_credentials(request: OAuthRequest) -> tuple[str, str]:
    """Return name and secret of a client: of the Authorization header, or of the form. Raises OAuthError."""
    authorization = request.http.headers.get("Authorization", "")
    if authorization:
        credentials = basic_credentials(authorization)
        if credentials is None:
            raise OAuthError("invalid_request")
        name, secret = map(urllib.parse.unquote_plus, credentials)
        return name, secret
    if "client_id" not in request.parameters:
        raise OAuthError("invalid_request")
    return request.parameters["client_id"], request.parameters.get("client_secret", "")


def callback_state(state: str) -> dict[str, str]:
    """Return what `_redirect_to_provider` put into the state; nothing if it is malformed."""
    try:
        return single_parameters(urllib.parse.parse_qsl(base64.urlsafe_b64decode(state.encode("ascii")).decode()))
    except (binascii.Error, ValueError, OAuthError):
        return {}


def target_of(request: OAuthRequest) -> str:
    """Return path and query of a request, to come back to it. The parameters of a POST become a query."""
    return with_query(request.http.path, {k: v for k, v in request.parameters.items() if k != "idp"})


def authorization_of(request: OAuthRequest) -> str:
    """Return the authorization that a grant page belongs to. Raises PageError.

    Without a session, it leads to the login and then back to the page.
    """
    then = server_relative(request.parameters.get("then", ""))
    if then.partition("?")[0] != AUTHORIZE_PATH:
        raise PageError("invalid_request", "The request is invalid.")
    return then


def with_state(parameters: dict[str, str], requested: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of an error with the state that the client has sent."""
    return {**parameters, "state": requested["state"]} if "state" in requested else parameters


def with_scopes(then: str, scopes: tuple[str, ...]) -> str:
    """Return the authorization with these scopes."""
    path, _, query = then.partition("?")
    pairs = [(name, value) for name, value in urllib.parse.parse_qsl(query) if name != "scope"]
    return f"{path}?{urllib.parse.urlencode([*pairs, ('scope', ' '.join(scopes))])}"


# --- responses --------------------------------------------------------------------------------------------------------


def content_security_policy(form_target: str) -> str:
    """Return the policy of a page. `form_target` is an origin to which a form may redirect, besides this server."""
    return (
        "default-src 'none'; style-src 'self'; base-uri 'none'; frame-ancestors 'none'; "
        f"form-action 'self'{f' {form_target}' if form_target else ''}"
    )


def html_response(page: str, form_target: str = "", status: int = 200) -> web.Response:
    """Return a page. `form_target` is an origin to which its form may redirect."""
    headers = {"Content-Security-Policy": content_security_policy(form_target)}
    return web.Response(status=status, text=page, content_type="text/html", headers=headers)


def error_page(code: str, text: str, status: int) -> web.Response:
    """Return the page of an error."""
    return html_response(pages.error(code, text), status=status)


def json_response(document: object, status: int = 200) -> web.Response:
    """Return a JSON document."""
    return web.Response(status=status, body=msgspec.json.encode(document), content_type="application/json")


def redirect(location: str) -> web.Response:
    """Return a redirect."""
    return web.Response(status=302, headers={"Location": location})


def set_cookie(response: web.Response, name: str, value: str) -> None:
    """Set a cookie of this host, which scripts cannot read, until the browser ends."""
    response.set_cookie(name, value, path="/", secure=True, httponly=True, samesite="Lax")


def delete_cookie(response: web.Response, name: str) -> None:
    """Delete a cookie."""
    response.del_cookie(name, path="/", secure=True, httponly=True, samesite="Lax")

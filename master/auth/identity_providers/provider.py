"""What identity providers have in common: the identity that they return, and the forms of authentication. Pure.

Source: the identity providers of OpenShift's OAuth server.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from multidict import MultiMapping

from master.resources.users import ENCODED_NAME_PREFIX

MAX_PASSWORD_BYTES = 1024
MAX_USER_NAME_BYTES = 1024
"""Longer passwords and names are wrong ones. They come from unauthenticated clients, and their length is work."""

MAX_TEXT, MAX_GROUPS = 1024, 1000
"""What a provider may report of a person: characters of a name, and groups."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters, line separators, and what reverses the direction of the text after it."""

MappingMethod = Literal["claim", "lookup", "generate", "add"]


class ProviderError(Exception):
    """An identity provider that cannot answer: unreachable, misconfigured or contradictory."""


class AuthorizationError(ProviderError):
    """An error that the provider redirected back with, such as `access_denied`. Clients get it as it is."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(f"{error}: {description}" if description else error)
        self.error = error
        self.description = description


@dataclass(frozen=True, slots=True)
class ProviderIdentity:
    """The identity of a person at an identity provider.

    `provider_user_name` is the person's id at the provider, unescaped. `groups` are those of an OpenID groups claim;
    None if the provider does not report groups.
    """

    provider_name: str
    provider_user_name: str
    name: str = ""
    email: str = ""
    preferred_username: str = ""
    groups: tuple[str, ...] | None = None


def reported_identity(
    provider_name: str,
    provider_user_name: str,
    *,
    name: str = "",
    email: str = "",
    preferred_username: str = "",
    groups: tuple[str, ...] | None = None,
) -> ProviderIdentity:
    """Return the identity that a remote provider reports. Raises ProviderError if its id or groups are unusable.

    The other texts are cut.
    """
    if not provider_user_name or not is_text(provider_user_name, MAX_USER_NAME_BYTES):
        raise ProviderError(f"{provider_name} reports the user id {provider_user_name!r:.80}; text is needed")
    if groups is not None and (len(groups) > MAX_GROUPS or not all(is_text(group, MAX_TEXT) for group in groups)):
        raise ProviderError(f"{provider_name} reports {len(groups)} groups; at most {MAX_GROUPS} are accepted, as text")
    name, email, preferred_username = (
        text[:MAX_TEXT] if is_text(text) else "" for text in (name, email, preferred_username)
    )
    return ProviderIdentity(provider_name, provider_user_name, name, email, preferred_username, groups)


def is_text(text: str, max_bytes: int | None = None) -> bool:
    """Return whether a text has no control characters and no bytes that are no text, and is not too long."""
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        return False
    return not _CONTROL.search(text) and (max_bytes is None or length <= max_bytes)


@runtime_checkable
class PasswordProvider(Protocol):
    """A provider that checks a name and a password."""

    async def authenticate_password(self, username: str, password: str) -> ProviderIdentity | None:
        """Return the identity; None if the name or the password is wrong. Raises ProviderError."""


@runtime_checkable
class HeaderProvider(Protocol):
    """A provider whose proxy authenticates people and names them in headers of the request.

    Clients without these headers are redirected to its URLs, which have the placeholders `${url}`,
    `${server-relative-url}` and `${query}`.
    """

    @property
    def login_url(self) -> str:
        """Return where browsers are redirected; empty if the provider is not for them."""

    @property
    def challenge_url(self) -> str:
        """Return where other clients are redirected; empty if the provider is not for them."""

    def authenticate_headers(self, headers: MultiMapping[str], certificate: bytes | None) -> ProviderIdentity | None:
        """Return the identity; None if the request has no headers or no certificate of the proxy.

        `certificate` is the client certificate of the connection as DER. Raises ProviderError if it is not the proxy's.
        """


@runtime_checkable
class RedirectProvider(Protocol):
    """A provider that authenticates people on its own pages and redirects them back with a code."""

    async def authorization_url(self, callback_url: str, state: str) -> str:
        """Return the URL at the provider where the person logs in. Raises ProviderError."""

    async def redeem(self, query: Mapping[str, str], callback_url: str) -> ProviderIdentity:
        """Return the identity for the query with which the provider redirected back. Raises ProviderError.

        The caller has compared the state.
        """


@dataclass(frozen=True, slots=True)
class IdentityProvider:
    """An identity provider of the configuration.

    `is_challenge`: clients may authenticate in answer to WWW-Authenticate. `is_login`: in a browser.
    """

    name: str
    is_challenge: bool
    is_login: bool
    mapping_method: MappingMethod
    authenticator: PasswordProvider | HeaderProvider | RedirectProvider


def escape_provider_user_name(name: str) -> str:
    """Return a provider user name as it is part of the name of an Identity, and of a User without a preferred name.

    With `:` or `/` it is unpadded standard base64 after `b64:`. Standard base64 can have `/` itself, which no name may
    have; it is written as `_`.
    """
    if ":" not in name and "/" not in name:
        return name
    encoded = base64.b64encode(name.encode("utf-8", "surrogatepass")).decode()
    return ENCODED_NAME_PREFIX + encoded.rstrip("=").replace("/", "_")


def unescape_provider_user_name(escaped: str) -> str:
    """Return the provider user name that was escaped. Raises ValueError."""
    if not escaped.startswith(ENCODED_NAME_PREFIX):
        return escaped
    encoded = escaped.removeprefix(ENCODED_NAME_PREFIX).replace("_", "/")
    return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True).decode("utf-8", "surrogatepass")


def encoded_credentials(username: str, password: str) -> tuple[bytes, bytes] | None:
    """Return name and password as UTF-8; None if one is empty, too long or no text, or has a NUL.

    An LDAP server accepts every name with an empty password, and C libraries read only what is before a NUL.
    """
    try:
        name, secret = username.encode(), password.encode()
    except UnicodeEncodeError:
        return None
    if not 0 < len(name) <= MAX_USER_NAME_BYTES or not 0 < len(secret) <= MAX_PASSWORD_BYTES:
        return None
    return None if b"\0" in name or b"\0" in secret else (name, secret)

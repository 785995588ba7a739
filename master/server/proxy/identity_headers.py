"""The headers that tell an aggregated API server who sends a request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from master import errors
from master.auth.attributes import User

USER, UID, GROUP, EXTRA = "X-Remote-User", "X-Remote-Uid", "X-Remote-Group", "X-Remote-Extra-"

_TOKEN_BYTES = frozenset(b"!#$&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
"""Bytes of a header name that stand for themselves."""


def identity_headers(user: User) -> list[tuple[str, str]]:
    """Return the headers that name a user. Raises InternalError if a header cannot hold a value unchanged."""
    headers = [(USER, user.name)]
    if user.uid:
        headers.append((UID, user.uid))
    headers += [(GROUP, group) for group in sorted(user.groups)]
    headers += [(f"{EXTRA}{_escaped(key)}", value) for key, values in user.extra for value in values]
    for name, value in headers:
        # A server drops white space around a value: " admin" would arrive as another user.
        if value != value.strip() or any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
            raise errors.internal_error(f"invalid header field value for {name!r}")
    return headers


def without_identity(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the headers of a client without those that name a user, however they are written."""
    for name, value in headers:
        if not name.lower().replace("_", "-").startswith("x-remote-"):
            yield name, value


def _escaped(key: str) -> str:
    """Return the key of an extra attribute as a part of a header name."""
    return "".join(
        chr(byte) if byte in _TOKEN_BYTES else f"%{byte:02X}" for byte in key.encode("utf-8", "surrogateescape")
    )

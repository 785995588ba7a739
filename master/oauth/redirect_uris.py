"""Redirect URIs: which ones a client may use, and what is added to them. Pure.

A redirect URI decides who gets a code or a token, so a URI that programs read in two ways matches nothing (RFC 9700,
4.1).
"""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult

MAX_URI_LENGTH = 4096

_UNSAFE = re.compile(r"[^\x21-\x7e]|\\")
"""Characters that no URI has, and the backslash, which browsers read as a slash."""

_ENCODED_SEPARATOR = re.compile(r"%(25|2e|2f|3b|5c|00)", re.IGNORECASE)
"""Encoded dots, slashes, backslashes, semicolons, NULs and percent signs in a path, which servers may decode before
they resolve it.
"""

_LOOPBACK_NETLOC = re.compile(r"(127(\.[0-9]{1,3}){3}|\[[0-9a-f:]+\])(:[0-9]{1,5})?", re.IGNORECASE)
"""The form of a loopback address with a port. `urlsplit` finds an address in `host[::1]`, too."""

_RESPONSE_PARAMETERS = frozenset(
    ("access_token", "code", "error", "error_description", "error_uri", "id_token", "iss", "state", "token_type")
)
"""Parameters of a response. In the query of a redirect URI they would come before those of the server."""


def match_redirect_uri(registered: Sequence[str], requested: str) -> str:
    """Return the URI to send the user back to; empty if the client may not use the requested one.

    Without a requested URI, it is the only registered one. A requested URI has scheme, host and port of a registered
    one, and its path or one below it. Its query is free, but for the parameters of a response.
    """
    if not requested:
        return registered[0] if len(registered) == 1 else ""
    return requested if any(_is_below(base, requested) for base in registered) else ""


def _is_below(base: str, requested: str) -> bool:
    base_parts, parts = _split(base), _split(requested)
    if base_parts is None or parts is None or "#" in base or "#" in requested or parts.username is not None:
        return False
    if parts.scheme != base_parts.scheme or not _is_same_host(base_parts, parts):
        return False
    path, base_path = parts.path, base_parts.path
    if requested != base and _has_response_parameter(parts.query):
        return False
    if path == base_path:
        return True
    segments = path.split("/")
    if _ENCODED_SEPARATOR.search(path) or "" in segments[1:-1] or any(map(_is_dot_segment, segments)):
        return False
    return path.startswith(f"{base_path.rstrip('/')}/")


def _is_dot_segment(segment: str) -> bool:
    """Return whether a segment leads upwards. Some servers cut its parameters first: `..;x`."""
    return segment.partition(";")[0] in (".", "..")


def _has_response_parameter(query: str) -> bool:
    pairs = urllib.parse.parse_qsl(query.replace(";", "&"), keep_blank_values=True)
    return any(name.strip().lower() in _RESPONSE_PARAMETERS for name, _ in pairs)


def _is_same_host(base: SplitResult, requested: SplitResult) -> bool:
    """Return whether host and port are the same. A program on a user's machine uses any port (RFC 8252, 7.3)."""
    if base.netloc == requested.netloc:
        return True
    if base.scheme != "http" or base.port is not None:
        return False
    return _is_loopback(base) and _is_loopback(requested)


def _is_loopback(parts: SplitResult) -> bool:
    """Return whether the host is a loopback address. The name localhost is none: it may resolve to anything."""
    if not _LOOPBACK_NETLOC.fullmatch(parts.netloc):
        return False
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _split(uri: str) -> SplitResult | None:
    """Return the parts of an absolute URI; None if the text is none."""
    if len(uri) > MAX_URI_LENGTH or _UNSAFE.search(uri):
        return None
    try:
        parts = urllib.parse.urlsplit(uri)
        parts.port  # noqa: B018  # An invalid port raises.
    except ValueError:
        return None
    return parts if parts.scheme and (parts.netloc or parts.scheme not in ("http", "https")) else None


def server_relative(uri: str) -> str:
    """Return a URI of this server as path and query; empty if it leads, or may lead, to another server.

    Browsers read `//host` and `/\\host` as another host.
    """
    if len(uri) > MAX_URI_LENGTH or _UNSAFE.search(uri) or not uri.startswith("/") or uri.startswith("//"):
        return ""
    return uri


def with_query(uri: str, parameters: Mapping[str, str]) -> str:
    """Return the URI with parameters added to its query."""
    separator = "&" if "?" in uri else "?"
    return f"{uri}{separator}{urllib.parse.urlencode(parameters)}"


def with_fragment(uri: str, parameters: Mapping[str, str]) -> str:
    """Return the URI with parameters as its fragment."""
    return f"{uri}#{urllib.parse.urlencode(parameters)}"


def origin(uri: str) -> str:
    """Return the source of a Content-Security-Policy that matches a URI; empty if there is none.

    It is the origin of the URI. A source cannot name an IPv6 address, nor the host in a scheme of one program, whose
    name has a dot (RFC 8252, 7.1): these match by their scheme.
    """
    parts = _split(uri)
    if parts is None:
        return ""
    if "." in parts.scheme or (parts.scheme in ("http", "https") and parts.netloc.startswith("[")):
        return f"{parts.scheme}:"
    return f"{parts.scheme}://{parts.netloc}" if re.fullmatch(r"[A-Za-z0-9.:-]+", parts.netloc) else ""

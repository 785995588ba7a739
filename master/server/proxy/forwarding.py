"""Forwarding between a client and a node or pod: response bodies and upgraded connections. Driver."""

from __future__ import annotations

import asyncio
import base64
import html
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from master import errors
from master.auth.authentication import BEARER_PROTOCOL, WEBSOCKET_PROTOCOL_HEADER
from master.oauth.session import CSRF_COOKIE, SESSION_COOKIE
from master.server.proxy.kubelet_client import IDLE_SECONDS
from streams.splice import splice
from streams.upgrade import UpgradeResponse, upgraded_connection

MAX_UNSENT_BYTES = 64 << 10
"""Maximum number of bytes buffered for one client. The backend is not read while there are more."""

BINARY, BASE64 = "binary.k8s.io", "base64.binary.k8s.io"
"""WebSocket subprotocols in which a log can be read."""

log = logging.getLogger(__name__)


class Forwarder:
    """The set of responses and connections that are being forwarded."""

    def __init__(self) -> None:
        self._open: set[Callable[[], None]] = set()

    def end_all(self) -> None:
        """Close everything that is being forwarded."""
        for close in tuple(self._open):
            close()

    @contextmanager
    def _registered(self, *closers: Callable[[], None]) -> Iterator[None]:
        self._open.update(closers)
        try:
            yield
        finally:
            self._open.difference_update(closers)

    async def upgrade(
        self, http: web.Request, response: aiohttp.ClientResponse, prefix: str = ""
    ) -> web.StreamResponse:
        """Connect the client with a backend that responded with 101, until one of them closes.

        Cookies of the response are for paths below `prefix`.
        """
        try:
            upgrade = UpgradeResponse(response_headers(_pairs(response), prefix, upgrade=True))
            client = await upgrade.upgrade(http)
        except BaseException:
            response.close()
            raise
        backend = upgraded_connection(response)
        with self._registered(client.abort, backend.abort):
            await splice(client, backend, IDLE_SECONDS, client_gone=client.client_gone)
        return upgrade

    async def copy_response(
        self,
        http: web.Request,
        response: aiohttp.ClientResponse,
        headers: CIMultiDict[str],
        change: Callable[[bytes], bytes] | None = None,
    ) -> web.StreamResponse:
        """Send the backend's response to the client, each part of its body as it arrives.

        If the backend closes its connection early, the client's connection is aborted, because the client must not
        take a part of the body for all of it. A body is buffered for `change`, unless it is larger than
        MAX_PAGE_BYTES.
        """
        if change is not None:
            headers.popall("Content-Length", None)
        client_response = web.StreamResponse(status=response.status, reason=response.reason, headers=headers)
        with self._registered(response.close):
            try:
                if http.transport is not None:
                    http.transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
                await client_response.prepare(http)
                buffered = bytearray()
                async for part in response.content.iter_any():
                    if change is None:
                        await client_response.write(part)
                        continue
                    buffered += part
                    if len(buffered) > MAX_PAGE_BYTES:
                        await client_response.write(bytes(buffered))
                        buffered.clear()
                        change = None
                if change is not None:
                    await client_response.write(change(bytes(buffered)))
                await client_response.write_eof()
            except (aiohttp.ClientError, TimeoutError) as error:
                log.debug("upstream response aborted", extra={"path": http.path, "error": str(error)})
                if http.transport is not None:
                    http.transport.abort()
            finally:
                response.close()
        return client_response

    async def websocket_log(self, http: web.Request, response: aiohttp.ClientResponse) -> web.StreamResponse:
        """Send the body to the client as WebSocket messages. The first message is empty."""
        channel = web.WebSocketResponse(protocols=(BINARY, BASE64))
        with self._registered(response.close):
            try:
                await channel.prepare(http)
                await _until_first(_send(channel, response), _discard_input(channel))
                await channel.close()
            finally:
                response.close()
        return channel


async def _until_first(*tasks: asyncio.Future[None] | asyncio.Task[None]) -> None:
    """Wait until one of the tasks is done; cancel the others."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        task.result()


def _send(channel: web.WebSocketResponse, response: aiohttp.ClientResponse) -> asyncio.Task[None]:
    async def send() -> None:
        encoded = channel.ws_protocol == BASE64
        try:
            await (channel.send_str("") if encoded else channel.send_bytes(b""))
            async for part in response.content.iter_any():
                if encoded:
                    await channel.send_str(base64.b64encode(part).decode("ascii"))
                else:
                    await channel.send_bytes(part)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            log.debug("log stream aborted", extra={"error": str(error)})

    return asyncio.ensure_future(send())


def _discard_input(channel: web.WebSocketResponse) -> asyncio.Task[None]:
    async def discard() -> None:
        async for _ in channel:
            pass

    return asyncio.ensure_future(discard())


def _pairs(response: aiohttp.ClientResponse) -> list[tuple[str, str]]:
    return list(response.headers.items())


HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer")
) | {"transfer-encoding", "upgrade"}
"""Hop-by-hop headers (RFC 9110, 7.6.1)."""

CREDENTIAL_HEADERS = (
    "authorization",
    "impersonate-",
    *(f"x-remote-{what}" for what in ("user", "uid", "group", "extra-")),
)
"""Prefixes of headers that authenticate the client to the master. Backends do not get them."""

LOGIN_COOKIES = frozenset((SESSION_COOKIE, CSRF_COOKIE))
"""Cookies of the OAuth server, which has the same origin. A pod that gets or sets them could log in as the user, or log
the user in as somebody else.
"""

SANDBOX = "sandbox allow-downloads allow-forms allow-popups allow-scripts"
"""The Content-Security-Policy of every proxied response. The page of a pod has an origin of its own: it neither reads
responses of the master nor registers a service worker, although its URL is one of the master.
"""

ORIGIN_HEADERS = frozenset(
    (
        # State of the origin in the browser: storage, workers, sessions, features, and what is known about the login.
        "accept-ch",
        "activate-storage-access",
        "clear-site-data",
        "critical-ch",
        "observe-browsing-topics",
        "origin-agent-cluster",
        "origin-trial",
        "service-worker-allowed",
        "set-login",
        "use-as-dictionary",
        # Connections to the origin: where they go, how they are secured, and who gets reports about them.
        "alt-svc",
        "expect-ct",
        "nel",
        "public-key-pins",
        "public-key-pins-report-only",
        "report-to",
        "reporting-endpoints",
        "strict-transport-security",
        # Requests that browsers send to the origin, and who reads the responses.
        "speculation-rules",
        "supports-loading-mode",
        "timing-allow-origin",
        "x-permitted-cross-domain-policies",
        # The browser would ask for a password in the name of the origin. Backends get no Authorization header.
        "authentication-info",
        "www-authenticate",
    )
)
"""Headers that concern the whole origin of the master, of which a backend is only a part."""

ORIGIN_HEADER_PREFIXES = ("access-control-", "attribution-reporting-", "sec-session-", "secure-session-")
"""Prefixes of further such headers."""


def request_headers(headers: list[tuple[str, str]], *, upgrade: bool = False) -> list[tuple[str, str]]:
    """Return the headers for the backend. `upgrade` keeps Connection and Upgrade. Raises StatusError."""
    if name := _invalid_header(headers):
        raise errors.bad_request(f"the value of the header {name} is not UTF-8")
    kept = _without_bearer_protocols(_without_headers(headers, CREDENTIAL_HEADERS, upgrade=upgrade))
    return list(_without_login_cookies(kept))


def response_headers(
    headers: list[tuple[str, str]], prefix: str = "", *, upgrade: bool = False
) -> list[tuple[str, str]]:
    """Return the headers of a backend's response that are sent to the client. Raises StatusError.

    Cookies are sent back below `prefix` only, which is the path of the backend on the master. Without it, none are set.
    """
    if name := _invalid_header(headers):
        text = f"error trying to reach service: the value of the header {name} of its response is not UTF-8"
        raise errors.status_error(503, "ServiceUnavailable", text)
    kept = _without_headers(headers, ORIGIN_HEADER_PREFIXES, upgrade=upgrade)
    confined = _confined_cookies((pair for pair in kept if pair[0].lower() not in ORIGIN_HEADERS), prefix)
    return [*confined, ("Content-Security-Policy", SANDBOX)]


def _without_headers(
    headers: list[tuple[str, str]], prefixes: tuple[str, ...], *, upgrade: bool
) -> list[tuple[str, str]]:
    connection_tokens = {
        token for key, value in headers if key.lower() == "connection" for token in _header_tokens(value)
    }
    dropped = HOP_BY_HOP | connection_tokens
    allowed = {"connection", "upgrade"} if upgrade else set()
    return [
        (key, value)
        for key, value in headers
        if (key.lower() in allowed or key.lower() not in dropped) and not key.lower().startswith(prefixes or ("\0",))
    ]


def _invalid_header(headers: list[tuple[str, str]]) -> str:
    """Return the name of a header whose value is not UTF-8, so that it has lone surrogates. Empty if there is none."""
    return next((key for key, value in headers if any("\ud800" <= letter <= "\udfff" for letter in value)), "")


def _without_bearer_protocols(headers: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for key, value in headers:
        if key.lower() != WEBSOCKET_PROTOCOL_HEADER or BEARER_PROTOCOL not in value:
            yield key, value
            continue
        protocols = [
            protocol.strip() for protocol in value.split(",") if not protocol.strip().startswith(BEARER_PROTOCOL)
        ]
        if protocols:
            yield key, ", ".join(protocols)


def _without_login_cookies(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for key, value in headers:
        cookies = value.split(";") if key.lower() == "cookie" else []
        kept = [cookie for cookie in cookies if _cookie_name(cookie) not in LOGIN_COOKIES]
        if len(kept) == len(cookies):
            yield key, value
        elif kept:
            yield key, ";".join(kept).strip()


def _confined_cookies(headers: Iterable[tuple[str, str]], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield headers. The cookies in them are for paths below the prefix, and for no other host of the domain."""
    for key, value in headers:
        if key.lower() != "set-cookie":
            yield key, value
            continue
        cookie, *attributes = value.split(";")
        if not prefix or _cookie_name(cookie) in LOGIN_COOKIES:
            continue
        path, kept = "/", [cookie]
        for attribute in attributes:
            name, _, content = attribute.partition("=")
            if name.strip().lower() == "path":
                path = content.strip() if content.strip().startswith("/") else "/"
            elif name.strip().lower() != "domain":
                kept.append(attribute)
        below = path if path == prefix or path.startswith(f"{prefix}/") else f"{prefix}{path}"
        yield key, ";".join((*kept, f" Path={below}"))


def _cookie_name(cookie: str) -> str:
    """Return the name of a cookie. One without a name, `=a=b`, comes back as `a=b`."""
    return cookie.strip().lstrip("=").partition("=")[0].strip()


def wants_upgrade(connection: list[str]) -> bool:
    """Return whether a client requests another protocol with its Connection headers."""
    return any("upgrade" in value.lower() for value in connection)


def _header_tokens(value: str) -> list[str]:
    return [token.strip().lower() for token in value.split(",")]


def rewrite_location(target: str, prefix: str, hosts: tuple[str, ...]) -> str:
    """Return a redirect of a backend for the client: below `prefix` if the target is on one of the hosts."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return target
    if (parts.netloc and parts.netloc not in hosts) or not parts.path.startswith("/"):
        return target
    path = parts.path if parts.path.startswith(prefix) else prefix + parts.path
    return urlunsplit(("", "", path, parts.query, parts.fragment))


MAX_PAGE_BYTES = 512 << 10
"""Maximum size of a page whose links are rewritten, in bytes. A larger page is forwarded unchanged."""

_BY_ATTRIBUTE: Mapping[str, str] = {
    "action": "form",
    "background": "body",
    "cite": "blockquote del ins q",
    "classid": "object",
    "codebase": "applet object",
    "data": "object",
    "formaction": "button input",
    "href": "a area base link",
    "icon": "command",
    "longdesc": "frame iframe img",
    "manifest": "html",
    "poster": "video",
    "profile": "head",
    "src": "audio embed frame iframe img input script source video",
    "usemap": "img input object",
}
"""Attribute → the tags in which it is a URL."""

# An unterminated tag, string or comment matches up to the end of the page, so matching takes linear time.
_TAG = re.compile(rb"""<([a-zA-Z][a-zA-Z0-9]*+)((?:[^<>"']|"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))*+)(>?)""")
_ATTRIBUTE = re.compile(rb"""(\s)([a-zA-Z]+)(\s*=\s*)("[^"]*"|'[^']*')""")
_VERBATIM = re.compile(
    rb"<!--(?:.*?-->|.*\Z)|<(script|style)\b[^>]*+(?:>|\Z)(?:.*?</\1\s*>|.*\Z)", re.IGNORECASE | re.DOTALL
)


def rewrite_links(page: bytes, change: Callable[[str], str]) -> bytes:
    """Return the page with every URL in its tags passed through `change`.

    Comments, scripts and styles are unchanged.
    """
    parts, done = [], 0
    for verbatim in _VERBATIM.finditer(page):
        parts.append(_rewrite_tags(page[done : verbatim.start()], change))
        text = verbatim[0]
        opening = text.find(b">") + 1 if verbatim[1] else 0
        parts += [_rewrite_tags(text[:opening], change), text[opening:]]
        done = verbatim.end()
    return b"".join([*parts, _rewrite_tags(page[done:], change)])


def _rewrite_tags(text: bytes, change: Callable[[str], str]) -> bytes:
    def attribute(tag: str, match: re.Match[bytes]) -> bytes:
        name = match[2].decode("ascii").lower()
        if tag not in _BY_ATTRIBUTE.get(name, "").split():
            return match[0]
        try:
            value = html.unescape(match[4][1:-1].decode("utf-8", "surrogateescape"))
        except ValueError:
            # A character reference of more digits than Python converts: no browser finds an address in it.
            return match[0]
        quote = match[4][:1]
        changed = change(value)
        if changed == value:
            return match[0]
        written = html.escape(changed).encode("utf-8", "surrogateescape")
        return b"".join((match[1], match[2], match[3], quote, written, quote))

    def whole(match: re.Match[bytes]) -> bytes:
        if not match[3]:
            return match[0]
        tag = match[1].decode("ascii").lower()
        return (
            b"<" + match[1] + _ATTRIBUTE.sub(lambda attribute_match: attribute(tag, attribute_match), match[2]) + b">"
        )

    return _TAG.sub(whole, text)

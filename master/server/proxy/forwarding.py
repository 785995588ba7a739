"""Forwarding between a client and a node or pod: response bodies and upgraded connections. Driver."""

from __future__ import annotations

import asyncio
import base64
import html
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from master import errors
from master.server.proxy.kubelet_client import IDLE_SECONDS
from streams.splice import splice
from streams.upgrade import UpgradeResponse, upgraded_connection

MAX_UNSENT_BYTES = 64 << 10
"""Bytes that wait for one client; the other side waits, too, when there are more."""

BINARY, BASE64 = "binary.k8s.io", "base64.binary.k8s.io"
"""Protocols of WebSocket in which a log can be read."""

log = logging.getLogger(__name__)


class Forwarder:
    """All responses and connections that are being forwarded."""

    def __init__(self) -> None:
        self._open: set[Callable[[], None]] = set()

    def end_all(self) -> None:
        """Close everything that is being forwarded."""
        for cut in tuple(self._open):
            cut()

    @contextmanager
    def _through(self, *cuts: Callable[[], None]) -> Iterator[None]:
        self._open.update(cuts)
        try:
            yield
        finally:
            self._open.difference_update(cuts)

    async def upgrade(self, http: web.Request, response: aiohttp.ClientResponse) -> web.StreamResponse:
        """Connect the client with a backend that has answered 101, until one of them closes."""
        try:
            answer = UpgradeResponse(response_headers(_pairs(response), upgrade=True))
            ours = await answer.upgrade(http)
        except BaseException:
            response.close()
            raise
        theirs = upgraded_connection(response)
        with self._through(ours.abort, theirs.abort):
            await splice(ours, theirs, IDLE_SECONDS, client_gone=ours.client_gone)
        return answer

    async def copy(
        self,
        http: web.Request,
        response: aiohttp.ClientResponse,
        headers: CIMultiDict[str],
        change: Callable[[bytes], bytes] | None = None,
    ) -> web.StreamResponse:
        """Send the backend's response to the client, each part of its body as it arrives.

        If the backend closes its connection early, the client's connection is closed, too, so that it never takes a
        part for the whole. A body is buffered for `change`, unless it is larger than MAX_PAGE_BYTES.
        """
        if change is not None:
            headers.popall("Content-Length", None)
        answer = web.StreamResponse(status=response.status, reason=response.reason, headers=headers)
        with self._through(response.close):
            try:
                if http.transport is not None:
                    http.transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
                await answer.prepare(http)
                kept = bytearray()
                async for part in response.content.iter_any():
                    if change is None:
                        await answer.write(part)
                        continue
                    kept += part
                    if len(kept) > MAX_PAGE_BYTES:
                        await answer.write(bytes(kept))
                        kept.clear()
                        change = None
                if change is not None:
                    await answer.write(change(bytes(kept)))
                await answer.write_eof()
            except (aiohttp.ClientError, TimeoutError) as error:
                log.debug("an answer broke off", extra={"path": http.path, "why": str(error)})
                if http.transport is not None:
                    http.transport.abort()
            finally:
                response.close()
        return answer

    async def messages(self, http: web.Request, response: aiohttp.ClientResponse) -> web.StreamResponse:
        """Send the body to the client as messages of WebSocket. The first message is empty."""
        channel = web.WebSocketResponse(protocols=(BINARY, BASE64))
        with self._through(response.close):
            try:
                await channel.prepare(http)
                await _until_first(_send(channel, response), _discard_input(channel))
                await channel.close()
            finally:
                response.close()
        return channel


async def _until_first(*works: asyncio.Future[None] | asyncio.Task[None]) -> None:
    """Wait until one of the tasks is done; cancel the others."""
    try:
        done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for work in works:
            work.cancel()
    for work in done:
        work.result()


def _send(channel: web.WebSocketResponse, response: aiohttp.ClientResponse) -> asyncio.Task[None]:
    async def say() -> None:
        encoded = channel.ws_protocol == BASE64
        try:
            await (channel.send_str("") if encoded else channel.send_bytes(b""))
            async for part in response.content.iter_any():
                if encoded:
                    await channel.send_str(base64.b64encode(part).decode("ascii"))
                else:
                    await channel.send_bytes(part)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            log.debug("a log broke off", extra={"why": str(error)})

    return asyncio.ensure_future(say())


def _discard_input(channel: web.WebSocketResponse) -> asyncio.Task[None]:
    async def listen() -> None:
        async for _ in channel:
            pass

    return asyncio.ensure_future(listen())


def _pairs(response: aiohttp.ClientResponse) -> list[tuple[str, str]]:
    return list(response.headers.items())


HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer")
) | {"transfer-encoding", "upgrade"}
"""Headers that are between two neighbours (RFC 9110, 7.6.1)."""

CREDENTIAL_HEADERS = (
    "authorization",
    "impersonate-",
    *(f"x-remote-{what}" for what in ("user", "uid", "group", "extra-")),
)
"""Beginnings of headers that say who asks the master, and are nobody else's affair."""

WEBSOCKET_PROTOCOL_HEADER, BEARER_PROTOCOL = "sec-websocket-protocol", "base64url.bearer.authorization.k8s.io."
"""Browsers, which set no other header, say who they are in a protocol of this beginning."""

CORS_HEADERS = frozenset(f"access-control-allow-{what}" for what in ("credentials", "headers", "methods", "origin"))
"""Headers by which a pod would open the master's own address to pages of others."""


def request_headers(headers: list[tuple[str, str]], *, upgrade: bool = False) -> list[tuple[str, str]]:
    """Return the headers to send to the backend, with those of an upgrade if asked. Raises StatusError."""
    if name := _invalid_header(headers):
        raise errors.bad_request(f"the value of the header {name} is not UTF-8")
    return list(_without_bearer_protocols(_without_headers(headers, CREDENTIAL_HEADERS, upgrade=upgrade)))


def response_headers(headers: list[tuple[str, str]], *, upgrade: bool = False) -> list[tuple[str, str]]:
    """Return the headers of a backend's response that are sent to the client. Raise StatusError."""
    if name := _invalid_header(headers):
        text = f"error trying to reach service: the value of the header {name} of its answer is not UTF-8"
        raise errors.status_error(503, "ServiceUnavailable", text)
    return [pair for pair in _without_headers(headers, (), upgrade=upgrade) if pair[0].lower() not in CORS_HEADERS]


def _without_headers(
    headers: list[tuple[str, str]], others: tuple[str, ...], *, upgrade: bool
) -> list[tuple[str, str]]:
    named = {token for key, value in headers if key.lower() == "connection" for token in _header_tokens(value)}
    dropped = HOP_BY_HOP | named
    kept = {"connection", "upgrade"} if upgrade else set()
    return [
        (key, value)
        for key, value in headers
        if (key.lower() in kept or key.lower() not in dropped) and not key.lower().startswith(others or ("\0",))
    ]


def _invalid_header(headers: list[tuple[str, str]]) -> str:
    """Return the name of a header whose value is not text: it contains lone surrogates. Empty if there is none."""
    return next((key for key, value in headers if any("\ud800" <= letter <= "\udfff" for letter in value)), "")


def _without_bearer_protocols(headers: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for key, value in headers:
        if key.lower() != WEBSOCKET_PROTOCOL_HEADER or BEARER_PROTOCOL not in value:
            yield key, value
            continue
        kept = [protocol.strip() for protocol in value.split(",") if not protocol.strip().startswith(BEARER_PROTOCOL)]
        if kept:
            yield key, ", ".join(kept)


def wants_upgrade(connection: list[str]) -> bool:
    """Return whether a client requests another protocol with its Connection headers."""
    return any("upgrade" in value.lower() for value in connection)


def _header_tokens(value: str) -> list[str]:
    return [token.strip().lower() for token in value.split(",")]


def rewrite_location(target: str, prefix: str, hosts: tuple[str, ...]) -> str:
    """Return a redirect of a backend as seen by the client: below `prefix`, if it stays at one of the hosts."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return target
    if (parts.netloc and parts.netloc not in hosts) or not parts.path.startswith("/"):
        return target
    path = parts.path if parts.path.startswith(prefix) else prefix + parts.path
    return urlunsplit(("", "", path, parts.query, parts.fragment))


MAX_PAGE_BYTES = 512 << 10
"""Bytes of a page whose links are changed; a larger one is passed on as it is."""

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

# Whatever is begun is taken to the end of the page if it is never ended: so the time grows as the page does.
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
    def attribute(tag: str, found: re.Match[bytes]) -> bytes:
        name = found[2].decode("ascii").lower()
        if tag not in _BY_ATTRIBUTE.get(name, "").split():
            return found[0]
        quote, value = found[4][:1], html.unescape(found[4][1:-1].decode("utf-8", "surrogateescape"))
        changed = change(value)
        if changed == value:
            return found[0]
        written = html.escape(changed).encode("utf-8", "surrogateescape")
        return b"".join((found[1], found[2], found[3], quote, written, quote))

    def whole(found: re.Match[bytes]) -> bytes:
        if not found[3]:
            return found[0]
        tag = found[1].decode("ascii").lower()
        return b"<" + found[1] + _ATTRIBUTE.sub(lambda one: attribute(tag, one), found[2]) + b">"

    return _TAG.sub(whole, text)

"""Negotiation of SPDY and WebSocket upgrades."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

from aiohttp import web

from streams.upgrade import UpgradeResponse

ASKED = "X-Stream-Protocol-Version"
ACCEPTED = "X-Accepted-Stream-Protocol-Versions"
SPDY = "SPDY/3.1"
VERSIONS = ("13", "8", "7")
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455, 1.3."""


def wants_websocket(request: web.Request) -> bool:
    """Whether it is a handshake of RFC 6455."""
    return _upgrades(request) and request.headers.get("Upgrade", "").strip().lower() == "websocket"


def negotiate_spdy(request: web.Request, known: Sequence[str]) -> tuple[str, UpgradeResponse]:
    """The first protocol in the client's order that is known, and the answer that begins it.

    Raises HTTPBadRequest for what is no upgrade to SPDY, HTTPForbidden, with the known ones, when none is known.
    """
    if not _upgrades(request):
        raise web.HTTPBadRequest(text="Upgrade request required\n")
    if SPDY.lower() not in request.headers.get("Upgrade", "").lower():
        found = request.headers.get("Upgrade", "")
        raise web.HTTPBadRequest(text=f"unable to upgrade: {SPDY} and websocket are accepted, found {found!r}\n")
    asked = _words(request, ASKED)
    if not asked:
        raise web.HTTPBadRequest(text=f"unable to upgrade: {ASKED} is required\n")
    chosen = next((name for name in asked if name in known), None)
    if chosen is None:
        words = f"client supports [{' '.join(asked)}], server accepts [{' '.join(known)}]"
        raise web.HTTPForbidden(
            text=f"unable to upgrade: unable to negotiate protocol: {words}\n",
            headers=[(ACCEPTED, name) for name in known],
        )
    return chosen, UpgradeResponse([("Upgrade", SPDY), (ASKED, chosen)])


def accept_websocket(request: web.Request, protocol: str) -> UpgradeResponse:
    """The answer that begins a WebSocket in this protocol, "" for none. Raises HTTPBadRequest for a bad handshake."""
    version = request.headers.get("Sec-WebSocket-Version", "")
    if version not in VERSIONS:
        text = f"Unsupported version: {version!r}; {', '.join(VERSIONS)} are accepted\n"
        raise web.HTTPBadRequest(text=text, headers={"Sec-WebSocket-Version": VERSIONS[0]})
    key = request.headers.get("Sec-WebSocket-Key", "")
    try:
        whole = len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        whole = False
    if not whole:
        raise web.HTTPBadRequest(text="Sec-WebSocket-Key is 16 bytes in base64\n")
    accepted = base64.b64encode(hashlib.sha1(key.encode() + MAGIC, usedforsecurity=False).digest()).decode()
    headers = [("Upgrade", "websocket"), ("Sec-WebSocket-Accept", accepted)]
    return UpgradeResponse([*headers, ("Sec-WebSocket-Protocol", protocol)] if protocol else headers)


def unsupported_protocol(request: web.Request, known: Sequence[str]) -> web.HTTPForbidden:
    """The refusal of a WebSocket whose protocols are all unknown."""
    asked = " ".join(_words(request, "Sec-WebSocket-Protocol"))
    return web.HTTPForbidden(text=f"requested protocol(s) are not supported: [{asked}]; supports [{' '.join(known)}]\n")


def _words(request: web.Request, header: str) -> list[str]:
    """The words of a header, however many lines it has; bytes that are no UTF-8 can be shown again."""
    lines = (
        line.encode(errors="surrogateescape").decode(errors="replace") for line in request.headers.getall(header, [])
    )
    return [word.strip() for line in lines for word in line.split(",") if word.strip()]


def _upgrades(request: web.Request) -> bool:
    return any(word.lower() == "upgrade" for word in _words(request, "Connection"))

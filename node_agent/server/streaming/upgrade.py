"""Negotiation of SPDY and WebSocket upgrades."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

from aiohttp import web

from streams.upgrade import UpgradeResponse

PROTOCOL_HEADER = "X-Stream-Protocol-Version"
ACCEPTED_PROTOCOLS_HEADER = "X-Accepted-Stream-Protocol-Versions"
SPDY = "SPDY/3.1"
WEBSOCKET_VERSIONS = ("13", "8", "7")
WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""Constant from which Sec-WebSocket-Accept is computed (RFC 6455, section 1.3)."""


def is_websocket_request(request: web.Request) -> bool:
    """Return whether a request is a WebSocket handshake (RFC 6455)."""
    return _is_upgrade(request) and request.headers.get("Upgrade", "").strip().lower() == "websocket"


def negotiate_spdy(request: web.Request, supported: Sequence[str]) -> tuple[str, UpgradeResponse]:
    """Return the first supported protocol in the client's order, and the response that accepts it.

    Raises HTTPBadRequest if the request is not an upgrade to SPDY. Raises HTTPForbidden, with the supported protocols,
    if the client supports none of them.
    """
    if not _is_upgrade(request):
        raise web.HTTPBadRequest(text="Upgrade request required\n")
    if SPDY.lower() not in request.headers.get("Upgrade", "").lower():
        upgrade = request.headers.get("Upgrade", "")
        raise web.HTTPBadRequest(text=f"unable to upgrade: {SPDY} and websocket are accepted, found {upgrade!r}\n")
    requested = _header_values(request, PROTOCOL_HEADER)
    if not requested:
        raise web.HTTPBadRequest(text=f"unable to upgrade: {PROTOCOL_HEADER} is required\n")
    protocol = next((name for name in requested if name in supported), None)
    if protocol is None:
        details = f"client supports [{' '.join(requested)}], server accepts [{' '.join(supported)}]"
        raise web.HTTPForbidden(
            text=f"unable to upgrade: unable to negotiate protocol: {details}\n",
            headers=[(ACCEPTED_PROTOCOLS_HEADER, name) for name in supported],
        )
    return protocol, UpgradeResponse([("Upgrade", SPDY), (PROTOCOL_HEADER, protocol)])


def accept_websocket(request: web.Request, protocol: str) -> UpgradeResponse:
    """Return the response that accepts a WebSocket with a protocol, "" for none.

    Raises HTTPBadRequest if the handshake is not valid.
    """
    version = request.headers.get("Sec-WebSocket-Version", "")
    if version not in WEBSOCKET_VERSIONS:
        text = f"Unsupported version: {version!r}; {', '.join(WEBSOCKET_VERSIONS)} are accepted\n"
        raise web.HTTPBadRequest(text=text, headers={"Sec-WebSocket-Version": WEBSOCKET_VERSIONS[0]})
    key = request.headers.get("Sec-WebSocket-Key", "")
    if not _is_websocket_key(key):
        raise web.HTTPBadRequest(text="Sec-WebSocket-Key is 16 bytes in base64\n")
    digest = hashlib.sha1(key.encode() + WEBSOCKET_GUID, usedforsecurity=False).digest()
    headers = [("Upgrade", "websocket"), ("Sec-WebSocket-Accept", base64.b64encode(digest).decode())]
    if protocol:
        headers.append(("Sec-WebSocket-Protocol", protocol))
    return UpgradeResponse(headers)


def _is_websocket_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def unsupported_protocol(request: web.Request, supported: Sequence[str]) -> web.HTTPForbidden:
    """Return the response to a WebSocket handshake whose protocols are all unsupported."""
    requested = " ".join(_header_values(request, "Sec-WebSocket-Protocol"))
    return web.HTTPForbidden(
        text=f"requested protocol(s) are not supported: [{requested}]; supports [{' '.join(supported)}]\n"
    )


def _header_values(request: web.Request, header: str) -> list[str]:
    """Return the values of all lines of a header. Bytes that are not UTF-8 are replaced, so that they can be shown."""
    lines = [
        line.encode(errors="surrogateescape").decode(errors="replace") for line in request.headers.getall(header, [])
    ]
    return [value.strip() for line in lines for value in line.split(",") if value.strip()]


def _is_upgrade(request: web.Request) -> bool:
    return any(value.lower() == "upgrade" for value in _header_values(request, "Connection"))

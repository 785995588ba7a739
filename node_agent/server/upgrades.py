"""How a request asks for a conversation instead of an answer: by WebSocket or by SPDY, in which protocol."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from streams.takeover import Upgraded

ASKED = "X-Stream-Protocol-Version"
ACCEPTED = "X-Accepted-Stream-Protocol-Versions"
SPDY = "SPDY/3.1"


def wants_websocket(request: web.Request) -> bool:
    """Whether it is a handshake of RFC 6455."""
    return _upgrades(request) and request.headers.get("Upgrade", "").strip().lower() == "websocket"


def spdy_answer(request: web.Request, known: Sequence[str]) -> tuple[str, Upgraded]:
    """The first protocol in the client's order that is known, and the answer that begins it.

    Raises HTTPBadRequest for what is no upgrade to SPDY, HTTPForbidden, with the known ones, when none is known.
    """
    if not _upgrades(request):
        raise web.HTTPBadRequest(text="Upgrade request required\n")
    if SPDY.lower() not in request.headers.get("Upgrade", "").lower():
        found = request.headers.get("Upgrade", "")
        raise web.HTTPBadRequest(text=f"unable to upgrade: {SPDY} and websocket are accepted, found {found!r}\n")
    asked = [name.strip() for line in request.headers.getall(ASKED, []) for name in line.split(",") if name.strip()]
    if not asked:
        raise web.HTTPBadRequest(text=f"unable to upgrade: {ASKED} is required\n")
    chosen = next((name for name in asked if name in known), None)
    if chosen is None:
        words = f"client supports [{' '.join(asked)}], server accepts [{' '.join(known)}]"
        raise web.HTTPForbidden(
            text=f"unable to upgrade: unable to negotiate protocol: {words}\n",
            headers=[(ACCEPTED, name) for name in known],
        )
    return chosen, Upgraded([("Upgrade", SPDY), (ASKED, chosen)])


def unknown_protocol(request: web.Request, known: Sequence[str]) -> web.HTTPForbidden:
    """The refusal of a WebSocket whose protocols are all unknown."""
    asked = " ".join(
        name.strip() for line in request.headers.getall("Sec-WebSocket-Protocol", []) for name in line.split(",")
    )
    return web.HTTPForbidden(text=f"requested protocol(s) are not supported: [{asked}]; supports [{' '.join(known)}]\n")


def _upgrades(request: web.Request) -> bool:
    return any(
        token.strip().lower() == "upgrade"
        for line in request.headers.getall("Connection", [])
        for token in line.split(",")
    )

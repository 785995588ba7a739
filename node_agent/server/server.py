"""The HTTPS server on port 10250: routes, TLS, errors."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from node_agent.server.auth import RequestAttributes, RequestAuth, request_attributes
from reconcile.errors import Gone, NotReady, Refused
from reconcile.listener import Limits, Listener
from reconcile.loop import Loop, LoopTiming

log = logging.getLogger(__name__)

LIMITS = Limits(connections=2000)
RELISTEN_SECONDS = 3600.0

SYSTEM_LOGS = Path("/var/log")
"""Shown to those who may read the node's logs; links in it are not followed."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path with names in braces, and who answers there. Handlers may raise Gone (404), Refused and NotReady (500)."""

    path: str
    handler: Handler
    methods: tuple[str, ...] = ("GET",)


class Server:
    """`loop` begins to listen; the port may be taken for a while by an agent that ends."""

    def __init__(
        self, address: str, port: int, tls: ssl.SSLContext, callers: RequestAuth, routes: tuple[Route, ...]
    ) -> None:
        self.loop = Loop("server", self.listen, LoopTiming(resync=RELISTEN_SECONDS, backoff_max=2.0))
        self._address, self._port = address, port
        self._tls = tls
        self._callers = callers
        self._routes = routes
        self._listener: Listener | None = None

    async def stop(self) -> None:
        """Listen no more; what is answered ends soon."""
        if self._listener is not None:
            await self._listener.stop()

    @property
    def port(self) -> int:
        """Where it listens, once it does."""
        return self._port if self._listener is None else self._listener.port

    async def listen(self) -> None:
        """Once; a second time does nothing. Raises NotReady."""
        if self._listener is None:
            listener = Listener(self._app(), LIMITS)
            await listener.start(self._address, self._port, self._tls)
            self._listener = listener

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        for route in self._routes:
            for method in route.methods:
                app.router.add_route(method, route.path, route.handler)
        if SYSTEM_LOGS.is_dir():
            app.router.add_static("/logs", SYSTEM_LOGS, show_index=True)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Nobody gets further who is not known and allowed; what goes wrong behind is answered in plain text."""
        refusal = await self._refusal(request, request_attributes(request.method, request.path))
        if refusal is not None:
            return refusal
        try:
            return await handler(request)
        except Gone as error:
            return web.Response(status=404, text=f"{error}\n")
        except (Refused, NotReady) as error:
            return web.Response(status=500, text=f"{error}\n")

    async def _refusal(self, http: web.Request, needed: RequestAttributes) -> web.Response | None:
        certificate = http.transport.get_extra_info("peercert") if http.transport is not None else None
        try:
            caller = await self._callers.who(certificate, http.headers.get("Authorization", ""))
        except (Refused, NotReady) as error:
            log.debug("caller is not known", extra={"path": http.path, "error": error})
            return web.Response(status=401, text="Unauthorized")
        try:
            allowed = await self._callers.may(caller, needed)
        except NotReady as error:
            log.warning("rights are not known", extra={"path": http.path, "user": caller.name, "error": error})
            return web.Response(status=500, text=f"Authorization error ({needed.asked_by(caller)})")
        return None if allowed else web.Response(status=403, text=f"Forbidden ({needed.asked_by(caller)})")


def require_client_certificates(client_authority: bytes, tls: ssl.SSLContext) -> ssl.SSLContext:
    """Asks callers for a certificate; one that the authority (PEM) did not sign ends the connection. Raises Refused.

    Without an authority nobody is known by a certificate, only by a token.
    """
    if not client_authority:
        return tls
    try:
        tls.load_verify_locations(cadata=client_authority.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise Refused(f"the authority of those who may call is no certificate in PEM: {error}") from None
    tls.verify_mode = ssl.CERT_OPTIONAL
    return tls

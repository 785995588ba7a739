"""The HTTPS server on port 10250: routes, TLS, errors."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from node_agent.server.auth import RequestAttributes, RequestAuth, request_attributes
from reconcile.connection_limiter import Limits
from reconcile.errors import Gone, NotReady, Refused
from reconcile.health import count_rejected
from reconcile.listener import Listener
from reconcile.loop import Loop, LoopTiming

log = logging.getLogger(__name__)

LIMITS = Limits(authenticated=1_600, per_user=100, unauthenticated=200, per_source=20)

UNLIMITED_USERS = frozenset(("kube-apiserver-kubelet-client",))
"""Users who may have any number of connections, besides superusers: the API server opens those of all its clients."""

RELISTEN_SECONDS = 3600.0

SYSTEM_LOGS = Path("/var/log")
"""Directory that /logs serves. Symbolic links in it are not followed."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path with names in braces, and its handler. A handler may raise Gone (404), Refused and NotReady (500)."""

    path: str
    handler: Handler
    methods: tuple[str, ...] = ("GET",)


class Server:
    """The HTTPS server. `loop` starts it, and retries while the previous agent process still uses the port."""

    def __init__(
        self, address: str, port: int, tls: ssl.SSLContext, auth: RequestAuth, routes: tuple[Route, ...]
    ) -> None:
        self.loop = Loop("server", self.listen, LoopTiming(resync=RELISTEN_SECONDS, backoff_max=2.0))
        self._address = address
        self._port = port
        self._tls = tls
        self._auth = auth
        self._routes = routes
        self._listener: Listener | None = None

    async def stop(self) -> None:
        """Stop listening, and end requests (`Listener.stop`)."""
        if self._listener is not None:
            await self._listener.stop()

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return self._port if self._listener is None else self._listener.port

    async def listen(self) -> None:
        """Start listening; does nothing if the server listens already. Raises NotReady."""
        if self._listener is None:
            listener = Listener(self._app(), LIMITS, count_rejected)
            await listener.start(self._address, self._port, self._tls)
            self._listener = listener

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._handle])
        for route in self._routes:
            for method in route.methods:
                app.router.add_route(method, route.path, route.handler)
        if SYSTEM_LOGS.is_dir():
            app.router.add_static("/logs", SYSTEM_LOGS, show_index=True)
        return app

    @web.middleware
    async def _handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authenticate and authorize the request, call the handler, and answer its errors in plain text."""
        denial = await self._denial(request, request_attributes(request.method, request.path))
        if denial is not None:
            return denial
        try:
            return await handler(request)
        except Gone as error:
            return web.Response(status=404, text=f"{error}\n")
        except (Refused, NotReady) as error:
            return web.Response(status=500, text=f"{error}\n")

    async def _denial(self, request: web.Request, attributes: RequestAttributes) -> web.Response | None:
        """Return the response to a request that is not authenticated, not authorized or one too many, None to others.

        Only an authorized user has a place among the authenticated connections: every pod has a token.
        """
        certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
        try:
            caller = await self._auth.authenticate(certificate, request.headers.get("Authorization", ""))
        except (Refused, NotReady) as error:
            log.debug("authentication failed", extra={"path": request.path, "error": error})
            response = web.Response(status=401, text="Unauthorized")
            response.force_close()  # Each made-up token costs the API server a review, and the client a TLS handshake.
            return response
        description = attributes.describe(caller)
        try:
            allowed = await self._auth.authorize(caller, attributes)
        except NotReady as error:
            log.warning("authorization failed", extra={"path": request.path, "user": caller.name, "error": error})
            return web.Response(status=500, text=f"Authorization error ({description})")
        if not allowed:
            return web.Response(status=403, text=f"Forbidden ({description})")
        is_exempt = caller.is_superuser or caller.name in UNLIMITED_USERS
        if self._listener is None or self._listener.authenticate(request.transport, caller.name, is_exempt=is_exempt):
            return None
        return web.Response(status=429, text="too many requests, please try again later.", headers={"Retry-After": "1"})


def require_client_certificates(client_ca: bytes, tls: ssl.SSLContext) -> ssl.SSLContext:
    """Request a certificate from clients; the handshake fails if the CA (PEM) did not sign it. Raises Refused.

    A client without a certificate can authenticate with a token. Without a CA, all clients must.
    """
    if not client_ca:
        return tls
    try:
        tls.load_verify_locations(cadata=client_ca.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise Refused(f"the CA of client certificates is not a certificate in PEM: {error}") from None
    tls.verify_mode = ssl.CERT_OPTIONAL
    return tls

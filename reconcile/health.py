"""HTTP server for the operator of a daemon: /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, Counter, generate_latest

from reconcile.connection_limiter import Limits
from reconcile.listener import Listener

HEALTH_LIMITS = Limits(authenticated=0, unauthenticated=200, per_source=100)
"""Limits of servers without authentication, such as those of health checks."""

REJECTED_CONNECTIONS = Counter(
    "podlane_rejected_connections_total", "Connections rejected by the limits of listeners", ["reason"]
)


def count_rejected(reason: str) -> None:
    """Count a connection that a listener has rejected."""
    REJECTED_CONNECTIONS.labels(reason).inc()


class Health:
    """Health server. An empty reason means ready, or not hung.

    `not_ready_reason` returns why the daemon cannot work yet; `hung_reason` returns why it must be restarted.
    """

    def __init__(self, address: str, not_ready_reason: Callable[[], str], hung_reason: Callable[[], str] = str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._not_ready_reason = not_ready_reason
        self._hung_reason = hung_reason
        self._listener: Listener | None = None

    async def start(self) -> None:
        """Listen. Raises NotReady if the address is in use."""
        app = web.Application()
        for path in ("/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop"):
            app.router.add_get(path, self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._listener = Listener(app, HEALTH_LIMITS, count_rejected)
        await self._listener.start(self._host, self._port)

    async def stop(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            await self._listener.stop()

    async def _healthz(self, _: web.Request) -> web.Response:
        hung_reason = self._hung_reason()
        return web.Response(text=hung_reason or "ok", status=500 if hung_reason else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._not_ready_reason()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

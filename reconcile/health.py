"""HTTP server for the operator of a daemon: /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest


class Health:
    """Health server. An empty reason means ready, or not hung.

    `not_ready_reason` returns why the daemon cannot work yet; `hung_reason` returns why it must be restarted.
    """

    def __init__(self, address: str, not_ready_reason: Callable[[], str], hung_reason: Callable[[], str] = str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._not_ready_reason = not_ready_reason
        self._hung_reason = hung_reason
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen. Raises OSError if the address is in use."""
        app = web.Application()
        for path in ("/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop"):
            app.router.add_get(path, self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        hung_reason = self._hung_reason()
        return web.Response(text=hung_reason or "ok", status=500 if hung_reason else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._not_ready_reason()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

"""A daemon's plain HTTP door for its operator: /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest


class Health:
    """`unready` says why the daemon cannot do its work yet, `stuck` why it should be started again; empty: it can,
    it need not.
    """

    def __init__(self, address: str, unready: Callable[[], str], stuck: Callable[[], str] = str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._unready = unready
        self._stuck = stuck
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken."""
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
        stuck = self._stuck()
        return web.Response(text=stuck or "ok", status=500 if stuck else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._unready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

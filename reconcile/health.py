"""HTTP server for the operator of a daemon: /healthz, /readyz, one path for each of their checks, and /metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, Counter, generate_latest

from reconcile.connection_limiter import Limits
from reconcile.health_checks import LOG, PING, HealthCheck, Report, report, report_of
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
    """Health server. `ready` checks whether the daemon can work, `alive` whether it must be restarted.

    /readyz without parameters answers with the first problem as one line.
    """

    def __init__(
        self, address: str, ready: Sequence[HealthCheck], alive: Sequence[HealthCheck] = (HealthCheck("syncloop"),)
    ) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._ready = (PING, *ready)
        self._alive = (PING, LOG, *alive)
        self._listener: Listener | None = None

    async def start(self) -> None:
        """Listen. Raises NotReady if the address is in use."""
        app = web.Application()
        for path, checks, failed in (("/healthz", self._alive, 500), ("/readyz", self._ready, 503)):
            app.router.add_get(path, _handler_of_all(path, checks, failed))
            for check in checks:
                app.router.add_get(f"{path}/{check.name}", _handler_of(check, failed))
        app.router.add_get("/metrics", self._metrics)
        self._listener = Listener(app, HEALTH_LIMITS, count_rejected)
        await self._listener.start(self._host, self._port)

    async def stop(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            await self._listener.stop()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})


Handler = Callable[[web.Request], Awaitable[web.Response]]


def _handler_of_all(path: str, checks: Sequence[HealthCheck], failed: int) -> Handler:
    async def handle(http: web.Request) -> web.Response:
        verbose, exclude = "verbose" in http.query, http.query.getall("exclude", [])
        made = report(path[1:], checks, verbose=verbose, exclude=exclude, with_reasons=True)
        if path == "/readyz" and not verbose and not exclude:
            return web.Response(text=f"{made.problems[0] if made.problems else 'ok'}\n", status=_status(made, failed))
        return web.Response(text=made.text, status=_status(made, failed))

    return handle


def _handler_of(check: HealthCheck, failed: int) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        made = report_of(check)
        return web.Response(text=made.text, status=_status(made, failed))

    return handle


def _status(made: Report, failed: int) -> int:
    return failed if made.problems else 200

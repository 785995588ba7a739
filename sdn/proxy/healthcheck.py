"""Serves healthCheckNodePort: reports to external load balancers whether this node has endpoints of a service."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from ipaddress import IPv4Address

import msgspec
from aiohttp import web

from sdn.proxy.service_ports import Key, ServiceState

log = logging.getLogger(__name__)

CLOSING_SECONDS = 1.0


class _Named(msgspec.Struct, frozen=True):
    namespace: str
    name: str


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    service: _Named
    local_endpoints: int
    service_proxy_healthy: bool = True


class ServiceHealthServer:
    """One HTTP server with a port for each service that has one, at the node's own address.

    Whatever path is asked for, 200 says that callers from outside find endpoints here, 503 that they do not.
    """

    def __init__(self) -> None:
        self._services: dict[int, tuple[Key, int]] = {}
        self._sites: dict[int, web.TCPSite] = {}
        self._failed: set[int] = set()
        self._runner: web.AppRunner | None = None

    async def show(self, address: IPv4Address, checked: Mapping[Key, ServiceState]) -> None:
        """Answer for exactly these. A port that somebody else has is logged, and tried again the next time."""
        self._services = {served.health_port: (key, served.here) for key, served in checked.items()}
        for port in self._sites.keys() - self._services.keys():
            await self._sites.pop(port).stop()
        self._failed &= self._services.keys()
        for port in self._services.keys() - self._sites.keys():
            await self._listen(address, port)

    async def _listen(self, address: IPv4Address, port: int) -> None:
        if self._runner is None:
            app = web.Application()
            app.router.add_get("/{path:.*}", self._answer)
            self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSING_SECONDS)
            await self._runner.setup()
        site = web.TCPSite(self._runner, str(address), port)
        try:
            await site.start()
        except OSError as error:
            await site.stop()
            if port not in self._failed:
                log.warning("no health checks", extra={"port": port, "why": error.strerror})
            self._failed.add(port)
        else:
            self._sites[port] = site
            self._failed.discard(port)

    async def _answer(self, request: web.Request) -> web.Response:
        at = request.transport.get_extra_info("sockname")[1] if request.transport is not None else 0
        if at not in self._services:
            raise web.HTTPNotFound
        key, count = self._services[at]
        return web.Response(
            status=200 if count else 503,
            body=msgspec.json.encode(_Answer(_Named(*key), count)),
            content_type="application/json",
            headers={"X-Content-Type-Options": "nosniff", "X-Load-Balancing-Endpoint-Weight": str(count)},
        )

    async def close(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._sites.clear()
        self._runner = None

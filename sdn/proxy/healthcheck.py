"""Serves healthCheckNodePort: reports to external load balancers whether this node has endpoints of a service."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from ipaddress import IPv4Address

import msgspec
from aiohttp import web

from reconcile.errors import NotReady
from reconcile.health import HEALTH_LIMITS, count_rejected
from reconcile.listener import Listener
from sdn.proxy.service_ports import Key, ServiceState

log = logging.getLogger(__name__)


class _ServiceName(msgspec.Struct, frozen=True):
    namespace: str
    name: str


class _HealthResponse(msgspec.Struct, frozen=True, rename="camel"):
    service: _ServiceName
    local_endpoints: int
    service_proxy_healthy: bool = True


class ServiceHealthServer:
    """HTTP server at the node's address, with a port for each service that has a healthCheckNodePort.

    The response to any path is 200 if external clients find endpoints on this node, and 503 if they do not.
    """

    def __init__(self) -> None:
        self._services: dict[int, tuple[Key, int]] = {}
        self._ports: set[int] = set()
        self._failed: set[int] = set()
        self._listener: Listener | None = None

    async def sync(self, address: IPv4Address, services: Mapping[Key, ServiceState]) -> None:
        """Serve exactly these services. A port that is in use is logged once, and tried again at the next sync."""
        self._services = {state.health_port: (key, state.local_endpoint_count) for key, state in services.items()}
        for port in self._ports - self._services.keys():
            await self._stop(port)
        self._failed &= self._services.keys()
        for port in self._services.keys() - self._ports:
            await self._listen(address, port)

    async def _listen(self, address: IPv4Address, port: int) -> None:
        if self._listener is None:
            app = web.Application()
            app.router.add_get("/{path:.*}", self._respond)
            self._listener = Listener(app, HEALTH_LIMITS, count_rejected)
        try:
            await self._listener.start(str(address), port)
        except NotReady as error:
            if port not in self._failed:
                log.warning("health check port not served", extra={"port": port, "error": error})
            self._failed.add(port)
        else:
            self._ports.add(port)
            self._failed.discard(port)

    async def _stop(self, port: int) -> None:
        if self._listener is not None:
            await self._listener.stop_port(port)
        self._ports.discard(port)

    async def _respond(self, request: web.Request) -> web.Response:
        port = request.transport.get_extra_info("sockname")[1] if request.transport is not None else 0
        if port not in self._services:
            raise web.HTTPNotFound
        key, count = self._services[port]
        return web.Response(
            status=200 if count else 503,
            body=msgspec.json.encode(_HealthResponse(_ServiceName(*key), count)),
            content_type="application/json",
            headers={"X-Content-Type-Options": "nosniff", "X-Load-Balancing-Endpoint-Weight": str(count)},
        )

    async def close(self) -> None:
        """Stop listening at all ports."""
        if self._listener is not None:
            await self._listener.stop()
        self._ports.clear()
        self._listener = None

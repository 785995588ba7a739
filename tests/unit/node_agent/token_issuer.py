"""An API server that issues tokens of service accounts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from aiohttp import web

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.meta import times
from node_agent.volumes.tokens import TokenCache
from tests.unit.node_agent.examples import NOW

HOUR = timedelta(hours=1)


PATH = "/api/v1/namespaces/red/serviceaccounts/{account}/token"


class TokenIssuer:
    """Issues a new token for each request, valid for an hour from `now`. With `refuses` it returns an error."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.now = NOW
        self.steady_now = NOW
        self.refuses = False

    @asynccontextmanager
    async def tokens(self) -> AsyncIterator[TokenCache]:
        app = web.Application()
        app.router.add_post(PATH, self._issue)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with Client(Kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}", b"")) as client:
            yield TokenCache(client, lambda: self.now, lambda: self.steady_now)
        await runner.cleanup()

    async def _issue(self, request: web.Request) -> web.Response:
        if self.refuses:
            return web.json_response({"kind": "Status", "code": 403, "message": "not for you"}, status=403)
        self.requests.append((request.match_info["account"], await request.json()))
        expires = times.format_time(self.now + HOUR)
        status = {"token": f"token-{len(self.requests)}", "expirationTimestamp": expires}
        body = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {"name": "default"}}
        return web.Response(status=201, text=json.dumps(body | {"status": status}), content_type="application/json")

"""A running client whose kubeconfig is rewritten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.core.node import Namespace


class Asked:
    """A server that records the token of each request. One response waits for `go`."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.waiting, self.go = asyncio.Event(), asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization", ""))
        if "watch" in request.query:
            stream = web.StreamResponse()
            await stream.prepare(request)
            self.waiting.set()
            await self.go.wait()
            await stream.write(b'{"type":"ADDED","object":{"metadata":{"name":"late"}}}\n')
            return stream
        return web.json_response({"metadata": {"name": "x"}})


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Asked, str]]:
    requested, app = Asked(), web.Application()
    app.router.add_route("*", "/{path:.*}", requested.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield requested, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        requested.go.set()
        await runner.cleanup()


def write(path: Path, server: str, token: str) -> None:
    fresh = path.with_name("fresh")
    fresh.write_text(Kubeconfig(server, b"", token=token).text("a", "b"))
    fresh.replace(path)


async def test_renewed_identity_is_used_by_new_requests_only(tmp_path: Path) -> None:
    async with served() as (requested, server):
        write(tmp_path / "config", server, "one")
        async with Client(Kubeconfig.load(tmp_path / "config")) as client:
            await client.get(Namespace, "x")
            watching = asyncio.ensure_future(anext(client.watch(Namespace, "1")))
            await requested.waiting.wait()
            write(tmp_path / "config", server, "two")
            await client.get(Namespace, "x")
            requested.go.set()
            assert (await watching).object.metadata.name == "late"
        assert requested.tokens == ["Bearer one", "Bearer one", "Bearer two"]


async def test_missing_or_partial_kubeconfig_keeps_the_previous_identity(tmp_path: Path) -> None:
    async with served() as (requested, server):
        path = tmp_path / "config"
        write(path, server, "one")
        async with Client(Kubeconfig.load(path)) as client:
            path.unlink()
            await client.get(Namespace, "x")
            path.write_text("apiVersion: v1\nclusters:")
            await client.get(Namespace, "x")
            write(path, server, "two")
            await client.get(Namespace, "x")
        assert requested.tokens == ["Bearer one", "Bearer one", "Bearer two"]


async def test_client_without_a_kubeconfig_file_keeps_its_identity() -> None:
    async with served() as (requested, server):
        async with Client(Kubeconfig(server, b"", token="given")) as client:
            await client.get(Namespace, "x")
        assert requested.tokens == ["Bearer given"]

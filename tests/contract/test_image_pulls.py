"""What becomes of the pull of an image when its registry is slow, silent or in trouble; the registry is our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from lab import images
from node_agent.containers import LogLimits
from node_agent.drivers.docker import Docker
from node_agent.drivers.docker_pull import RegistryUnavailable
from node_agent.pull_limits import PullLimits
from reconcile.errors import NotReady
from tests.contract.test_docker_driver import DEADLINE_SECONDS, Dockerd, dockerd
from tests.contract.test_image_digests import SCHEMA, digest, packed

__all__ = ["dockerd"]


@dataclass(slots=True)
class Desk:
    """A registry that answers as `open` says, and counts who waits at it."""

    blobs: dict[str, bytes]
    manifest: bytes
    address: str = ""
    status: int = 200
    open: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: set[str] = field(default_factory=set)
    most: int = 0
    left: int = 0

    async def head(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.waiting.add(name)
        self.most = max(self.most, len(self.waiting))
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.waiting.discard(name)
        headers = {"Docker-Content-Digest": digest(self.manifest)}
        return web.Response(body=self.manifest, content_type=SCHEMA, headers=headers, status=self.status)

    async def blob(self, request: web.Request) -> web.Response:
        return web.Response(body=self.blobs[request.match_info["digest"]])


async def ping(_: web.Request) -> web.Response:
    return web.json_response({})


@asynccontextmanager
async def serving(dockerd: Dockerd) -> AsyncIterator[Desk]:
    desk = Desk(*packed(dockerd, images.TOOLBOX))
    app = web.Application()
    app.router.add_get("/v2/", ping)
    app.router.add_get("/v2/{name:.+}/manifests/{tag}", desk.head)
    app.router.add_get("/v2/{name:.+}/blobs/{digest}", desk.blob)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    desk.address = f"{host}:{port}"
    try:
        yield desk
    finally:
        desk.open.set()
        await runner.cleanup()


def driver(dockerd: Dockerd, limits: PullLimits) -> Docker:
    return Docker(str(dockerd.socket), LogLimits(20_000, 2), limits)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_pull_without_progress_is_given_up_and_docker_lets_go_of_it(dockerd: Dockerd) -> None:
    async with serving(dockerd) as desk:
        real = driver(dockerd, PullLimits(patience=0.5))
        with pytest.raises(NotReady, match=r"Cancel pulling image '127.*:1': no progress for 0\.5s"):
            await real.pull(f"{desk.address}/slow:1")
        await until(lambda: desk.left)
        desk.open.set()
        pulled = await real.pull(f"{desk.address}/slow:1")
        assert pulled.size > 0
        assert pulled.seconds > 0
        real.close()


@pytest.mark.parametrize("at_once", [1, 2])
async def test_so_many_pulls_run_at_once(dockerd: Dockerd, at_once: int) -> None:
    async with serving(dockerd) as desk:
        real = driver(dockerd, PullLimits(at_once))
        pulls = [asyncio.create_task(real.pull(f"{desk.address}/at-once-{number}:1")) for number in range(3)]
        await until(lambda: len(desk.waiting) == at_once)
        desk.open.set()
        await asyncio.gather(*pulls)
        assert desk.most == at_once
        real.close()


async def test_a_registry_in_trouble_is_told_from_one_that_refuses(dockerd: Dockerd) -> None:
    async with serving(dockerd) as desk:
        real = driver(dockerd, PullLimits())
        desk.open.set()
        desk.status = 503
        with pytest.raises(RegistryUnavailable, match="503"):
            await real.pull(f"{desk.address}/trouble:1")
        real.close()

"""Image pulls from a local registry that is slow, silent or failing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from itertools import count

import psutil
import pytest
from aiohttp import web

from node_agent.docker.client import DockerClient, LogLimits
from node_agent.docker.pull import RegistryUnavailable
from node_agent.images.pull_backoff import DEFAULT_LIMITS, PullLimits
from reconcile.errors import NotReady, Refused
from tests.testbed.docker.containers import add_image
from tests.testbed.docker.daemon import DEADLINE_SECONDS, Dockerd
from tests.testbed.docker.registry import SCHEMA, digest, registry_blobs
from tests.testbed.ports import free_port

NUMBER = count(1)


@dataclass(slots=True)
class Desk:
    """A registry that records user names. It serves manifests and blobs when the test permits it."""

    blobs: dict[str, bytes]
    manifest: bytes
    address: str = ""
    status: int = 200
    manifests: asyncio.Event = field(default_factory=asyncio.Event)
    layers: asyncio.Event = field(default_factory=asyncio.Event)
    asking: set[str] = field(default_factory=set)
    most: int = 0

    async def head(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.asking.add(name)
        self.most = max(self.most, len(self.asking))
        await self.manifests.wait()
        self.asking.discard(name)
        headers = {"Docker-Content-Digest": digest(self.manifest)}
        return web.Response(body=self.manifest, content_type=SCHEMA, headers=headers, status=self.status)

    async def blob(self, request: web.Request) -> web.Response:
        await self.layers.wait()
        return web.Response(body=self.blobs[request.match_info["digest"]])


async def ping(_: web.Request) -> web.Response:
    return web.json_response({})


async def taken_away(dockerd: Dockerd, name: str) -> tuple[dict[str, bytes], bytes]:
    """Remove an image from Docker. Return its blobs and its manifest."""
    real = driver(dockerd, DEFAULT_LIMITS)
    await add_image(real, name)
    parts = registry_blobs(dockerd, name)
    [image] = [stored_image for stored_image in await real.list_images() if name in stored_image.names]
    await real.remove_image(image)
    real.close()
    return parts


@asynccontextmanager
async def serving(dockerd: Dockerd) -> AsyncIterator[Desk]:
    desk = Desk(*await taken_away(dockerd, f"podlane/carried-{next(NUMBER)}:1"))
    app = web.Application()
    app.router.add_get("/v2/", ping)
    app.router.add_get("/v2/{name:.+}/manifests/{tag}", desk.head)
    app.router.add_get("/v2/{name:.+}/blobs/{digest}", desk.blob)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    desk.address = f"{host}:{port}"
    try:
        yield desk
    finally:
        desk.manifests.set()
        desk.layers.set()
        await runner.cleanup()


def driver(dockerd: Dockerd, limits: PullLimits, local_registries: tuple[str, ...] = ("127.0.0.1",)) -> DockerClient:
    here = replace(limits, local_registries=local_registries)
    return DockerClient(str(dockerd.socket), LogLimits(20_000, 2), pull_limits=here)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds():
            await asyncio.sleep(0.01)


async def test_image_pull_without_progress_is_cancelled_and_the_next_starts(dockerd: Dockerd) -> None:
    async with serving(dockerd) as desk:
        real = driver(dockerd, PullLimits(progress_seconds=0.5))
        desk.manifests.set()
        with pytest.raises(NotReady, match=r"Cancel pulling image '127.*:1': no progress for 0\.5s"):
            await real.pull(f"{desk.address}/slow:1")
        desk.layers.set()
        pulled = await real.pull(f"{desk.address}/slow:1")
        assert await real.image_id(f"{desk.address}/slow:1")
        assert pulled.seconds > 0
        real.close()


@pytest.mark.parametrize("at_once", [1, 2])
async def test_parallel_image_pulls_are_limited(dockerd: Dockerd, at_once: int) -> None:
    async with serving(dockerd) as desk:
        real = driver(dockerd, PullLimits(at_once))
        pulls = [asyncio.create_task(real.pull(f"{desk.address}/at-once-{number}:1")) for number in range(3)]
        await until(lambda: len(desk.asking) == at_once)
        desk.manifests.set()
        desk.layers.set()
        await asyncio.gather(*pulls)
        assert desk.most == at_once
        real.close()


async def test_failing_registry_is_distinguished_from_a_rejecting_one(dockerd: Dockerd) -> None:
    async with serving(dockerd) as desk:
        real = driver(dockerd, PullLimits())
        desk.manifests.set()
        desk.status = 503
        with pytest.raises(RegistryUnavailable, match="503"):
            await real.pull(f"{desk.address}/trouble:1")
        real.close()


async def test_unreachable_registry_is_named_with_the_way_to_bring_an_image_by_hand(dockerd: Dockerd) -> None:
    real = driver(dockerd, PullLimits())
    registry = f"127.0.0.1:{free_port()}"
    with pytest.raises(NotReady) as raised:
        await real.pull(f"{registry}/team/tool:1")
    assert str(raised.value).startswith(f"registry {registry} does not answer (Get ")
    assert "connection refused" in str(raised.value)
    assert str(raised.value).endswith(
        "put the image on the nodes by `podlane image load`, in a lab by `podlane lab load`"
    )
    real.close()


async def test_registry_at_an_address_of_the_node_is_asked_only_if_the_operator_accepts_it(dockerd: Dockerd) -> None:
    async with serving(dockerd) as desk:
        desk.manifests.set()
        desk.layers.set()
        port = desk.address.rpartition(":")[2]
        real = driver(dockerd, PullLimits(), local_registries=("127.0.0.1:9", "localhost"))
        for host in (
            "127.0.0.1",
            "127.0.0.2",
            "127.1",
            "2130706433",
            "0.0.0.0",
            "LOCALHOST",
            "169.254.169.254",
            "[::1]",
        ):
            with pytest.raises(Refused, match=r"only registries of the setting localRegistries of the node"):
                await real.pull(f"{host}:{port}/web:1")
        assert desk.most == 0
        await real.pull(f"localhost:{port}/web:1")
        assert desk.most == 1
        real.close()


async def test_registry_at_another_address_of_the_node_is_refused(dockerd: Dockerd) -> None:
    """The host name of a machine, and every address of its links, are the node as well."""
    own = next(
        row.address
        for rows in psutil.net_if_addrs().values()
        for row in rows
        if row.family == socket.AF_INET and not IPv4Address(row.address).is_loopback
    )
    real = driver(dockerd, PullLimits(), local_registries=("192.0.2.1",))
    with pytest.raises(Refused, match=f"registry {own}:9 is at {own}, an address of the node itself"):
        await real.pull(f"{own}:9/web:1")
    accepting = driver(dockerd, PullLimits(), local_registries=(f"{own}:9",))
    with pytest.raises(NotReady, match=rf"^registry {own}:9 does not answer "):
        await accepting.pull(f"{own}:9/web:1")
    real.close()
    accepting.close()


async def test_cancelled_image_pull_frees_its_slot(dockerd: Dockerd) -> None:
    async with serving(dockerd) as desk:
        real = driver(dockerd, PullLimits())
        unwanted = asyncio.create_task(real.pull(f"{desk.address}/unwanted:1"))
        await until(lambda: "unwanted" in desk.asking)
        unwanted.cancel()
        wanted = asyncio.create_task(real.pull(f"{desk.address}/wanted:1"))
        await until(lambda: "wanted" in desk.asking)
        desk.manifests.set()
        desk.layers.set()
        await wanted
        assert unwanted.cancelled()
        real.close()

"""Images from a local registry are identified by their digest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from lab import images
from node_agent.docker.client import DockerClient, LogLimits
from node_agent.images.pull_backoff import PullLimits
from tests.testbed.docker.containers import container, running_sandbox
from tests.testbed.docker.daemon import Dockerd
from tests.testbed.docker.registry import SCHEMA, digest, registry_blobs


@asynccontextmanager
async def registry(blobs: dict[str, bytes], manifest: bytes) -> AsyncIterator[str]:
    """Serves one image under any name. Yields its address."""

    async def ping(_: web.Request) -> web.Response:
        return web.json_response({})

    async def head(_: web.Request) -> web.Response:
        return web.Response(body=manifest, content_type=SCHEMA, headers={"Docker-Content-Digest": digest(manifest)})

    async def blob(request: web.Request) -> web.Response:
        return web.Response(body=blobs[request.match_info["digest"]])

    app = web.Application()
    app.router.add_get("/v2/", ping)
    app.router.add_get("/v2/{name:.+}/manifests/{tag}", head)
    app.router.add_get("/v2/{name:.+}/blobs/{digest}", blob)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


async def test_container_image_id_is_a_pullable_digest(dockerd: Dockerd) -> None:
    blobs, manifest = registry_blobs(dockerd, images.TOOLBOX)
    driver = DockerClient(
        str(dockerd.socket), LogLimits(20_000, 2), pull_limits=PullLimits(local_registries=("127.0.0.1",))
    )
    network = await running_sandbox(driver, "uid-digest")
    spec = container("uid-digest", await driver.image_id(images.TOOLBOX), network, ("tail", "-f", "/dev/null"))
    await driver.create(spec)
    (_, local) = sorted(
        await driver.list_pod_containers("uid-digest"), key=lambda runtime_container: not runtime_container.is_sandbox
    )
    assert local.digest == "", "an image that was made here is in no registry"
    async with registry(blobs, manifest) as address:
        await driver.pull(f"{address}/team/toolbox:1")
    (_, pulled) = sorted(
        await driver.list_pod_containers("uid-digest"), key=lambda runtime_container: not runtime_container.is_sandbox
    )
    assert pulled.image_id == local.image_id
    assert pulled.digest == f"{address}/team/toolbox@{digest(manifest)}"
    driver.close()

"""Images that come from a registry, here one of our own on loopback, are known by their digest."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from lab import images
from node_agent.docker.client import DockerClient, LogLimits
from tests.contract.test_docker_driver import Dockerd, container, dockerd, running_sandbox

__all__ = ["dockerd"]

SCHEMA = "application/vnd.docker.distribution.manifest.v2+json"
TYPES = {
    "config": "application/vnd.docker.container.image.v1+json",
    "layer": "application/vnd.docker.image.rootfs.diff.tar",
}


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def packed(dockerd: Dockerd, image: str) -> tuple[dict[str, bytes], bytes]:
    """The blobs of an image by digest, and its manifest, as a registry serves them."""
    client = dockerd.client()
    with tarfile.open(fileobj=io.BytesIO(b"".join(client.get_image(image)))) as archive:

        def content(name: str) -> bytes:
            member = archive.extractfile(name)
            assert member is not None
            return member.read()

        (row,) = json.loads(content("manifest.json"))
        parts = [("config", content(row["Config"])), *(("layer", content(layer)) for layer in row["Layers"])]
    client.close()
    config, *layers = ({"mediaType": TYPES[kind], "size": len(data), "digest": digest(data)} for kind, data in parts)
    manifest = json.dumps({"schemaVersion": 2, "mediaType": SCHEMA, "config": config, "layers": layers}).encode()
    return {digest(data): data for _, data in parts}, manifest


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


async def test_the_image_of_a_container_is_named_as_it_can_be_pulled(dockerd: Dockerd) -> None:
    blobs, manifest = packed(dockerd, images.TOOLBOX)
    driver = DockerClient(str(dockerd.socket), LogLimits(20_000, 2))
    network = await running_sandbox(driver, "uid-digest")
    spec = container("uid-digest", await driver.image_id(images.TOOLBOX), network, ("tail", "-f", "/dev/null"))
    await driver.create(spec)
    (_, local) = sorted(await driver.pod_containers("uid-digest"), key=lambda one: not one.is_sandbox)
    assert local.digest == "", "an image that was made here is in no registry"
    async with registry(blobs, manifest) as address:
        await driver.pull(f"{address}/team/toolbox:1")
    (_, pulled) = sorted(await driver.pod_containers("uid-digest"), key=lambda one: not one.is_sandbox)
    assert pulled.image_id == local.image_id
    assert pulled.digest == f"{address}/team/toolbox@{digest(manifest)}"
    driver.close()

"""/images: the images of this node, and loading of archives. `podlane image load` uses it."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from node_agent.docker.client import DockerClient
from node_agent.server.server import Route

MAX_PARALLEL_LOADS = 2
"""Archives that are unpacked at once. Further ones wait: the disk is what limits them."""

log = logging.getLogger(__name__)


class ImageHandler:
    """Handlers for images. Access to `nodes/proxy` is required: an image that is loaded runs wherever its name does."""

    def __init__(self, docker: DockerClient) -> None:
        self._docker = docker
        self._slots = asyncio.Semaphore(MAX_PARALLEL_LOADS)

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the handlers."""
        return (
            Route("/images", self._get_image),
            Route("/images", self._load, methods=("POST",)),
        )

    async def _get_image(self, request: web.Request) -> web.Response:
        """Answer with the ID of the image of the query's `name`, 404 if the node does not have it."""
        name = request.query.get("name", "")
        if not name:
            return web.Response(status=400, text="the query has no name; name=IMAGE is accepted\n")
        return web.json_response({"id": await self._docker.image_id(name)})

    async def _load(self, request: web.Request) -> web.Response:
        """Load the archive in the body into Docker, and answer with Docker's report."""
        async with self._slots:
            report = await self._docker.load(request.content.iter_any())
        log.info("images loaded", extra={"report": report})
        return web.Response(text=report)

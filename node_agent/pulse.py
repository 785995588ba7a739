"""Whether Docker lives: it is asked one thing at a time, and nobody waits for it longer than is good."""

from __future__ import annotations

import asyncio

from api.objects import ContainerImage
from node_agent.drivers.docker import Docker
from reconcile.errors import NotReady

SECONDS = 30.0
"""Without an answer for so long a container runtime is taken for dead, as kubelet does."""


class Pulse:
    """A question that hangs holds one thread, however often somebody looks."""

    def __init__(self, docker: Docker, seconds: float = SECONDS) -> None:
        self._docker = docker
        self._seconds = seconds
        self._asked: asyncio.Task[tuple[str, tuple[ContainerImage, ...]]] | None = None
        self._until = 0.0

    async def take(self) -> tuple[str, tuple[ContainerImage, ...]]:
        """Docker's version and its images. Raises NotReady when it is away, or has not answered for so long."""
        now = asyncio.get_running_loop().time()
        if self._asked is None:
            self._asked = asyncio.create_task(self._ask())
            self._until = now + self._seconds
        await asyncio.wait((self._asked,), timeout=max(self._until - now, 0.0))
        if not self._asked.done():
            raise NotReady(f"Docker has not answered for {self._seconds:.0f} s")
        asked, self._asked = self._asked, None
        return asked.result()

    async def _ask(self) -> tuple[str, tuple[ContainerImage, ...]]:
        return await self._docker.version(), await self._docker.image_sizes()

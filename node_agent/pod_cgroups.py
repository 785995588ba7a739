"""The control groups of this node's pods, where the machine allows them."""

from __future__ import annotations

import asyncio
import logging

from api.objects import Pod
from node_agent import cgroups
from node_agent.drivers.cgroups import Cgroups
from node_agent.drivers.docker import Docker
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

CGROUPFS = "cgroupfs"


class PodCgroups:
    """`root` is where our groups begin. Whether they are used is found out with the first pod: once and for all."""

    def __init__(self, docker: Docker, driver: Cgroups, root: str) -> None:
        self._docker = docker
        self._driver = driver
        self._root = root
        self._used: bool | None = None

    async def path(self, pod: Pod) -> str:
        """The pod's group as Docker is told it; empty where containers are as Docker has them. Raises NotReady."""
        if self._used is None:
            self._used = await self._probe()
        return cgroups.path(pod, self._root) if self._used else ""

    async def make(self, pod: Pod) -> str:
        """The same, and it is there with its values when this returns."""
        path = await self.path(pod)
        if path:
            await asyncio.to_thread(self._driver.make, path, tuple(cgroups.values(pod, self._driver.version)))
        return path

    async def remove(self, uid: str) -> None:
        """Nothing is left of the pod's group, whatever class it was of. Raises NotReady."""
        for path in cgroups.paths(uid, self._root):
            await asyncio.to_thread(self._driver.remove, path)

    async def _probe(self) -> bool:
        """Whether Docker puts containers where it is told, and groups can be made."""
        found = await self._docker.cgroup_driver()
        why = "" if found == CGROUPFS else f"Docker's cgroup driver is {found}; {CGROUPFS} is needed"
        if not why:
            try:
                await asyncio.to_thread(self._driver.make, f"{self._root.rstrip('/')}/{cgroups.TOP}", ())
            except NotReady as error:
                why = str(error)
        if why:
            log.warning("pods have no control groups of their own", extra={"reason": why})
        return not why

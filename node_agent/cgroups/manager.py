"""Creates and removes pod cgroups; keeps the QoS cgroups up to date (kubelet: cm)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from api.core.pod import Pod
from node_agent.cgroups import hierarchy
from node_agent.cgroups.cgroupfs import CgroupfsDriver
from node_agent.cgroups.hierarchy import CgroupLimits, CgroupPath, PodsCapacity
from node_agent.cgroups.systemd import SystemdDriver
from node_agent.docker.client import DockerClient
from reconcile.errors import NotReady, Refused
from reconcile.loop import Loop, LoopTiming

log = logging.getLogger(__name__)

RESYNC_SECONDS, GATHER_SECONDS = 60.0, 0.1
CGROUPFS, SYSTEMD, NONE = "cgroupfs", "systemd", "none"
"""What Docker may answer; `none` where it cannot limit anything (docs.docker.com: rootless)."""


class CgroupDriver(Protocol):
    """Has groups made and removed, in the way in which Docker does it."""

    def name(self, group: CgroupPath) -> str: ...  # noqa: D102
    def make(self, group: CgroupPath, limits: CgroupLimits) -> str: ...  # noqa: D102
    def remove(self, group: CgroupPath) -> None: ...  # noqa: D102
    def below(self, group: CgroupPath) -> set[str]: ...  # noqa: D102


class CgroupManager:
    """`root` is where our groups begin, `pods` are those that are here.

    Which way Docker has is asked with the first pod, and again when Docker has been away.
    """

    def __init__(
        self,
        docker: DockerClient,
        files: CgroupfsDriver,
        slices: SystemdDriver,
        root: str,
        room: PodsCapacity,
        pods: Callable[[], Iterable[Pod]],
    ) -> None:
        self._docker = docker
        self._files = files
        self._slices = slices
        self._root = root
        self._room = room
        self._pods = pods
        self._asked = False
        self._keeper: CgroupDriver | None = None
        self._asking = asyncio.Lock()
        self.loop = Loop("control groups", self._share, LoopTiming(resync=RESYNC_SECONDS, debounce=GATHER_SECONDS))

    async def path(self, pod: Pod) -> str:
        """The pod's group as Docker is told it; empty where containers are as Docker has them.

        Raises NotReady, Refused.
        """
        keeper = await self._used()
        return "" if keeper is None else keeper.name(hierarchy.pod_cgroup(pod, self._root))

    async def make(self, pod: Pod) -> str:
        """The same, and it is there with its limits when this returns."""
        keeper = await self._used()
        if keeper is None:
            return ""
        made = await asyncio.to_thread(
            keeper.make, hierarchy.pod_cgroup(pod, self._root), hierarchy.pod_limits(pod, self._room)
        )
        self.loop.wake()
        return made

    async def remove(self, uid: str) -> None:
        """Nothing is left of the pod's group, whatever its class was and whoever made it. Raises NotReady, Refused."""
        for keeper in (self._files, self._slices):
            for group in hierarchy.candidate_cgroups(uid, self._root):
                await asyncio.to_thread(keeper.remove, group)
        self.loop.wake()

    async def known(self) -> set[str]:
        """The UIDs of pods that have a group."""
        return await asyncio.to_thread(self._known)

    def docker_came(self) -> None:
        """Docker may be another one than before."""
        self._asked = False
        self.loop.wake()

    async def _share(self) -> None:
        """What all pods have together, and each class of them, is as the pods that are here need it."""
        keeper = await self._used()
        if keeper is not None:
            await self._make_shared(keeper)

    async def _make_shared(self, keeper: CgroupDriver) -> None:
        for group, limits in hierarchy.qos_cgroups(self._pods(), self._root, self._room):
            await asyncio.to_thread(keeper.make, group, limits)

    def _known(self) -> set[str]:
        names = {
            name
            for keeper in (self._files, self._slices)
            for group in hierarchy.parent_cgroups(self._root)
            for name in keeper.below(group)
        }
        return {name.removeprefix(hierarchy.POD) for name in names if name.startswith(hierarchy.POD)}

    async def _used(self) -> CgroupDriver | None:
        """Who makes groups, once those of all pods and of the classes are there."""
        async with self._asking:
            if not self._asked:
                self._keeper = await self._choose(await self._docker.cgroup_driver())
                self._asked = True
        return self._keeper

    async def _choose(self, driver: str) -> CgroupDriver | None:
        if driver == SYSTEMD:
            await self._make_shared(self._slices)
            return self._slices
        why = f"Docker's cgroup driver is {driver}"
        if driver == CGROUPFS:
            try:
                await self._make_shared(self._files)
            except NotReady as error:
                why = str(error)
            else:
                return self._files
        elif driver != NONE:
            raise Refused(f"{why}; {CGROUPFS}, {SYSTEMD} and {NONE} are accepted")
        log.warning("pods have no control groups of their own", extra={"reason": why})
        return None

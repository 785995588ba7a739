"""The control groups of this node's pods, where the machine allows them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from api.objects import Pod
from node_agent import cgroups
from node_agent.cgroups import Group, Limits, Room
from node_agent.drivers.cgroups import Cgroups
from node_agent.drivers.docker import Docker
from node_agent.drivers.slices import Slices
from reconcile.errors import NotReady, Refused
from reconcile.loop import Loop, Pace

log = logging.getLogger(__name__)

RESYNC_SECONDS, GATHER_SECONDS = 60.0, 0.1
CGROUPFS, SYSTEMD, NONE = "cgroupfs", "systemd", "none"
"""What Docker may answer; `none` where it cannot limit anything (docs.docker.com: rootless)."""


class Keeper(Protocol):
    """Has groups made and removed, in the way in which Docker does it."""

    def name(self, group: Group) -> str: ...  # noqa: D102
    def make(self, group: Group, limits: Limits) -> str: ...  # noqa: D102
    def remove(self, group: Group) -> None: ...  # noqa: D102
    def below(self, group: Group) -> set[str]: ...  # noqa: D102


class PodCgroups:
    """`root` is where our groups begin, `pods` are those that are here.

    Which way Docker has is asked with the first pod, and again when Docker has been away.
    """

    def __init__(
        self,
        docker: Docker,
        files: Cgroups,
        slices: Slices,
        root: str,
        room: Room,
        pods: Callable[[], Iterable[Pod]],
    ) -> None:
        self._docker = docker
        self._files = files
        self._slices = slices
        self._root = root
        self._room = room
        self._pods = pods
        self._asked = False
        self._keeper: Keeper | None = None
        self._asking = asyncio.Lock()
        self.loop = Loop("control groups", self._share, Pace(resync=RESYNC_SECONDS, settle=GATHER_SECONDS))

    async def path(self, pod: Pod) -> str:
        """The pod's group as Docker is told it; empty where containers are as Docker has them.

        Raises NotReady, Refused.
        """
        keeper = await self._used()
        return "" if keeper is None else keeper.name(cgroups.group(pod, self._root))

    async def make(self, pod: Pod) -> str:
        """The same, and it is there with its limits when this returns."""
        keeper = await self._used()
        if keeper is None:
            return ""
        made = await asyncio.to_thread(keeper.make, cgroups.group(pod, self._root), cgroups.limits(pod, self._room))
        self.loop.wake()
        return made

    async def remove(self, uid: str) -> None:
        """Nothing is left of the pod's group, whatever its class was and whoever made it. Raises NotReady, Refused."""
        for keeper in (self._files, self._slices):
            for group in cgroups.groups(uid, self._root):
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

    async def _make_shared(self, keeper: Keeper) -> None:
        for group, limits in cgroups.shared(self._pods(), self._root, self._room):
            await asyncio.to_thread(keeper.make, group, limits)

    def _known(self) -> set[str]:
        names = {
            name
            for keeper in (self._files, self._slices)
            for group in cgroups.parents(self._root)
            for name in keeper.below(group)
        }
        return {name.removeprefix(cgroups.POD) for name in names if name.startswith(cgroups.POD)}

    async def _used(self) -> Keeper | None:
        """Who makes groups, once those of all pods and of the classes are there."""
        async with self._asking:
            if not self._asked:
                self._keeper = await self._choose(await self._docker.cgroup_driver())
                self._asked = True
        return self._keeper

    async def _choose(self, driver: str) -> Keeper | None:
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

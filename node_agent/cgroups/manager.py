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

RESYNC_SECONDS = 60.0
DEBOUNCE_SECONDS = 0.1

CGROUPFS, SYSTEMD, NONE = "cgroupfs", "systemd", "none"
"""Docker's cgroup drivers. `none` means that Docker cannot limit resources (docs.docker.com: rootless)."""


class CgroupDriver(Protocol):
    """A cgroup driver of Docker: the way in which cgroups are created and removed."""

    def cgroup_parent(self, cgroup: CgroupPath) -> str: ...  # noqa: D102
    def create(self, cgroup: CgroupPath, limits: CgroupLimits) -> str: ...  # noqa: D102
    def remove(self, cgroup: CgroupPath) -> None: ...  # noqa: D102
    def children(self, cgroup: CgroupPath) -> set[str]: ...  # noqa: D102


class CgroupManager:
    """Cgroups of pods and the QoS cgroups above them.

    `root` is the path above `kubepods`; `pods` returns the pods of this node. Docker's cgroup driver is read before the
    first pod, and again after a restart of Docker.
    """

    def __init__(
        self,
        docker: DockerClient,
        cgroupfs: CgroupfsDriver,
        systemd: SystemdDriver,
        root: str,
        capacity: PodsCapacity,
        pods: Callable[[], Iterable[Pod]],
    ) -> None:
        self._docker = docker
        self._cgroupfs = cgroupfs
        self._systemd = systemd
        self._root = root
        self._capacity = capacity
        self._pods = pods
        self._is_driver_current = False
        self._current_driver: CgroupDriver | None = None
        self._driver_lock = asyncio.Lock()
        timing = LoopTiming(resync=RESYNC_SECONDS, debounce=DEBOUNCE_SECONDS)
        self.loop = Loop("control groups", self._update_qos_cgroups, timing)

    async def cgroup_parent(self, pod: Pod) -> str:
        """Return the pod's cgroup for Docker's option cgroup-parent. Returns an empty string if pods have no cgroups.

        Raises NotReady, Refused.
        """
        driver = await self._driver()
        return "" if driver is None else driver.cgroup_parent(hierarchy.pod_cgroup(pod, self._root))

    async def create(self, pod: Pod, previous: Pod | None = None) -> str:
        """Create or update the pod's cgroup. Returns and raises the same as `cgroup_parent`.

        During a resize, `previous` is the pod before it: the cgroup gets the wider limits of both.
        """
        driver = await self._driver()
        if driver is None:
            return ""
        limits = hierarchy.pod_limits(pod, self._capacity)
        if previous is not None:
            limits = hierarchy.wider_limits(limits, hierarchy.pod_limits(previous, self._capacity))
        cgroup_parent = await asyncio.to_thread(driver.create, hierarchy.pod_cgroup(pod, self._root), limits)
        self.loop.wake()
        return cgroup_parent

    async def remove(self, uid: str) -> None:
        """Remove the cgroup of a pod of any class and of any driver. Raises NotReady, Refused."""
        for driver in (self._cgroupfs, self._systemd):
            for cgroup in hierarchy.candidate_cgroups(uid, self._root):
                await asyncio.to_thread(driver.remove, cgroup)
        self.loop.wake()

    async def list_pod_uids(self) -> set[str]:
        """Return the UIDs of the pods that have a cgroup."""
        return await asyncio.to_thread(self._list_pod_uids)

    def invalidate_driver(self) -> None:
        """Read Docker's cgroup driver again before it is used next, because another Docker may be running now."""
        self._is_driver_current = False
        self.loop.wake()

    async def _update_qos_cgroups(self) -> None:
        driver = await self._driver()
        if driver is not None:
            await self._create_qos_cgroups(driver)

    async def _create_qos_cgroups(self, driver: CgroupDriver) -> None:
        for cgroup, limits in hierarchy.qos_cgroups(self._pods(), self._root, self._capacity):
            await asyncio.to_thread(driver.create, cgroup, limits)

    def _list_pod_uids(self) -> set[str]:
        names = {
            name
            for driver in (self._cgroupfs, self._systemd)
            for cgroup in hierarchy.parent_cgroups(self._root)
            for name in driver.children(cgroup)
        }
        prefix = hierarchy.POD_PREFIX
        return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}

    async def _driver(self) -> CgroupDriver | None:
        """Return the driver that Docker uses, or None if pods have no cgroups. The QoS cgroups exist then."""
        async with self._driver_lock:
            if not self._is_driver_current:
                self._current_driver = await self._select_driver(await self._docker.cgroup_driver())
                self._is_driver_current = True
        return self._current_driver

    async def _select_driver(self, name: str) -> CgroupDriver | None:
        """Return the driver with this name, and create the QoS cgroups. Returns None if the host does not allow it."""
        if name == SYSTEMD:
            await self._create_qos_cgroups(self._systemd)
            return self._systemd
        reason = f"Docker's cgroup driver is {name}"
        if name == CGROUPFS:
            try:
                await self._create_qos_cgroups(self._cgroupfs)
            except NotReady as error:
                reason = str(error)
            else:
                return self._cgroupfs
        elif name != NONE:
            raise Refused(f"{reason}; {CGROUPFS}, {SYSTEMD} and {NONE} are accepted")
        log.warning("pods have no control groups of their own", extra={"reason": reason})
        return None

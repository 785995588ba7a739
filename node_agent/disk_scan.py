"""Walks through what pods have on disks, and remembers what was found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path

from api.objects import Pod
from node_agent.clock import wall
from node_agent.containers import Host, pod_dir
from node_agent.drivers import usage
from node_agent.drivers.docker import Docker
from node_agent.drivers.space import space
from node_agent.observed import Container
from node_agent.stats.figures import KnownPod, PodDisk, Taken
from node_agent.volume_paths import is_in_memory, is_own, volume_dir
from reconcile.errors import DriverError

LEAST_SECONDS, SHARE = 60.0, 10
"""Between two walks through everything are so many seconds, and so many times as long as the first one took."""


class DiskScan:
    """`look` walks now; `refresh` walks when it is time again, and is to be called when somebody wants to know."""

    def __init__(self, docker: Docker, host: Host) -> None:
        self._docker = docker
        self._host = host
        self._known: dict[str, PodDisk] = {}
        self._due = 0.0

    def known(self, uid: str) -> PodDisk | None:
        """What was found last of a pod; None if nobody has looked."""
        return self._known.get(uid)

    async def look(self, pod: Pod, found: Iterable[Container]) -> PodDisk:
        """What the pod with these containers takes now. Raises DriverError."""
        uid, containers = pod.metadata.uid, [one for one in found if not one.is_sandbox]
        hidden = any(not one.layer for one in containers)
        written = await self._docker.written_bytes(uid) if hidden else {}
        self._known[uid] = disk = await asyncio.to_thread(self._walk, pod, containers, written)
        return disk

    def _walk(self, pod: Pod, containers: list[Container], written: dict[str, int]) -> PodDisk:
        directory = pod_dir(self._host, pod.metadata.uid)
        own = {one.name: Path(volume_dir(directory, one)) for one in pod.spec.volumes if is_own(one)}
        memory = {one.name for one in pod.spec.volumes if is_in_memory(one)}
        return PodDisk(
            at=wall().timestamp(),
            written={
                one.id: Taken(*usage.taken(Path(one.layer))) if one.layer else Taken(written.get(one.id, 0))
                for one in containers
            },
            logs={one.id: Taken(*usage.log_taken(one.log_path)) for one in containers},
            volumes={name: Taken(*usage.taken(path)) for name, path in own.items()},
            memory={name: space(str(own[name])) for name in memory if own[name].is_dir()},
        )

    async def refresh(self, pods: Iterable[KnownPod]) -> None:
        """Look at all of these, one after the other, if it is time; forget others."""
        known = list(pods)
        if time.monotonic() < self._due and all(one.pod.metadata.uid in self._known for one in known):
            return
        everything = time.monotonic() >= self._due
        began = time.monotonic()
        for one in known:
            if everything or one.pod.metadata.uid not in self._known:
                try:
                    await self.look(one.pod, one.seen.everything)
                except DriverError:
                    continue
        if everything:
            took = time.monotonic() - began
            self._due = time.monotonic() + max(LEAST_SECONDS, took * SHARE)
        here = {one.pod.metadata.uid for one in known}
        for uid in self._known.keys() - here:
            del self._known[uid]

"""Looks at all containers once in a while: what Docker's events have not told is found all the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from node_agent.drivers.docker import Docker
from node_agent.measures import RELISTS
from node_agent.pod_worker import PodWorker
from reconcile.loop import Loop, Pace

RELIST_SECONDS = 60.0


class Relist:
    """`workers` are those of this node's pods, by UID."""

    def __init__(self, docker: Docker, workers: Mapping[str, PodWorker]) -> None:
        self._docker = docker
        self._workers = workers
        self.loop = Loop("relist", self.compare, Pace(resync=RELIST_SECONDS))

    async def compare(self) -> None:
        """Wake the workers whose pods are not what they were seen to be. Raises DriverError."""
        with RELISTS.time():
            await self._compare()

    async def _compare(self) -> None:
        states: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for one in await self._docker.all_containers():
            states[one.uid][one.id] = one.state
        for uid, worker in self._workers.items():
            if not worker.sight.agrees(states[uid]):
                worker.look()

"""Decides which pods have a worker: admits new pods, updates and ends others, cleans up orphans. Lists pods for the
server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from api.core.pod import Pod
from node_agent.docker.client import DockerClient
from node_agent.metrics import RELIST_DURATION
from node_agent.pods.worker import PodWorker
from node_agent.runtime.container import RuntimePod
from node_agent.stats.model import PodWithContainers
from reconcile.errors import Gone
from reconcile.loop import Loop, LoopTiming


class PodLister:
    """`shown` is what the master shows, by the UIDs that pods have here: a mirror pod has another one there."""

    def __init__(self, workers: Mapping[str, PodWorker], shown: Callable[[], Mapping[str, Pod]]) -> None:
        self._workers = workers
        self._shown = shown

    def everything(self) -> tuple[PodWithContainers, ...]:
        """Every pod with its status, and its containers as they were last seen."""
        return tuple(PodWithContainers(worker.pod, worker.sight.seen) for worker in self._workers.values())

    def one(self, namespace: str, name: str, uid: str = "") -> Pod:
        """A pod by its name, and its UID where that is given. Raises Gone."""
        found = [worker for worker in self._workers.values() if _named(worker.pod, namespace, name)]
        if uid:
            shown = self._shown().get
            found = [one for one in found if uid in (one.pod.metadata.uid, _uid(shown(one.pod.metadata.uid)))]
        if not found:
            raise Gone("pod does not exist")
        return min(found, key=lambda worker: worker.leaving).pod

    async def containers(self, pod: Pod) -> RuntimePod:
        """What Docker holds of it. Raises NotReady, Gone."""
        worker = self._workers.get(pod.metadata.uid)
        if worker is None:
            raise Gone("pod does not exist")
        return await worker.sight.look()


def _named(pod: Pod, namespace: str, name: str) -> bool:
    return (pod.metadata.namespace, pod.metadata.name) == (namespace, name)


def _uid(pod: Pod | None) -> str:
    return "" if pod is None else pod.metadata.uid


RELIST_SECONDS = 60.0


class Pleg:
    """`workers` are those of this node's pods, by UID."""

    def __init__(self, docker: DockerClient, workers: Mapping[str, PodWorker]) -> None:
        self._docker = docker
        self._workers = workers
        self.loop = Loop("relist", self.compare, LoopTiming(resync=RELIST_SECONDS))

    async def compare(self) -> None:
        """Wake the workers whose pods are not what they were seen to be. Raises DriverError."""
        with RELIST_DURATION.time():
            await self._compare()

    async def _compare(self) -> None:
        states: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for one in await self._docker.all_containers():
            states[one.uid][one.id] = one.state
        for uid, worker in self._workers.items():
            if not worker.sight.agrees(states[uid]):
                worker.look()

"""Decides which pods have a worker: admits new pods, updates and ends others, cleans up orphans. Lists pods for the
server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from api.core.pod import Pod
from node_agent.pods.worker import PodWorker
from node_agent.runtime.container import RuntimePod
from node_agent.runtime.pleg import PodCache
from node_agent.stats.model import PodWithContainers
from reconcile.errors import Gone


class PodLister:
    """`shown` is what the master shows, by the UIDs that pods have here: a mirror pod has another one there."""

    def __init__(
        self, workers: Mapping[str, PodWorker], cache: PodCache, shown: Callable[[], Mapping[str, Pod]]
    ) -> None:
        self._workers = workers
        self._cache = cache
        self._shown = shown

    def everything(self) -> tuple[PodWithContainers, ...]:
        """Every pod with its status, and its containers as they were last seen."""
        return tuple(PodWithContainers(worker.pod, self._cache.peek(uid)) for uid, worker in self._workers.items())

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
        if pod.metadata.uid not in self._workers:
            raise Gone("pod does not exist")
        return await self._cache.get(pod.metadata.uid)


def _named(pod: Pod, namespace: str, name: str) -> bool:
    return (pod.metadata.namespace, pod.metadata.name) == (namespace, name)


def _uid(pod: Pod | None) -> str:
    return "" if pod is None else pod.metadata.uid

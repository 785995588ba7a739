"""The pods of this node as the agent knows them, for those who ask from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from api.objects import Pod
from node_agent.observed import PodContainers
from node_agent.pod_worker import PodWorker
from node_agent.stats.figures import KnownPod
from reconcile.errors import Gone


class KnownPods:
    """`shown` is what the master shows, by the UIDs that pods have here: a mirror pod has another one there."""

    def __init__(self, workers: Mapping[str, PodWorker], shown: Callable[[], Mapping[str, Pod]]) -> None:
        self._workers = workers
        self._shown = shown

    def everything(self) -> tuple[KnownPod, ...]:
        """Every pod with its status, and its containers as they were last seen."""
        return tuple(KnownPod(worker.pod, worker.sight.seen) for worker in self._workers.values())

    def one(self, namespace: str, name: str, uid: str = "") -> Pod:
        """A pod by its name, and its UID where that is given. Raises Gone."""
        found = [worker for worker in self._workers.values() if _named(worker.pod, namespace, name)]
        if uid:
            shown = self._shown().get
            found = [one for one in found if uid in (one.pod.metadata.uid, _uid(shown(one.pod.metadata.uid)))]
        if not found:
            raise Gone("pod does not exist")
        return min(found, key=lambda worker: worker.leaving).pod

    async def containers(self, pod: Pod) -> PodContainers:
        """What Docker holds of it. Raises NotReady, Gone."""
        worker = self._workers.get(pod.metadata.uid)
        if worker is None:
            raise Gone("pod does not exist")
        return await worker.sight.look()


def _named(pod: Pod, namespace: str, name: str) -> bool:
    return (pod.metadata.namespace, pod.metadata.name) == (namespace, name)


def _uid(pod: Pod | None) -> str:
    return "" if pod is None else pod.metadata.uid

"""The workers of this node's pods, by pod UID."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from api.core.pod import FINAL_PHASES, Pod
from node_agent.pods.worker import PodWorker


class PodWorkers(Mapping[str, PodWorker]):
    """The workers of this node's pods, by pod UID (kubelet: podWorkers). Only PodManager adds and removes entries."""

    def __init__(self) -> None:
        self._workers: dict[str, PodWorker] = {}

    def __getitem__(self, uid: str) -> PodWorker:
        return self._workers[uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def add(self, worker: PodWorker) -> None:
        """Add the worker of a pod."""
        self._workers[worker.pod.metadata.uid] = worker

    def remove(self, uid: str) -> None:
        """Remove the worker of a pod that is terminated."""
        del self._workers[uid]

    def active_pods(self) -> tuple[Pod, ...]:
        """Return the pods whose phase is not final."""
        pods = (worker.pod for worker in self._workers.values())
        return tuple(pod for pod in pods if pod.status.phase not in FINAL_PHASES)

    def other_pods(self, pod: Pod) -> tuple[Pod, ...]:
        """Return the other pods whose phase is not final."""
        return tuple(other for other in self.active_pods() if other.metadata.uid != pod.metadata.uid)

    def wake(self, uid: str) -> None:
        """Wake the worker of a pod. Do nothing if it has none."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.wake()

    def wake_all(self) -> None:
        """Wake every worker."""
        for worker in self._workers.values():
            worker.wake()

    def network_changed(self) -> None:
        """Make every worker attach its pod to the network again."""
        for worker in self._workers.values():
            worker.network_changed()

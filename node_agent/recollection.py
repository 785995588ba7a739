"""What an earlier agent told of the static pods of this node: times, and ends that Docker has forgotten."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from api.objects import FINAL_PHASES, Pod
from api.static_pods import is_mirror, is_static
from node_agent.pod_worker import PodWorker


class Recollection:
    """A manifest has no status, but the pod's mirror has; until that is known nothing is told to the master."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def give(self, shown: Mapping[str, Pod], workers: Mapping[str, PodWorker]) -> None:
        """`shown` is what the master shows, by the UIDs that pods have here. Each pod is given it once."""
        self._given &= workers.keys()
        for uid in workers.keys() & shown.keys() - self._given:
            worker, status = workers[uid], shown[uid].status
            if is_mirror(shown[uid]):
                self._given.add(uid)
                if status.start_time and worker.pod.status.phase not in FINAL_PHASES:
                    worker.pod = replace(worker.pod, status=status)
                    worker.wake()

    def may_tell(self, pod: Pod) -> bool:
        """Whether what is told of the pod now takes nothing back that was told before."""
        return not is_static(pod) or pod.metadata.uid in self._given

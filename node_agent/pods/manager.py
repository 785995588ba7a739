"""Decides which pods have a worker: admits new pods, updates and ends others, cleans up orphans. Lists pods for the
server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from api.core.pod import FINAL_PHASES, Pod, PodStatus
from api.validation.static_pods import is_mirror, is_static
from node_agent.pods.admission import Rejection
from node_agent.pods.admitter import AdmitResult, PodAdmitter
from node_agent.pods.conditions import foreign_conditions
from node_agent.pods.local_pods import LocalPods, orphan_pod
from node_agent.pods.pod_workers import PodWorkers
from node_agent.pods.status import rejected_status
from node_agent.pods.status_manager import StatusManager
from node_agent.pods.worker import PodWorker, PodWorkerFactory
from node_agent.runtime.container import RuntimePod
from node_agent.runtime.pleg import PodCache
from node_agent.sources.api_server import ApiServerSource
from node_agent.sources.pod_config import PodConfig
from node_agent.sources.static_pods import namespaced_name
from node_agent.stats.model import PodWithContainers
from reconcile.errors import Gone, NotReady
from reconcile.listeners import Listeners
from reconcile.loop import Loop, LoopTiming

RESYNC_SECONDS = 60.0
CLEAN_UP_SECONDS = 60.0
HUNG_SECONDS = 120.0
"""Time without a pass after which the agent counts as hung."""


@dataclass(frozen=True, slots=True)
class StaticPods:
    """The static pods of this node.

    `running`: static pods with a worker, by UID. `waiting`: UIDs of static pods without a worker. `complete`: every
    source was read, and its pods are included.
    """

    running: Mapping[str, Pod]
    waiting: frozenset[str]
    complete: bool


class PodManager:
    """Gives each pod of the sources a worker, and ends other workers (kubelet: syncLoop, HandlePodCleanups).

    `synced` notifies after each pass. `sources_ready` notifies once, after the first pass in which every source had
    been read. `pod_terminated` notifies when nothing of a pod is left on this host. `spawn` starts a task that lives
    as long as the agent.
    """

    def __init__(
        self,
        *,
        config: PodConfig,
        api_server: ApiServerSource,
        admitter: PodAdmitter,
        workers: PodWorkers,
        worker_factory: PodWorkerFactory,
        statuses: StatusManager,
        local_pods: LocalPods,
        cache: PodCache,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.synced = Listeners()
        self.sources_ready = Listeners()
        self.pod_terminated = Listeners()
        self.loop = Loop("pods", self._sync_pods, LoopTiming(resync=RESYNC_SECONDS))
        self._config = config
        self._api_server = api_server
        self._admitter = admitter
        self._workers = workers
        self._worker_factory = worker_factory
        self._statuses = statuses
        self._local_pods = local_pods
        self._cache = cache
        self._spawn = spawn
        self._waiting: frozenset[str] = frozenset()
        # UIDs of the workers' pods of which only labels are known.
        self._orphans: set[str] = set()
        self._sources_ready = False
        self._has_api_pods = False
        self._clean_up_at = 0.0

    # --- queries -----------------------------------------------------------------------------------------------------

    def hung_reason(self) -> str:
        """Return why the agent counts as hung. Return an empty string if it does not."""
        seconds = self.loop.seconds_since_last_pass
        return f"pods were not synced for {seconds:.0f}s" if seconds > HUNG_SECONDS else ""

    def list_pods(self) -> tuple[PodWithContainers, ...]:
        """Return every pod with its status, and its containers as they were read last."""
        return tuple(PodWithContainers(worker.pod, self._cache.peek(uid)) for uid, worker in self._workers.items())

    def get_pod(self, namespace: str, name: str, uid: str = "") -> Pod:
        """Return a pod by its name. A given UID must be the pod's, or that of its mirror pod. Raises Gone.

        While a pod is replaced by a new pod of the same name, the new pod is returned.
        """
        workers = [worker for worker in self._workers.values() if namespaced_name(worker.pod) == (namespace, name)]
        if uid:
            api_pods = self._api_server.by_local_uid()
            workers = [worker for worker in workers if uid in _uids(worker.pod, api_pods)]
        if not workers:
            raise Gone("pod does not exist")
        return min(workers, key=lambda worker: worker.removed).pod

    async def get_containers(self, pod: Pod) -> RuntimePod:
        """Return the containers of a pod. Raises NotReady, Gone."""
        if pod.metadata.uid not in self._workers:
            raise Gone("pod does not exist")
        return await self._cache.get(pod.metadata.uid)

    def static_pods(self) -> StaticPods:
        """Return the static pods of this node, including those that terminate. Orphans are none: their spec is gone."""
        running = {
            uid: worker.pod
            for uid, worker in self._workers.items()
            if is_static(worker.pod) and uid not in self._orphans
        }
        return StaticPods(running, self._waiting, complete=self._sources_ready)

    def evictable_workers(self) -> dict[str, PodWorker]:
        """Return the workers of the API server's pods that have not ended. Static pods are not evicted.

        Return none before the API server has listed its pods and each of them was added, so that the choice is among
        all of them.
        """
        workers: dict[str, PodWorker] = {}
        if not self._has_api_pods:
            return workers
        for pod in self._api_server.informer.items.values():
            worker = self._workers.get(pod.metadata.uid)
            if worker is not None and worker.pod.status.phase not in FINAL_PHASES:
                workers[pod.metadata.uid] = worker
        return workers

    # --- one pass ----------------------------------------------------------------------------------------------------

    async def _sync_pods(self) -> None:
        """Give every pod a worker. Once every source was read, end the workers of pods that no source has.

        Raises NotReady while the admission of a pod needs the API server.
        """
        # Read first: a source that delivers while this pass waits has pods that are not among these.
        seen_all_sources = self._config.seen_all_sources()
        has_api_pods = self._api_server.synced
        pods = self._config.pods()
        decided = await self._previously_decided(pods)
        undecided = 0
        # Pods of the previous agent process come first, because they run already.
        for uid, pod in sorted(pods.items(), key=lambda entry: entry[0] not in decided):
            worker = self._workers.get(uid)
            if worker is None:
                undecided += await self._add_pod(pod, pods, previously_decided=uid in decided)
            elif _comparable(worker.source_pod) != _comparable(pod):
                worker.update(pod)
        self._has_api_pods = has_api_pods
        self._restore_statuses()
        self._waiting = frozenset(pods.keys() - self._workers.keys())
        if seen_all_sources:
            await self._remove_missing_pods(pods)
        self.synced.notify()
        if undecided:
            raise NotReady(f"{undecided} pods wait until the API server returns this node's object")

    async def _remove_missing_pods(self, pods: Collection[str]) -> None:
        """End the workers of pods that no source has, and clean up what is left of pods without a worker."""
        for uid in self._workers.keys() - set(pods):
            if not self._workers[uid].removed:
                self._workers[uid].terminate()
        if time.monotonic() >= self._clean_up_at:
            await self._clean_up_orphans(pods)
            self._clean_up_at = time.monotonic() + CLEAN_UP_SECONDS
        if not self._sources_ready:
            self._sources_ready = True
            self.sources_ready.notify()

    async def _previously_decided(self, pods: Collection[str]) -> set[str]:
        """Return the UIDs of the pods that have a directory: an earlier agent process has decided about them."""
        if self._workers.keys() >= set(pods):
            return set()
        return await self._local_pods.list_directories()

    async def _add_pod(self, pod: Pod, pods: Collection[str], *, previously_decided: bool) -> bool:
        """Give a pod a worker, unless it has to wait. Return whether its admission needs the API server."""
        if self._statuses.is_deleting(pod.metadata.uid):
            return False
        if is_static(pod) and await self._waits_for_predecessor(pod, pods):
            return False
        if previously_decided:
            result = await self._admitter.recorded_decision(pod)
        else:
            result = await self._admitter.admit(pod, self._workers.values())
        if isinstance(result, Rejection):
            pod = replace(pod, status=rejected_status(pod, result.reason, result.message))
            self._start_worker(pod)
            self._statuses.set_status(pod)
        elif result is AdmitResult.ADMITTED:
            self._start_worker(pod)
            if not is_static(pod):
                self._statuses.adopt(pod)
        return result is AdmitResult.NODE_UNKNOWN

    async def _waits_for_predecessor(self, pod: Pod, pods: Collection[str]) -> bool:
        """Return whether something is left of another pod with the name of this static pod.

        A predecessor that no source has any more is terminated at once, even if the API server does not answer, because
        the API server may run in the pod.
        """
        name = namespaced_name(pod)
        with_containers = await self._local_pods.find_by_name(*name)
        with_worker = {uid for uid, worker in self._workers.items() if namespaced_name(worker.pod) == name}
        predecessors = (with_containers.keys() | with_worker) - {pod.metadata.uid}
        for uid in predecessors - set(pods):
            if uid not in self._workers:
                self._terminate_orphan(uid, with_containers[uid])
            elif not self._workers[uid].removed:
                self._workers[uid].terminate()
        return bool(predecessors)

    def _restore_statuses(self) -> None:
        """Give each static pod, once, the status of its mirror pod, which an earlier agent process has written."""
        for uid, api_pod in self._api_server.by_local_uid().items():
            worker = self._workers.get(uid)
            if worker is None or not is_mirror(api_pod) or self._statuses.is_restored(uid):
                continue
            if api_pod.status.start_time and worker.pod.status.phase not in FINAL_PHASES:
                worker.restore_status(api_pod.status)
            self._statuses.set_restored(uid)

    async def _clean_up_orphans(self, pods: Collection[str]) -> None:
        """Terminate pods that were removed while the agent was not running."""
        for uid, labels in (await self._local_pods.list()).items():
            if uid not in pods and uid not in self._workers:
                self._terminate_orphan(uid, labels)

    def _terminate_orphan(self, uid: str, labels: Mapping[str, str]) -> None:
        """Start a worker that removes what is left of a pod."""
        self._orphans.add(uid)
        self._start_worker(orphan_pod(uid, labels)).terminate()

    # --- workers -----------------------------------------------------------------------------------------------------

    def _start_worker(self, pod: Pod) -> PodWorker:
        worker = self._worker_factory.create(pod)
        self._workers.add(worker)
        self._spawn(self._run(worker))
        return worker

    async def _run(self, worker: PodWorker) -> None:
        """Run a worker until its pod is terminated. Delete the object of a pod that was deleted on the API server."""
        await worker.run()
        uid = worker.pod.metadata.uid
        self._workers.remove(uid)
        self._orphans.discard(uid)
        self._worker_factory.forget(uid)
        api_pods = self._api_server.informer.items.values()
        if any(pod.metadata.uid == uid and pod.metadata.deletion_timestamp for pod in api_pods):
            self._statuses.delete_pod(worker.pod)
        else:
            self._statuses.forget(uid)
        self.pod_terminated.notify()
        self.loop.wake()


def _comparable(pod: Pod) -> Pod:
    """Return the pod without the fields whose change concerns no worker, such as the agent's part of the status."""

    status = PodStatus(conditions=foreign_conditions(pod.status.conditions))
    return replace(pod, status=status, metadata=replace(pod.metadata, resource_version="", managed_fields=None))


def _uids(pod: Pod, api_pods: Mapping[str, Pod]) -> set[str]:
    """Return the UID of a pod on this node, and the UID of its mirror pod if it has one."""
    uid = pod.metadata.uid
    return {uid, api_pods[uid].metadata.uid} if uid in api_pods else {uid}

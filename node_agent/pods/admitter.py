"""Admits or rejects a pod, with the node and the pods that are here now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum

from api.core.node import Node
from api.core.pod import FINAL_PHASES, Pod
from node_agent.eviction.thresholds import Pressure
from node_agent.host import HostInfo
from node_agent.pods.admission import Rejection, admit, is_critical_pod, pressure_rejection, select_victims
from node_agent.pods.worker import PodWorker
from node_agent.runtime import pod_dir
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

PREEMPTED = ("Preempting", "Preempted in order to admit critical pod")


class AdmitResult(Enum):
    """What becomes of a pod that is not rejected."""

    ADMITTED = "admitted"
    WAITS = "waits for room that is being made"
    UNDECIDED = "the master has to be asked"


class PodAdmitter:
    """`known` is the Node as far as it is known here, `fresh` as the master has it, None while it is away.

    `pressure` says of what the node is short now. What it refuses is kept in `host`'s directories of pods.
    `sysctls` are those that pods may set besides the safe ones.
    """

    def __init__(
        self,
        known: Callable[[], Awaitable[Node]],
        fresh: Callable[[], Awaitable[Node | None]],
        pressure: Callable[[], Pressure],
        host: HostInfo,
        sysctls: tuple[str, ...] = (),
    ) -> None:
        self._known = known
        self._fresh = fresh
        self._pressure = pressure
        self._host = host
        self._sysctls = sysctls

    async def earlier(self, pod: Pod) -> AdmitResult | Rejection:
        """What an earlier agent has decided of a pod that has a directory here. Raises NotReady."""
        if pod.status.phase in FINAL_PHASES:
            return AdmitResult.ADMITTED
        return await asyncio.to_thread(pod_dir.read_rejection, self._host, pod.metadata.uid) or AdmitResult.ADMITTED

    async def decide(self, pod: Pod, workers: Mapping[str, PodWorker]) -> AdmitResult | Rejection:
        """A refusal outlives this agent; where it cannot be written down the next one decides anew."""
        verdict = await self._decide(pod, workers)
        if isinstance(verdict, Rejection):
            try:
                await asyncio.to_thread(pod_dir.write_rejection, self._host, pod.metadata.uid, verdict)
            except NotReady as error:
                log.warning("a refusal is not written down", extra={"pod": pod.metadata.name, "error": error})
        return verdict

    async def _decide(self, pod: Pod, workers: Mapping[str, PodWorker]) -> AdmitResult | Rejection:
        """Nobody is refused on hearsay: before that the master is asked, as labels may have changed a moment ago."""
        if pod.status.phase in FINAL_PHASES or pod.metadata.deletion_timestamp:
            return AdmitResult.ADMITTED
        refused = pressure_rejection(pod, self._pressure())
        if refused is not None:
            return refused
        here = [worker for worker in workers.values() if worker.pod.status.phase not in FINAL_PHASES]
        pods = [worker.pod for worker in here]
        if admit(pod, await self._known(), pods, self._sysctls) is None:
            return AdmitResult.ADMITTED
        node = await self._fresh()
        if node is None:
            return AdmitResult.UNDECIDED
        rejection = admit(pod, node, pods, self._sysctls)
        return AdmitResult.ADMITTED if rejection is None else self._make_room(pod, node, here, rejection)

    def _make_room(self, pod: Pod, node: Node, here: list[PodWorker], rejection: Rejection) -> AdmitResult | Rejection:
        staying = {worker.pod.metadata.uid: worker for worker in here if worker.verdict is None}
        pods = [worker.pod for worker in staying.values()]
        if admit(pod, node, pods, self._sysctls) is None:
            return AdmitResult.WAITS
        chosen = select_victims(pod, node, pods) if rejection.by_lack and is_critical_pod(pod) else ()
        for one in chosen:
            log.info("ends for a critical pod", extra={"pod": one.metadata.name, "critical": pod.metadata.name})
            staying[one.metadata.uid].fail(*PREEMPTED)
        return AdmitResult.WAITS if chosen else rejection

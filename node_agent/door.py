"""Decides about pods that come to the node, with what is known of it and of those that are here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum

from api.objects import FINAL_PHASES, Node, Pod
from node_agent.admission import Rejection, admit, is_critical, refused_by_pressure, victims
from node_agent.containers import Host
from node_agent.drivers import rejections
from node_agent.eviction import Pressure
from node_agent.pod_worker import PodWorker
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

PREEMPTED = ("Preempting", "Preempted in order to admit critical pod")


class Verdict(Enum):
    """What becomes of a pod that is not rejected."""

    ADMITTED = "admitted"
    WAITS = "waits for room that is being made"
    UNDECIDED = "the master has to be asked"


class Door:
    """`known` is the Node as far as it is known here, `fresh` as the master has it, None while it is away.

    `pressure` says of what the node is short now. What it refuses is kept in `host`'s directories of pods.
    `sysctls` are those that pods may set besides the safe ones.
    """

    def __init__(
        self,
        known: Callable[[], Awaitable[Node]],
        fresh: Callable[[], Awaitable[Node | None]],
        pressure: Callable[[], Pressure],
        host: Host,
        sysctls: tuple[str, ...] = (),
    ) -> None:
        self._known = known
        self._fresh = fresh
        self._pressure = pressure
        self._host = host
        self._sysctls = sysctls

    async def earlier(self, pod: Pod) -> Verdict | Rejection:
        """What an earlier agent has decided of a pod that has a directory here. Raises NotReady."""
        if pod.status.phase in FINAL_PHASES:
            return Verdict.ADMITTED
        return await asyncio.to_thread(rejections.read, self._host, pod.metadata.uid) or Verdict.ADMITTED

    async def decide(self, pod: Pod, workers: Mapping[str, PodWorker]) -> Verdict | Rejection:
        """A refusal outlives this agent; where it cannot be written down the next one decides anew."""
        verdict = await self._decide(pod, workers)
        if isinstance(verdict, Rejection):
            try:
                await asyncio.to_thread(rejections.write, self._host, pod.metadata.uid, verdict)
            except NotReady as error:
                log.warning("a refusal is not written down", extra={"pod": pod.metadata.name, "error": error})
        return verdict

    async def _decide(self, pod: Pod, workers: Mapping[str, PodWorker]) -> Verdict | Rejection:
        """Nobody is refused on hearsay: before that the master is asked, as labels may have changed a moment ago."""
        if pod.status.phase in FINAL_PHASES or pod.metadata.deletion_timestamp:
            return Verdict.ADMITTED
        refused = refused_by_pressure(pod, self._pressure())
        if refused is not None:
            return refused
        here = [worker for worker in workers.values() if worker.pod.status.phase not in FINAL_PHASES]
        pods = [worker.pod for worker in here]
        if admit(pod, await self._known(), pods, self._sysctls) is None:
            return Verdict.ADMITTED
        node = await self._fresh()
        if node is None:
            return Verdict.UNDECIDED
        rejection = admit(pod, node, pods, self._sysctls)
        return Verdict.ADMITTED if rejection is None else self._make_room(pod, node, here, rejection)

    def _make_room(self, pod: Pod, node: Node, here: list[PodWorker], rejection: Rejection) -> Verdict | Rejection:
        staying = {worker.pod.metadata.uid: worker for worker in here if worker.verdict is None}
        pods = [worker.pod for worker in staying.values()]
        if admit(pod, node, pods, self._sysctls) is None:
            return Verdict.WAITS
        chosen = victims(pod, node, pods) if rejection.by_lack and is_critical(pod) else ()
        for one in chosen:
            log.info("ends for a critical pod", extra={"pod": one.metadata.name, "critical": pod.metadata.name})
            staying[one.metadata.uid].fail(*PREEMPTED)
        return Verdict.WAITS if chosen else rejection

"""Admits or rejects a pod, given the node's state and its other pods (kubelet: PodAdmitHandler)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from enum import Enum

from api.core.node import Node
from api.core.pod import FINAL_PHASES, Pod
from api.validation.static_pods import is_critical_pod
from node_agent.event_recorder import EventRecorder
from node_agent.eviction.thresholds import NodePressure
from node_agent.host import HostInfo
from node_agent.node.registered_node import RegisteredNode
from node_agent.pods.admission import Rejection, admit, pressure_rejection, select_victims
from node_agent.pods.worker import PodWorker
from node_agent.runtime import pod_files
from reconcile.errors import NotReady

log = logging.getLogger(__name__)

PREEMPTED = ("Preempting", "Preempted in order to admit critical pod")


class AdmitResult(Enum):
    """A decision about a pod other than a rejection."""

    ADMITTED = "admitted"
    WAIT_FOR_ROOM = "wait until other pods have stopped"
    NODE_UNKNOWN = "try again when the API server answers"


class PodAdmitter:
    """Admission of pods to this node (kubelet: PodAdmitHandler).

    Rejections are kept in the pods' directories, so that they outlive this process. `sysctls` are unsafe sysctls that
    pods may set.
    """

    def __init__(
        self,
        node: RegisteredNode,
        pressure: NodePressure,
        host: HostInfo,
        sysctls: tuple[str, ...],
        events: EventRecorder,
    ) -> None:
        self._node = node
        self._pressure = pressure
        self._host = host
        self._sysctls = sysctls
        self._events = events

    async def recorded_decision(self, pod: Pod) -> AdmitResult | Rejection:
        """Return the decision of an earlier agent process about a pod that has a directory. Raises NotReady."""
        if pod.status.phase in FINAL_PHASES:
            return AdmitResult.ADMITTED
        return await asyncio.to_thread(pod_files.read_rejection, self._host, pod.metadata.uid) or AdmitResult.ADMITTED

    async def admit(self, pod: Pod, workers: Iterable[PodWorker]) -> AdmitResult | Rejection:
        """Decide about a new pod. Record a rejection as an event and in the pod's directory.

        If the rejection cannot be written, the next agent process decides again.
        """
        result = await self._decide(pod, workers)
        if isinstance(result, Rejection):
            self._events.pod_event(pod, result.reason, result.message)
            try:
                await asyncio.to_thread(pod_files.write_rejection, self._host, pod.metadata.uid, result)
            except NotReady as error:
                fields = {"pod": f"{pod.metadata.namespace}/{pod.metadata.name}", "error": error}
                log.warning("rejection could not be written", extra=fields)
        return result

    async def _decide(self, pod: Pod, workers: Iterable[PodWorker]) -> AdmitResult | Rejection:
        """Admit or reject a pod.

        Before a rejection the Node is read from the API server, because the cached Node may lack a label that was added
        a moment ago.
        """
        if pod.status.phase in FINAL_PHASES or pod.metadata.deletion_timestamp:
            return AdmitResult.ADMITTED
        rejection = pressure_rejection(pod, self._pressure.current)
        if rejection is not None:
            return rejection
        active = [worker for worker in workers if worker.pod.status.phase not in FINAL_PHASES]
        pods = [worker.pod for worker in active]
        if admit(pod, await self._node.cached(), pods, self._sysctls) is None:
            return AdmitResult.ADMITTED
        node = await self._node.read()
        if node is None:
            return AdmitResult.NODE_UNKNOWN
        rejection = admit(pod, node, pods, self._sysctls)
        return AdmitResult.ADMITTED if rejection is None else self._preempt_pods(pod, node, active, rejection)

    def _preempt_pods(
        self, pod: Pod, node: Node, active: list[PodWorker], rejection: Rejection
    ) -> AdmitResult | Rejection:
        """Preempt pods for a critical pod. Return the rejection if that does not help or is not allowed."""
        not_failing = {worker.pod.metadata.uid: worker for worker in active if worker.failure is None}
        pods = [worker.pod for worker in not_failing.values()]
        if admit(pod, node, pods, self._sysctls) is None:
            return AdmitResult.WAIT_FOR_ROOM
        if not (rejection.is_out_of_resources and is_critical_pod(pod)):
            return rejection
        victims = select_victims(pod, node, pods)
        for victim in victims:
            log.info("preempting pod", extra={"pod": victim.metadata.name, "for": pod.metadata.name})
            not_failing[victim.metadata.uid].fail(*PREEMPTED)
        return AdmitResult.WAIT_FOR_ROOM if victims else rejection

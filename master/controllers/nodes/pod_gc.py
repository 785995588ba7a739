"""Pods of missing nodes, and terminated pods beyond the limit. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from api.core.node import Node
from api.core.pod import FINAL_PHASES, Pod
from api.meta.types import Condition
from master.controllers.actions import Delete, Failed, ForceDelete, Update, WriteAction, isolate_errors
from master.resources.metadata import format_time


def missing_nodes(
    before: Mapping[str, float], nodes: Iterable[Node], pods: Iterable[Pod], monotonic: float
) -> dict[str, float]:
    """Return the missing nodes to which pods are bound, and since when (monotonic clock)."""
    existing = {node.metadata.name for node in nodes}
    return {
        name: before.get(name, monotonic)
        for name in {pod.spec.node_name for pod in pods}
        if name and name not in existing
    }


def orphaned_pods(
    pods: Iterable[Pod], missing: Mapping[str, float], grace: float, monotonic: float, now: datetime.datetime
) -> Iterator[WriteAction | Failed]:
    """Yield the removal of pods whose node has been missing for `grace` seconds: no kubelet is left to end them.

    A pod that never started waits for its node without limit, unless it is being deleted. A pod with finalizers gets
    the phase Failed and waits for them.
    """

    if not missing:
        return iter(())

    def remove(pod: Pod) -> Iterator[WriteAction]:
        since = missing.get(pod.spec.node_name)
        has_started = bool(pod.status.start_time or pod.status.host_ip or pod.metadata.deletion_timestamp)
        if since is None or not has_started or monotonic - since < grace:
            return
        if not pod.metadata.finalizers:
            yield ForceDelete(pod)
        elif pod.status.phase not in FINAL_PHASES:
            yield Update(_with_failed_status(pod, now), pod)
        elif not pod.metadata.deletion_timestamp or pod.metadata.deletion_grace_period_seconds:
            yield Delete(pod)

    return isolate_errors(pods, remove)


def _with_failed_status(pod: Pod, now: datetime.datetime) -> Pod:
    disruption = Condition(
        type="DisruptionTarget",
        status="True",
        reason="DeletionByPodGC",
        message="PodGC: node no longer exists",
        last_transition_time=format_time(now),
    )
    other_conditions = (condition for condition in pod.status.conditions if condition.type != disruption.type)
    return replace(pod, status=replace(pod.status, phase="Failed", conditions=(*other_conditions, disruption)))


def terminated_pods(pods: Iterable[Pod], limit: int) -> Iterator[Delete]:
    """Yield the deletion of terminated pods beyond `limit`: evicted pods first, then the oldest."""
    terminated = [pod for pod in pods if pod.status.phase in FINAL_PHASES and not pod.metadata.deletion_timestamp]
    terminated.sort(
        key=lambda pod: (
            pod.status.reason != "Evicted", pod.metadata.creation_timestamp or "",
            pod.metadata.namespace, pod.metadata.name,
        )
    )  # fmt: skip
    yield from (Delete(pod) for pod in terminated[: max(0, len(terminated) - limit)])

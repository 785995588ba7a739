"""Pods of missing nodes, and terminated pods beyond the limit. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from api.core.node import Node
from api.core.pod import FINAL_PHASES, Pod
from api.meta.types import Condition
from master.controllers.actions import Delete, ForceDelete, Update, WriteAction
from master.kinds.kind import show_time


def missing_nodes(
    before: Mapping[str, float], nodes: Iterable[Node], pods: Iterable[Pod], now: float
) -> dict[str, float]:
    """Nodes that pods are bound to and that do not exist, with the time (steady clock) since when."""
    present = {node.metadata.name for node in nodes}
    return {
        name: before.get(name, now) for name in {pod.spec.node_name for pod in pods} if name and name not in present
    }


def orphaned_pods(
    pods: Iterable[Pod], absent: Mapping[str, float], grace: float, now: float, wall: datetime.datetime
) -> Iterator[WriteAction]:
    """Pods that ran on a node which is gone are removed: nobody is left to end them.

    The node has `grace` seconds to come back. A pod that has not begun waits for its node, however long, unless it is
    being deleted. One that bears finalizers has failed, for those who wait to hear that of it, and waits for them.
    """
    for pod in pods:
        since = absent.get(pod.spec.node_name)
        begun = bool(pod.status.start_time or pod.status.host_ip or pod.metadata.deletion_timestamp)
        if since is None or not begun or now - since < grace:
            continue
        if not pod.metadata.finalizers:
            yield ForceDelete(pod)
        elif pod.status.phase not in FINAL_PHASES:
            yield Update(_with_failed_status(pod, wall), pod)
        elif not pod.metadata.deletion_timestamp or pod.metadata.deletion_grace_period_seconds:
            yield Delete(pod)


def _with_failed_status(pod: Pod, wall: datetime.datetime) -> Pod:
    row = Condition(
        type="DisruptionTarget",
        status="True",
        reason="DeletionByPodGC",
        message="PodGC: node no longer exists",
        last_transition_time=show_time(wall),
    )
    others = (other for other in pod.status.conditions if other.type != row.type)
    return replace(pod, status=replace(pod.status, phase="Failed", conditions=(*others, row)))


def terminated_pods(pods: Iterable[Pod], most: int) -> Iterator[Delete]:
    """Of the pods that have ended, as many as are more than `most`: first those that were evicted, then the oldest."""
    ended = [pod for pod in pods if pod.status.phase in FINAL_PHASES and not pod.metadata.deletion_timestamp]
    ended.sort(
        key=lambda pod: (
            pod.status.reason != "Evicted", pod.metadata.creation_timestamp or "",
            pod.metadata.namespace, pod.metadata.name,
        )
    )  # fmt: skip
    yield from (Delete(pod) for pod in ended[: max(0, len(ended) - most)])

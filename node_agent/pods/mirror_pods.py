"""Creates and deletes mirror pods, which represent static pods on the API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from api.client.client import AlreadyExists, ApiError, Client, ClientError, Conflict, NotFound
from api.core.node import Node
from api.core.pod import Pod
from api.validation.static_pods import CONFIG_MIRROR, is_mirror, mirror_pod
from node_agent.node.registered_node import RegisteredNode
from node_agent.pods.manager import PodManager, StaticPods
from node_agent.sources.api_server import ApiServerSource
from node_agent.sources.static_pods import namespaced_name
from reconcile.errors import NotReady
from reconcile.loop import Loop, LoopTiming

log = logging.getLogger(__name__)

RESYNC_SECONDS = 10.0
"""A namespace that did not exist may exist now, so that a mirror pod which was refused can be created."""

RECREATE_SECONDS = 1.0
"""Pause between the deletion of a mirror pod and the creation of the next one of its name. kubectl delete waits until
it sees that the object is gone, and would miss that if another object followed at once."""


@dataclass(frozen=True, slots=True)
class CreateMirror:
    """Create this mirror pod."""

    mirror: Pod


@dataclass(frozen=True, slots=True)
class DeleteMirror:
    """Delete this mirror pod without a grace period."""

    mirror: Pod


def plan_mirror_pods(
    static_pods: StaticPods, api_pods: Iterable[Pod], node: Node
) -> Iterator[CreateMirror | DeleteMirror]:
    """Yield the mirror pods to create and to delete, given the pods of this node on the API server.

    A mirror pod that a user deletes, that represents an earlier version of the pod, or that belongs to an earlier Node
    of this name is deleted, and created again when it is gone. A mirror pod without a static pod is deleted for good.
    Other pods are left alone, even if they have the name of a static pod.
    """
    objects = {namespaced_name(pod): pod for pod in api_pods}
    for pod in objects.values():
        if is_mirror(pod) and not _is_valid(pod, static_pods, node):
            yield DeleteMirror(pod)
    for pod in static_pods.running.values():
        if namespaced_name(pod) not in objects:
            yield CreateMirror(mirror_pod(pod, node))


def _is_valid(mirror: Pod, static_pods: StaticPods, node: Node) -> bool:
    uid = mirror.metadata.annotations[CONFIG_MIRROR]
    if uid in static_pods.running or uid in static_pods.waiting:
        owners = [owner.uid for owner in mirror.metadata.owner_references]
        return owners == [node.metadata.uid] and not mirror.metadata.deletion_timestamp
    return not static_pods.complete


class MirrorPodController:
    """Keeps the mirror pods on the API server equal to the static pods of this node."""

    def __init__(self, client: Client, api_server: ApiServerSource, node: RegisteredNode, pods: PodManager) -> None:
        self.loop = Loop("mirror pods", self._sync, LoopTiming(resync=RESYNC_SECONDS, backoff_max=5.0))
        self._client = client
        self._api_server = api_server
        self._node = node
        self._pods = pods
        self._refused: set[str] = set()
        self._deleted_at: dict[tuple[str, str], float] = {}

    async def _sync(self) -> None:
        node = self._node.current
        if node is None or not self._api_server.synced:
            return
        api_pods = self._api_server.informer.items.values()
        for step in plan_mirror_pods(self._pods.static_pods(), api_pods, node):
            try:
                if isinstance(step, CreateMirror):
                    await self._create(step.mirror)
                else:
                    await self._delete(step.mirror)
            except ApiError as error:
                if error.status.code >= 500:
                    raise NotReady(str(error)) from None
                self._log_refusal(step.mirror, error)
            except ClientError as error:
                raise NotReady(str(error)) from None

    async def _create(self, mirror: Pod) -> None:
        name = namespaced_name(mirror)
        now = asyncio.get_running_loop().time()
        if now < self._deleted_at.get(name, -RECREATE_SECONDS) + RECREATE_SECONDS:
            return
        self._deleted_at.pop(name, None)
        try:
            await self._client.create(mirror)
        except AlreadyExists:
            return  # The informer has not received it yet.
        self._refused.discard(mirror.metadata.annotations[CONFIG_MIRROR])

    async def _delete(self, mirror: Pod) -> None:
        meta = mirror.metadata
        try:
            await self._client.delete(Pod, meta.name, meta.namespace, grace_seconds=0, uid=meta.uid)
        except NotFound:
            return
        except Conflict as error:
            # Another client wrote to the object at the same time, or another object has its name by now.
            raise NotReady(str(error)) from None
        loop = asyncio.get_running_loop()
        self._deleted_at[namespaced_name(mirror)] = loop.time()
        loop.call_later(RECREATE_SECONDS, self.loop.wake)

    def _log_refusal(self, mirror: Pod, error: ApiError) -> None:
        """Log once for each pod, because its namespace may never exist."""
        meta = mirror.metadata
        uid = meta.annotations[CONFIG_MIRROR]
        if uid not in self._refused:
            pod_name = f"{meta.namespace}/{meta.name}"
            log.warning("mirror pod was refused", extra={"pod": pod_name, "error": error})
        self._refused.add(uid)

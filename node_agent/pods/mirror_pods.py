"""Creates and deletes mirror pods; restores the status of static pods from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from api.client.client import AlreadyExists, ApiError, Client, ClientError, Conflict, NotFound
from api.client.informer import Informer
from api.core.node import Node
from api.core.pod import FINAL_PHASES, Pod
from api.validation.static_pods import CONFIG_MIRROR, is_mirror, is_static, mirror_pod
from node_agent.pods.worker import PodWorker
from node_agent.sources.static_pods import namespaced_name
from reconcile.errors import NotReady
from reconcile.loop import Loop, LoopTiming


@dataclass(frozen=True, slots=True)
class StaticPods:
    """What is here: static pods by UID, those that have a worker, whether that has just begun or is about to end, and
    those that only wait to have one. `complete`: every source has spoken, and what they said has been taken up.
    """

    running: Mapping[str, Pod]
    waiting: frozenset[str]
    complete: bool


@dataclass(frozen=True, slots=True)
class CreateMirror:
    """Create this object."""

    mirror: Pod


@dataclass(frozen=True, slots=True)
class DeleteMirror:
    """Delete this object at once."""

    mirror: Pod


def plan_mirror_pods(here: StaticPods, held: Iterable[Pod], node: Node) -> Iterator[CreateMirror | DeleteMirror]:
    """What to do, given the pods of this node that the master holds.

    A mirror that somebody deletes, that shows an earlier form of the pod or belonged to an earlier Node of this name
    goes, and is made anew when it is gone; one that shows nothing goes for good. Pods that are no mirrors are left
    alone, even if they have the name of a static pod.
    """
    objects = {namespaced_name(pod): pod for pod in held}
    for pod in objects.values():
        if is_mirror(pod) and not _holds(pod, here, node):
            yield DeleteMirror(pod)
    for pod in here.running.values():
        if namespaced_name(pod) not in objects:
            yield CreateMirror(mirror_pod(pod, node))


def _holds(mirror: Pod, here: StaticPods, node: Node) -> bool:
    shows = mirror.metadata.annotations[CONFIG_MIRROR]
    if shows in here.running or shows in here.waiting:
        owners = [owner.uid for owner in mirror.metadata.owner_references]
        return owners == [node.metadata.uid] and not mirror.metadata.deletion_timestamp
    return not here.complete


log = logging.getLogger(__name__)

RESYNC_SECONDS = 10.0
"""A namespace that did not exist may exist now, so that a mirror pod which was refused can be created."""
PAUSE_SECONDS = 1.0
"""Between the end of a mirror and the next of its name: kubectl delete waits until it sees that the object is gone, and
would not see it if another came at once."""


class MirrorPodController:
    """`shown` says what is here, `node` is the registered Node or None."""

    def __init__(
        self,
        client: Client,
        held: Informer[Pod],
        node: Callable[[], Node | None],
        shown: Callable[[], StaticPods],
    ) -> None:
        self._client = client
        self._held = held
        self._node = node
        self._shown = shown
        self._told: set[str] = set()
        self._dropped: dict[tuple[str, str], float] = {}
        self.loop = Loop("mirror pods", self._pass, LoopTiming(resync=RESYNC_SECONDS, backoff_max=5.0))

    async def _pass(self) -> None:
        node = self._node()
        if node is None or not self._held.synced:
            return
        for step in plan_mirror_pods(self._shown(), self._held.items.values(), node):
            try:
                await (self._make(step.mirror) if isinstance(step, CreateMirror) else self._drop(step.mirror))
            except ApiError as error:
                if error.status.code >= 500:
                    raise NotReady(str(error)) from None
                self._tell(step.mirror, error)
            except ClientError as error:
                raise NotReady(str(error)) from None

    async def _make(self, mirror: Pod) -> None:
        name, clock = namespaced_name(mirror), asyncio.get_running_loop()
        if clock.time() < self._dropped.get(name, -PAUSE_SECONDS) + PAUSE_SECONDS:
            return
        self._dropped.pop(name, None)
        try:
            await self._client.create(mirror)
        except AlreadyExists:
            return  # Our watch has not told us yet.
        self._told.discard(mirror.metadata.annotations[CONFIG_MIRROR])

    async def _drop(self, mirror: Pod) -> None:
        meta = mirror.metadata
        try:
            await self._client.delete(Pod, meta.name, meta.namespace, grace_seconds=0, uid=meta.uid)
        except NotFound:
            return
        except Conflict as error:
            raise NotReady(str(error)) from None  # Somebody wrote to it at the same time, or it is already another.
        clock = asyncio.get_running_loop()
        self._dropped[namespaced_name(mirror)] = clock.time()
        clock.call_later(PAUSE_SECONDS, self.loop.wake)

    def _tell(self, mirror: Pod, error: ApiError) -> None:
        """Once for each pod: a project that does not exist may never come."""
        meta = mirror.metadata
        uid = meta.annotations[CONFIG_MIRROR]
        if uid not in self._told:
            pod = f"{meta.namespace}/{meta.name}"
            log.warning("the master does not show a static pod", extra={"pod": pod, "error": error})
        self._told.add(uid)


class MirrorStatusRestore:
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

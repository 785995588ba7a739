"""Keeps the mirror pods on the master as they should be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from api.client import AlreadyExists, ApiError, Client, ClientError, Conflict, NotFound
from api.mirror import Mirror
from api.objects import Node, Pod
from api.static_pods import CONFIG_MIRROR
from node_agent.mirror_pods import Make, Shown, plan
from node_agent.sources.reading import name_of
from reconcile.errors import NotReady
from reconcile.loop import Loop, Pace

log = logging.getLogger(__name__)

RESYNC_SECONDS = 60.0
PAUSE_SECONDS = 1.0
"""Between the end of a mirror and the next of its name: kubectl delete waits until it sees that the object is gone, and
would not see it if another came at once."""


class Mirroring:
    """`shown` says what is here, `node` is the registered Node or None."""

    def __init__(
        self,
        client: Client,
        held: Mirror[Pod],
        node: Callable[[], Node | None],
        shown: Callable[[], Shown],
    ) -> None:
        self._client = client
        self._held = held
        self._node = node
        self._shown = shown
        self._told: set[str] = set()
        self._dropped: dict[tuple[str, str], float] = {}
        self.loop = Loop("mirror pods", self._pass, Pace(resync=RESYNC_SECONDS, last_retry=5.0))

    async def _pass(self) -> None:
        node = self._node()
        if node is None or not self._held.synced:
            return
        for step in plan(self._shown(), self._held.items.values(), node):
            try:
                await (self._make(step.mirror) if isinstance(step, Make) else self._drop(step.mirror))
            except ApiError as error:
                if error.status.code >= 500:
                    raise NotReady(str(error)) from None
                self._tell(step.mirror, error)
            except ClientError as error:
                raise NotReady(str(error)) from None

    async def _make(self, mirror: Pod) -> None:
        name, clock = name_of(mirror), asyncio.get_running_loop()
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
        self._dropped[name_of(mirror)] = clock.time()
        clock.call_later(PAUSE_SECONDS, self.loop.wake)

    def _tell(self, mirror: Pod, error: ApiError) -> None:
        """Once for each pod: a project that does not exist may never come."""
        meta = mirror.metadata
        uid = meta.annotations[CONFIG_MIRROR]
        if uid not in self._told:
            pod = f"{meta.namespace}/{meta.name}"
            log.warning("the master does not show a static pod", extra={"pod": pod, "error": error})
        self._told.add(uid)

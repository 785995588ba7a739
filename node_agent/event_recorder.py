"""Writes events to the API server in the background; repeated events only increase a counter."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from msgspec.structs import replace

from api.client.client import AlreadyExists, ApiError, Client, ClientError, NotFound
from api.core.events import Event
from api.core.pod import Pod
from api.meta.types import ObjectReference
from node_agent.events import (
    RATE_LIMIT,
    AggregateRecord,
    EventKey,
    aggregate,
    event_key,
    is_recent,
    new_event,
    node_reference,
    pod_reference,
    repeated_event,
)
from reconcile.errors import NotReady
from reconcile.loop import Loop, LoopTiming
from reconcile.token_bucket import TokenBucket

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

MAX_PENDING, MAX_REMEMBERED = 1000, 4096
RESYNC_SECONDS = 3600.0


def _now() -> datetime:
    return datetime.now(UTC)


class PodEvents:
    """Records events about one pod and its containers. `pod` is its newest version, kept up to date by its worker."""

    def __init__(self, recorder: EventRecorder, pod: Pod) -> None:
        self.pod = pod
        self._recorder = recorder

    def record(self, reason: str, message: str, container: str = "") -> None:
        """Record an event about the pod, or about its container of this name."""
        self._recorder.pod_event(self.pod, reason, message, container)


class EventRecorder:
    """Recorder of events about this node and its pods.

    While the API server is unreachable, the newest MAX_PENDING events wait. `dropped` counts events that were not
    written.
    """

    def __init__(self, client: Client, node: str, clock: Callable[[], datetime] = _now) -> None:
        self.dropped = 0
        self.loop = Loop("events", self._write, LoopTiming(resync=RESYNC_SECONDS))
        self._client = client
        self._node = node
        self._clock = clock
        self._waiting: dict[EventKey, Event] = {}
        self._known: dict[EventKey, Event] = {}
        self._similar: dict[EventKey, AggregateRecord] = {}
        self._allowances: dict[tuple[str, str], TokenBucket] = {}

    def pod_event(self, pod: Pod, reason: str, message: str, container: str = "") -> None:
        """Record an event about a pod, or about one of its containers."""
        self.event(pod_reference(pod, container), reason, message)

    def for_pod(self, pod: Pod) -> PodEvents:
        """Return a recorder of events about this pod."""
        return PodEvents(self, pod)

    def node_event(self, reason: str, message: str) -> None:
        """Record an event about this node."""
        self.event(node_reference(self._node), reason, message)

    def event(self, item: ObjectReference, reason: str, message: str) -> None:
        """Record an event about an object."""
        now = self._clock()
        kin = event_key(item, reason, "")
        similar, message = aggregate(self._similar.get(kin), message, now)
        self._drop_beyond(self._similar, kin, similar, MAX_REMEMBERED)
        allowance, allowed = RATE_LIMIT.take(self._allowances.get((item.kind, item.uid)), now.timestamp())
        self._drop_beyond(self._allowances, (item.kind, item.uid), allowance, MAX_REMEMBERED)
        if not allowed:
            self.dropped += 1
            return
        key = event_key(item, reason, message)
        known = self._waiting.get(key) or self._known.get(key)
        if known is not None and is_recent(known, now):
            self._waiting[key] = repeated_event(known, message, now)
        else:
            self._waiting[key] = new_event(item, reason, message, self._node, now)
        while len(self._waiting) > MAX_PENDING:
            del self._waiting[next(iter(self._waiting))]
            self.dropped += 1
        self.loop.wake()

    @staticmethod
    def _drop_beyond(held: dict[K, V], key: K, value: V, most: int) -> None:
        """Keep the value as the newest, and no more than `most` of them."""
        held.pop(key, None)
        held[key] = value
        if len(held) > most:
            del held[next(iter(held))]

    async def _write(self) -> None:
        """Oldest first. Raises NotReady while the master is away."""
        while self._waiting:
            key, event = next(iter(self._waiting.items()))
            written = await self._told(event)
            newest = self._waiting.get(key)
            if newest is event:
                del self._waiting[key]
            elif newest is not None and written is not None:
                self._waiting[key] = replace(newest, metadata=written.metadata)
            if written is not None:
                self._drop_beyond(self._known, key, written, MAX_REMEMBERED)

    async def _told(self, event: Event) -> Event | None:
        """The event as the master has it; None when the master does not want it."""
        try:
            if event.metadata.resource_version:
                return await self._counted(event)
            try:
                return _as_told(event, await self._client.create(event))
            except AlreadyExists:  # An earlier attempt of ours came through after all.
                return await self._counted(event)
        except ApiError as error:
            if error.status.code >= 500:
                raise NotReady(str(error)) from None
            log.warning("the master refused an event", extra={"reason": event.reason, "error": error})
            return None
        except ClientError as error:
            raise NotReady(str(error)) from None

    async def _counted(self, event: Event) -> Event:
        meta = event.metadata
        change = {"count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message}
        try:
            return _as_told(event, await self._client.patch(Event, meta.name, meta.namespace, change))
        except NotFound:
            anew = replace(event, metadata=replace(meta, resource_version=""))
            return _as_told(event, await self._client.create(anew))


def _as_told(event: Event, answer: Event) -> Event:
    """Ours, known to the master: thousands are remembered, and what it has filled in is of no use here."""
    return replace(event, metadata=replace(event.metadata, resource_version=answer.metadata.resource_version))

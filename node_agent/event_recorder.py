"""Writes events to the API server in the background; repeated events only increase a counter."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from msgspec.structs import replace

from api.client.client import AlreadyExists, ApiError, Client, ClientError, NotFound
from api.core.events import Event
from api.core.pod import Pod
from api.meta.types import ObjectReference
from node_agent.clock import wall_clock
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

    def __init__(self, client: Client, node: str, clock: Callable[[], datetime] = wall_clock) -> None:
        self.dropped = 0
        self.loop = Loop("events", self._write, LoopTiming(resync=RESYNC_SECONDS))
        self._client = client
        self._node = node
        self._clock = clock
        self._pending: dict[EventKey, Event] = {}
        self._written: dict[EventKey, Event] = {}
        self._aggregates: dict[EventKey, AggregateRecord] = {}
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def pod_event(self, pod: Pod, reason: str, message: str, container: str = "") -> None:
        """Record an event about a pod, or about one of its containers."""
        self.event(pod_reference(pod, container), reason, message)

    def for_pod(self, pod: Pod) -> PodEvents:
        """Return a recorder of events about this pod."""
        return PodEvents(self, pod)

    def node_event(self, reason: str, message: str) -> None:
        """Record an event about this node."""
        self.event(node_reference(self._node), reason, message)

    def event(self, reference: ObjectReference, reason: str, message: str) -> None:
        """Record an event about an object."""
        now = self._clock()
        aggregate_key = event_key(reference, reason, "")
        record, message = aggregate(self._aggregates.get(aggregate_key), message, now)
        self._keep_newest(self._aggregates, aggregate_key, record, MAX_REMEMBERED)
        bucket, allowed = RATE_LIMIT.take(self._buckets.get((reference.kind, reference.uid)), now.timestamp())
        self._keep_newest(self._buckets, (reference.kind, reference.uid), bucket, MAX_REMEMBERED)
        if not allowed:
            self.dropped += 1
            return
        key = event_key(reference, reason, message)
        previous = self._pending.get(key) or self._written.get(key)
        if previous is not None and is_recent(previous, now):
            self._pending[key] = repeated_event(previous, message, now)
        else:
            self._pending[key] = new_event(reference, reason, message, self._node, now)
        while len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]
            self.dropped += 1
        self.loop.wake()

    @staticmethod
    def _keep_newest(values: dict[K, V], key: K, value: V, maximum: int) -> None:
        """Store the value as the newest one, and remove the oldest one beyond `maximum`."""
        values.pop(key, None)
        values[key] = value
        if len(values) > maximum:
            del values[next(iter(values))]

    async def _write(self) -> None:
        """Write the pending events, oldest first. Raises NotReady if the API server does not answer."""
        while self._pending:
            key, event = next(iter(self._pending.items()))
            written = await self._send(event)
            newest = self._pending.get(key)
            if newest is event:
                del self._pending[key]
            elif newest is not None and written is not None:
                self._pending[key] = replace(newest, metadata=written.metadata)
            if written is not None:
                self._keep_newest(self._written, key, written, MAX_REMEMBERED)

    async def _send(self, event: Event) -> Event | None:
        """Write an event and return it. Return None if the API server refuses it."""
        try:
            if event.metadata.resource_version:
                return await self._count_up(event)
            try:
                return _with_resource_version(event, await self._client.create(event))
            except AlreadyExists:  # The response to an earlier attempt was lost.
                return await self._count_up(event)
        except ApiError as error:
            if error.status.code >= 500:
                raise NotReady(str(error)) from None
            level = logging.DEBUG if _is_without_namespace(error) else logging.WARNING
            log.log(level, "event was refused", extra={"reason": event.reason, "error": error})
            return None
        except ClientError as error:
            raise NotReady(str(error)) from None

    async def _count_up(self, event: Event) -> Event:
        meta = event.metadata
        patch = {"count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message}
        try:
            return _with_resource_version(event, await self._client.patch(Event, meta.name, meta.namespace, patch))
        except NotFound:
            recreated = replace(event, metadata=replace(meta, resource_version=""))
            return _with_resource_version(event, await self._client.create(recreated))


def _is_without_namespace(error: ApiError) -> bool:
    """Return whether the API server refuses an event because its namespace is gone, or is being deleted.

    That is usual at the end of pods that are deleted with their namespace (client-go: recordEvent).
    """
    details = error.status.details
    causes = details.causes if details is not None else ()
    is_terminating = any(cause.reason == "NamespaceTerminating" for cause in causes)
    return is_terminating or (isinstance(error, NotFound) and details is not None and details.kind == "namespaces")


def _with_resource_version(event: Event, response: Event) -> Event:
    """Return the event with the resource version of the response.

    Fields that the API server added are dropped to save memory.
    """
    return replace(event, metadata=replace(event.metadata, resource_version=response.metadata.resource_version))

"""What one of several masters reads of a storage to which others write: its watch cache lags behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from master.resources.group_resource import GroupResource
from master.storage.interface import Conflict, Delete, Key, Put, Record, Records, Watch, WatchEvents
from master.storage.sqlite import SQLiteStorage
from master.storage.watch_cache import HistoryLimits, WatchCache


class MasterView:
    """A `Storage` of one master over a backend that several masters share, as with etcd.

    It learns of the writes of others as late as the interface permits: when a write conflicts, and with its own writes.
    One write at a time: a second one before the first is done reads a state without it.
    """

    def __init__(self, backend: SQLiteStorage, *resources: GroupResource) -> None:
        self._backend = backend
        self._resources = resources
        self._cache = WatchCache(HistoryLimits())
        self.conflicts = 0
        self.catch_up()

    def catch_up(self) -> None:
        """Read the events that the backend has had since."""
        events = [
            event
            for resource in self._resources
            for event in self._backend.events_since(resource, self._cache.revision)
        ]
        for event in sorted(events, key=lambda event: event.record.revision):
            self._cache.add(event)

    @property
    def revision(self) -> int:
        return self._cache.revision

    def get(self, key: Key) -> Record | None:
        return self._cache.get(key)

    def get_uncommitted(self, key: Key) -> Record | None:
        return self._cache.get(key)

    def list(self, resource: GroupResource, namespace: str = "") -> Records:
        return self._cache.list(resource, namespace)

    def list_uncommitted(self, resource: GroupResource, namespace: str = "") -> Records:
        return self._cache.list(resource, namespace)

    def list_at(self, resource: GroupResource, namespace: str, revision: int) -> Records:
        return self._cache.list_at(resource, namespace, revision)

    def events_since(self, resource: GroupResource, revision: int) -> WatchEvents:
        return self._cache.events_since(resource, revision)

    def watch(self, resource: GroupResource, callback: Watch) -> Callable[[], None]:
        return self._cache.watch(resource, callback)

    async def write(self, *changes: Put | Delete) -> tuple[Any, ...]:
        try:
            return await self._backend.write(*changes)
        except Conflict:
            self.conflicts += 1
            raise
        finally:
            self.catch_up()

    async def compact(self, revision: int) -> None:
        await self._backend.compact(revision)

    async def run(self) -> None:
        await self._backend.run()

    async def close(self) -> None:
        """Leave the backend open; others use it."""

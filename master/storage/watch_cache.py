"""The watch cache: the objects and the recent events in memory, from which gets, lists and watches are served. Pure.

A storage backend adds each committed event once, in order of revisions. The cache does not know how the backend keeps
them. Old events leave the cache by number and size; a watch from before them gets Compacted and has to list again.
"""

from __future__ import annotations

import bisect
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from master.resources.group_resource import GroupResource
from master.storage.interface import Compacted, Key, Record, Records, Watch, WatchEvent, WatchEvents


class HistoryLimits(NamedTuple):
    """How much history stays: maximum number of events, and of bytes of their JSON."""

    events: int = 10_000
    size_bytes: int = 16 << 20


class ObjectTable:
    """The objects of one resource, sorted by namespace and name."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], Record] = {}
        self._order: list[tuple[str, str]] = []

    def put(self, record: Record) -> None:
        """Add or replace an object."""
        name = (record.key.namespace, record.key.name)
        if name not in self.records:
            bisect.insort(self._order, name)
        self.records[name] = record

    def drop(self, key: Key) -> None:
        """Remove an object, if it is there."""
        name = (key.namespace, key.name)
        if self.records.pop(name, None) is not None:
            del self._order[bisect.bisect_left(self._order, name)]

    def list(self, namespace: str) -> Records:
        """Return the objects of one namespace, or all, sorted."""
        if not namespace:
            return [self.records[name] for name in self._order]
        first = bisect.bisect_left(self._order, (namespace, ""))
        last = bisect.bisect_left(self._order, (namespace + "\0", ""))
        return [self.records[name] for name in self._order[first:last]]


class WatchCache:
    """The committed objects of all resources, the events since `compacted`, and the watches.

    `revision` is that of the newest event, `compacted` the newest revision that is no longer in the history.
    """

    def __init__(self, limits: HistoryLimits, compacted: int = 0) -> None:
        self.revision = 0
        self.compacted = compacted
        self._limits = limits
        self._tables: defaultdict[GroupResource, ObjectTable] = defaultdict(ObjectTable)
        self._watches: defaultdict[GroupResource, set[Watch]] = defaultdict(set)
        self._history: deque[WatchEvent] = deque()
        self._history_bytes = 0
        self._dropped_events = 0
        self._dropped_bytes = 0

    # --- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: Key) -> Record | None:
        """Return an object; None if there is none."""
        return self._tables[key.resource].records.get((key.namespace, key.name))

    def list(self, resource: GroupResource, namespace: str = "") -> Records:
        """Return the objects of a resource, of one namespace or of all, sorted by namespace and name."""
        return self._tables[resource].list(namespace)

    def list_unsorted(self, resource: GroupResource, namespace: str = "") -> Records:
        """Return the objects of a resource, of one namespace or of all, in any order. Faster than `list` for all."""
        table = self._tables[resource]
        return table.list(namespace) if namespace else [*table.records.values()]

    def counts(self) -> Mapping[GroupResource, int]:
        """Return the number of objects of each resource that has had one."""
        return {resource: len(table.records) for resource, table in self._tables.items()}

    def list_at(self, resource: GroupResource, namespace: str, revision: int) -> Records:
        """Return the objects of a resource as they were at a revision, sorted. Raises Compacted."""
        changed: dict[Key, Record | None] = {}
        for event in self.events_since(resource, revision):
            changed.setdefault(event.record.key, event.previous)
        current = self.list(resource, namespace)
        if not changed:
            return current
        past = (record for record in changed.values() if record is not None and namespace in ("", record.key.namespace))
        # The records that did not change are sorted already and the others are few, so sorting is almost linear.
        return sorted((*(record for record in current if record.key not in changed), *past), key=_sort_key)

    def events_since(self, resource: GroupResource, revision: int) -> WatchEvents:
        """Return the events of a resource after a revision, oldest first.

        Raises Compacted, also for a future revision.
        """
        if revision < self.compacted or revision > self.revision:
            raise Compacted(revision, self.compacted if revision < self.compacted else self.revision)
        events: WatchEvents = []
        for event in reversed(self._history):
            if event.record.revision <= revision:
                break
            if event.record.key.resource == resource:
                events.append(event)
        events.reverse()
        return events

    def watch(self, resource: GroupResource, callback: Watch) -> Callable[[], None]:
        """Call `callback` for every later event of a resource, in order. Return a function that ends the watch."""
        watches = self._watches[resource]
        watches.add(callback)
        return lambda: watches.discard(callback)

    # --- for the backend -------------------------------------------------------------------------------------------

    def add(self, event: WatchEvent) -> None:
        """Add the next committed event: change the objects, extend the history, and call the watches."""
        table = self._tables[event.record.key.resource]
        if event.type == "DELETED":
            table.drop(event.record.key)
        else:
            table.put(event.record)
        self.revision = event.record.revision
        if self.revision > self.compacted:
            self._history.append(event)
            self._history_bytes += event.record.size
            self._enforce_limits()
        for callback in tuple(self._watches[event.record.key.resource]):
            callback(event)
        if event.previous is not None:
            event.previous.drop_decoded()

    def drop_history(self, revision: int) -> None:
        """Remove the events up to and including a revision. The newest event always stays."""
        while len(self._history) > 1 and self._history[0].record.revision <= revision:
            self._drop_oldest()

    def take_compaction_due(self) -> bool:
        """Return whether a tenth of the history was dropped since this last returned True.

        The backend compacts then, because a compaction after each dropped event would cost a commit each.
        """
        limits = self._limits
        if self._dropped_bytes <= limits.size_bytes // 10 and self._dropped_events <= limits.events // 10:
            return False
        self._dropped_events = self._dropped_bytes = 0
        return True

    def _enforce_limits(self) -> None:
        # The newest event always stays, because it carries the newest revision.
        while len(self._history) > 1 and (
            len(self._history) > self._limits.events or self._history_bytes > self._limits.size_bytes
        ):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._history.popleft()
        self._history_bytes -= oldest.record.size
        self.compacted = oldest.record.revision
        self._dropped_events += 1
        self._dropped_bytes += oldest.record.size


def _sort_key(record: Record) -> tuple[str, str]:
    return record.key.namespace, record.key.name

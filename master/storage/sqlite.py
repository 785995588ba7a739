"""The storage over a SQLite file: writes are queued, committed in groups, and then added to the watch cache. Driver.

All functions of `RevisionLog` are called from one thread, which `SQLiteStorage` owns. Writes that arrive while the disk
is busy are committed together. If the disk fails, that transaction and all writes queued after it fail, and the state
is as before.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from api.meta.types import Object
from master.resources.group_resource import GroupResource
from master.storage.interface import (
    Conflict,
    Decoder,
    Delete,
    Key,
    Put,
    Record,
    Records,
    Watch,
    WatchEvent,
    WatchEvents,
    with_revision,
)
from master.storage.null_times import with_null_times
from master.storage.revision_log import LogRow, RevisionLog
from master.storage.watch_cache import HistoryLimits, WatchCache
from reconcile.errors import NotReady
from reconcile.exposition import Histogram, MetricFamily, counter, format_labels, gauge, histogram

log = logging.getLogger(__name__)


class _QueuedWrite(NamedTuple):
    """The events of one call of `write`. `done` gets its result when they are on disk."""

    events: WatchEvents
    done: asyncio.Future[None]


_Batch = list[_QueuedWrite]

TRANSACTION_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class SQLiteStorage:
    """A `Storage` over a SQLite file. Open it with `await SQLiteStorage.open(...)` and close it with `close()`."""

    def __init__(
        self,
        types: Mapping[GroupResource, type[Object] | Decoder],
        cache: WatchCache,
        revision_log: RevisionLog,
        thread: ThreadPoolExecutor,
    ) -> None:
        self._types = types
        self._cache = cache
        self._log = revision_log
        self._thread = thread
        self._last_assigned = 0
        self._pending: defaultdict[GroupResource, dict[Key, WatchEvent]] = defaultdict(dict)
        """By resource: the newest queued event of each object."""
        self._queued: _Batch = []
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._closing = False
        self.write_problem = ""
        """Why the last transaction was not written; empty if it was."""
        self._transaction_seconds = Histogram(TRANSACTION_BUCKETS)
        self._written_revisions = self._failed_transactions = 0

    @classmethod
    async def open(
        cls,
        path: Path,
        types: Mapping[GroupResource, type[Object] | Decoder],
        limits: HistoryLimits = HistoryLimits(),  # noqa: B008
    ) -> SQLiteStorage:
        """Read the whole file into memory. Raises NotReady (file unreadable, in use) and Refused (other format).

        `types` has the type of the objects of each resource. It may grow while the storage is open. Objects of a
        resource that it does not have are kept, and decoded as `Object`, without the fields that this type lacks.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            revision_log, compacted, log_rows = await asyncio.get_running_loop().run_in_executor(
                thread, _read_all, path
            )
        except BaseException:
            thread.shutdown()
            raise
        storage = cls(types, WatchCache(limits, compacted), revision_log, thread)
        for log_row in log_rows:
            storage._cache.add(storage._event(log_row))
        storage._last_assigned = storage.revision
        storage._writer = asyncio.create_task(storage._commit_loop(), name="store")
        return storage

    async def run(self) -> None:
        """Return when closed; raise what ended the writing, if it is a bug."""
        if self._writer is not None:
            await asyncio.shield(self._writer)

    async def close(self) -> None:
        """Finish the queued writes and close the file."""
        self._closing = True
        self._wake.set()
        if self._writer is not None:
            await self._writer
        await asyncio.get_running_loop().run_in_executor(self._thread, self._log.close)
        self._thread.shutdown()

    # --- reading: from the watch cache, and from the queued writes -------------------------------------------------

    @property
    def revision(self) -> int:
        """Return the newest durable revision; 0 before the first write."""
        return self._cache.revision

    def get(self, key: Key) -> Record | None:
        """Return the durable state of an object; None if there is none."""
        return self._cache.get(key)

    def get_uncommitted(self, key: Key) -> Record | None:
        """Return the state of an object after all queued writes. Decide writes by this state."""
        event = self._pending[key.resource].get(key)
        return self._cache.get(key) if event is None else _record_after(event)

    def list(self, resource: GroupResource, namespace: str = "") -> Records:
        """Return the durable objects of a resource, of one namespace or of all, sorted by namespace and name."""
        return self._cache.list(resource, namespace)

    def list_uncommitted(self, resource: GroupResource, namespace: str = "") -> Records:
        """Return the objects of a resource after all queued writes, not sorted."""
        durable = self._cache.list_unsorted(resource, namespace)
        pending = self._pending.get(resource)
        if not pending:
            return durable
        queued = {key: _record_after(event) for key, event in pending.items()}
        unchanged = [record for record in durable if record.key not in queued]
        return unchanged + [r for r in queued.values() if r is not None and namespace in ("", r.key.namespace)]

    def list_at(self, resource: GroupResource, namespace: str, revision: int) -> Records:
        """Return the objects of a resource as they were at a revision, sorted. Raises Compacted."""
        return self._cache.list_at(resource, namespace, revision)

    def events_since(self, resource: GroupResource, revision: int) -> WatchEvents:
        """Return the events of a resource after a revision, oldest first.

        Raises Compacted, also for a future revision.
        """
        return self._cache.events_since(resource, revision)

    def watch(self, resource: GroupResource, callback: Watch) -> Callable[[], None]:
        """Call `callback` for every later event of a resource, in order. Return a function that ends the watch."""

        def contained(event: WatchEvent) -> None:
            # The event is committed. An exception must keep it neither from the other watches nor from the next writes.
            try:
                callback(event)
            except Exception:
                log.exception("watch callback failed", extra={"object": str(event.record.key)})

        return self._cache.watch(resource, contained)

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield the metrics of the storage. Those of objects and of the size have kube-apiserver's names."""
        counts = self._cache.counts()
        yield gauge(
            "apiserver_storage_objects",
            "Stored objects by resource.",
            {format_labels(resource=str(resource)): number for resource, number in counts.items()},
        )
        storage_labels = format_labels(storage_cluster_id="sqlite")
        yield gauge(
            "apiserver_storage_size_bytes", "Size of the store on disk.", {storage_labels: self._log.size_bytes()}
        )
        yield gauge("podlane_store_disk_free_bytes", "Free space of the store's disk.", {"": self._log.free_bytes()})
        yield histogram(
            "podlane_store_transaction_duration_seconds",
            "Seconds until the queued writes of one transaction were on disk.",
            {"": self._transaction_seconds},
        )
        yield counter(
            "podlane_store_failed_transactions_total",
            "Transactions that the disk did not take. Their writes failed.",
            {"": self._failed_transactions},
        )
        yield counter("podlane_store_revisions_total", "Revisions that were written.", {"": self._written_revisions})
        yield gauge("podlane_store_queued_writes", "Writes that wait for a transaction.", {"": len(self._queued)})

    # --- writing ---------------------------------------------------------------------------------------------------

    async def write(self, *changes: Put | Delete) -> tuple[Any, ...]:
        """Make all changes or none. Return the stored objects when they are on disk.

        All but the commit happens before the first await. Without changes, wait until all queued writes are on disk.
        Raises Conflict. Raises NotReady if the disk fails.
        """
        if self._closing:
            raise NotReady("the store is closing; nothing was changed")
        self._check(changes)
        # All objects are encoded before the first is queued, so that an exception queues none.
        records = [
            self._record_of(change, revision) for revision, change in enumerate(changes, self._last_assigned + 1)
        ]
        events = [self._queue(change, record) for change, record in zip(changes, records, strict=True)]
        if not events and not any(self._pending.values()):
            return ()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_retrieve_exception)
        self._queued.append(_QueuedWrite(events, done))
        self._wake.set()
        await asyncio.shield(done)
        return tuple(event.record.object for event in events)

    async def compact(self, revision: int) -> None:
        """Drop states that were replaced or deleted up to and including a revision."""
        self._cache.drop_history(revision)
        await self._compact_log()

    def _decoder(self, resource: GroupResource) -> type[Object] | Decoder:
        """Return how objects of a resource are decoded. A mapping may make a decoder when it is asked."""
        try:
            return self._types[resource]
        except KeyError:
            return Object

    def _record_of(self, change: Put | Delete, revision: int) -> Record:
        obj = with_revision(change.object if isinstance(change, Put) else change.last_state, revision)
        decode_as = self._decoder(change.key.resource) if obj.IS_STORED_IN_VERSIONS else type(obj)
        return Record(change.key, revision, msgspec.json.encode(obj), decode_as, obj)

    def _check(self, changes: Iterable[Put | Delete]) -> None:
        exists: dict[Key, bool] = {}
        for change in changes:
            key = change.key
            stored = self.get_uncommitted(key)
            if key in exists:
                # A second change of the same object in one write is based on the first one.
                if change.expect == 0 and exists[key]:
                    raise Conflict(key, stored)
            elif change.expect is not None and change.expect != (stored.revision if stored is not None else 0):
                raise Conflict(key, stored)
            exists[key] = isinstance(change, Put)

    def _queue(self, change: Put | Delete, record: Record) -> WatchEvent:
        self._last_assigned = record.revision
        previous = self.get_uncommitted(change.key)
        put_type = "ADDED" if previous is None else "MODIFIED"
        event = WatchEvent(put_type if isinstance(change, Put) else "DELETED", record, previous)
        self._pending[record.key.resource][record.key] = event
        return event

    async def _commit_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while not (self._closing and not self._queued):
            await self._wake.wait()
            self._wake.clear()
            batch, self._queued = self._queued, []
            log_rows = [_log_row(event) for write in batch for event in write.events]
            start = time.monotonic()
            try:
                if log_rows:
                    await loop.run_in_executor(self._thread, self._log.append, log_rows)
            except NotReady as error:
                self._abort(batch, error)
                self.write_problem = str(error)
                self._failed_transactions += 1
                continue
            if log_rows:
                self.write_problem = ""
                self._transaction_seconds.observe(time.monotonic() - start)
                self._written_revisions += len(log_rows)
            for write in batch:
                self._commit_done(write)
            if self._cache.take_compaction_due():
                try:
                    await self._compact_log()
                except NotReady as error:
                    log.warning("history not compacted", extra={"error": str(error)})

    def _commit_done(self, write: _QueuedWrite) -> None:
        for event in write.events:
            key = event.record.key
            if self._pending[key.resource].get(key) is event:
                del self._pending[key.resource][key]
            self._cache.add(event)
        if not write.done.done():
            write.done.set_result(None)

    async def _compact_log(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._log.compact, self._cache.compacted)

    def _event(self, log_row: LogRow) -> WatchEvent:
        key = Key(_group_resource(log_row.group, log_row.resource), log_row.namespace, log_row.name)
        previous = self.get(key)
        of = self._decoder(key.resource)
        data = with_null_times(log_row.data, of) if isinstance(of, type) else log_row.data
        record = Record(key, log_row.revision, data, of)
        return WatchEvent(
            "DELETED" if log_row.removed else "ADDED" if previous is None else "MODIFIED", record, previous
        )

    def _abort(self, batch: _Batch, error: NotReady) -> None:
        """Fail all queued writes, because those after the failed one may be based on it."""
        batch, self._queued = batch + self._queued, []
        self._pending.clear()
        self._last_assigned = self.revision
        log.error("write failed", extra={"error": str(error), "writes": len(batch)})
        for write in batch:
            if not write.done.done():
                write.done.set_exception(NotReady(str(error)))


def _record_after(event: WatchEvent) -> Record | None:
    return None if event.type == "DELETED" else event.record


@functools.cache
def _group_resource(group: str, resource: str) -> GroupResource:
    """Return the same value for all objects of a resource, which saves memory."""
    return GroupResource(group, resource)


def _retrieve_exception(done: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved, so that asyncio logs nothing if the writer was cancelled."""
    if not done.cancelled():
        done.exception()


def _log_row(event: WatchEvent) -> LogRow:
    (group, resource), namespace, name = event.record.key
    return LogRow(event.record.revision, group, resource, namespace, name, event.type == "DELETED", event.record.data)


def _read_all(path: Path) -> tuple[RevisionLog, int, list[LogRow]]:
    revision_log = RevisionLog(path)
    return revision_log, revision_log.compacted(), list(revision_log.rows())

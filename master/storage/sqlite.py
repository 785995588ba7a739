"""Objects in memory, an append-only log of revisions in SQLite (WAL, synchronous=FULL), group commit. Driver.

A row of the log is one revision of one object, or its deletion. `RevisionLog.append` returns when its transaction is on
disk, so acknowledged writes survive SIGKILL and power loss. All functions of `RevisionLog` are called from one thread,
which `SQLiteStorage` owns. Writes that arrive while the disk is busy are committed together. If the disk fails, that
transaction and all writes queued after it fail, and the state is as before.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from api.meta.types import Object
from master.storage.interface import (
    Compacted,
    Conflict,
    Delete,
    Key,
    Put,
    Record,
    Records,
    Watch,
    WatchEvent,
    WatchEvents,
    key_of,
    with_revision,
)
from reconcile.errors import NotReady, Refused

FORMAT = 1
"""Version of the schema, stored in the file as `user_version`."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS log (
    revision INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    removed INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS log_by_object ON log (kind, namespace, name, revision);
CREATE TABLE IF NOT EXISTS compaction (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), revision INTEGER NOT NULL);
INSERT OR IGNORE INTO compaction VALUES (1, 0);
"""


COMPACT_SQL = """
DELETE FROM log WHERE revision IN (
    SELECT old.revision FROM log AS newer JOIN log AS old
    ON old.kind = newer.kind AND old.namespace = newer.namespace AND old.name = newer.name
        AND old.revision < newer.revision
    WHERE newer.revision > ?1 AND newer.revision <= ?2
)
"""
"""Delete the states that were replaced since the last compaction. The cost depends on their number only."""


class LogRow(NamedTuple):
    """One row of the log. `data` is the object as JSON; for a deletion, its last state."""

    revision: int
    kind: str
    namespace: str
    name: str
    removed: bool
    data: bytes


class RevisionLog:
    """The open file. Raises NotReady if the disk fails; the transaction is then rolled back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise NotReady(f"store {path} cannot be opened: {error}") from error

    def _prepare(self) -> None:
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT):
            raise Refused(f"store {self._path} has format {found}; this master reads format {FORMAT}; left unchanged")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        # One process at a time, because a second master on the same file must not start.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.executescript(SCHEMA)
        if found != FORMAT:
            self._db.execute(f"PRAGMA user_version={FORMAT}")

    def compacted(self) -> int:
        """Return the newest compacted revision; 0 if there was no compaction."""
        revision: int = self._db.execute("SELECT revision FROM compaction").fetchone()[0]
        return revision

    def rows(self) -> Iterator[LogRow]:
        """Yield all rows in order of revisions."""
        query = "SELECT revision, kind, namespace, name, removed, data FROM log ORDER BY revision"
        for revision, kind, namespace, name, removed, data in self._db.execute(query):
            yield LogRow(revision, kind, namespace, name, bool(removed), data)

    def append(self, rows: Iterable[LogRow]) -> None:
        """Write all rows in one transaction. Return when they are on disk."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise NotReady(f"store {self._path} cannot be written: {error}; nothing was changed") from error

    def compact(self, revision: int) -> None:
        """Delete the rows of states that were replaced or deleted up to and including `revision`."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            last = self.compacted()
            self._db.execute(COMPACT_SQL, (last, revision))
            self._db.execute("DELETE FROM log WHERE revision > ? AND revision <= ? AND removed", (last, revision))
            self._db.execute("UPDATE compaction SET revision = ?", (revision,))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise NotReady(f"store {self._path} cannot be compacted: {error}; nothing was changed") from error

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Close the file."""
        self._db.close()


log = logging.getLogger(__name__)


class HistoryLimits(NamedTuple):
    """How much history stays: maximum number of events, and of bytes of their JSON."""

    events: int = 10_000
    size_bytes: int = 16 << 20


class ObjectTable:
    """The objects of one kind, sorted by namespace and name."""

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


class _QueuedWrite(NamedTuple):
    events: WatchEvents
    done: asyncio.Future[None]


_Batch = list[_QueuedWrite]


class SQLiteStorage:
    """A `Storage` over a SQLite file. Open it with `await SQLiteStorage.open(...)` and close it with `close()`."""

    def __init__(self, kinds: Iterable[type[Object]], limits: HistoryLimits) -> None:
        self._types: Mapping[str, type[Object]] = {kind.KIND: kind for kind in kinds}
        self._tables = {name: ObjectTable() for name in self._types}
        self._limits = limits
        self._history: deque[WatchEvent] = deque()
        self._history_size = 0
        self._compacted = 0
        self._dropped_events = 0
        self._dropped_bytes = 0
        self.revision = 0
        self._last_assigned = 0
        self._pending: dict[str, dict[Key, WatchEvent]] = {name: {} for name in self._types}
        """By kind: the newest queued event of each object."""
        self._queued: _Batch = []
        self._wake = asyncio.Event()
        self._watches: dict[str, set[Watch]] = {name: set() for name in self._types}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._log: RevisionLog | None = None
        self._writer: asyncio.Task[None] | None = None
        self._closing = False

    @classmethod
    async def open(
        cls,
        path: Path,
        kinds: Iterable[type[Object]],
        limits: HistoryLimits = HistoryLimits(),  # noqa: B008
    ) -> SQLiteStorage:
        """Read the whole file into memory. Raises NotReady (file unreadable, in use) and Refused (other format)."""
        storage = cls(kinds, limits)
        loop = asyncio.get_running_loop()
        try:
            storage._log = await loop.run_in_executor(storage._thread, RevisionLog, path)
            storage._compacted, rows = await loop.run_in_executor(storage._thread, _read_all, storage._log)
        except BaseException:
            storage._thread.shutdown()
            raise
        for row in rows:
            storage._apply(storage._event(row))
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
        if self._log is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._log.close)
        self._thread.shutdown()

    # --- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: Key) -> Record | None:
        """Return the durable state of an object; None if there is none."""
        return self._tables[key.kind].records.get((key.namespace, key.name))

    def get_uncommitted(self, key: Key) -> Record | None:
        """Return the state of an object after all queued writes. Decide writes by this state."""
        event = self._pending[key.kind].get(key)
        return self.get(key) if event is None else _record_after(event)

    def list(self, kind: str, namespace: str = "") -> Records:
        """Return the durable objects of a kind, of one namespace or of all, sorted by namespace and name."""
        return self._tables[kind].list(namespace)

    def list_uncommitted(self, kind: str, namespace: str = "") -> Records:
        """Return the objects of a kind after all queued writes, not sorted."""
        records = self._tables[kind].records
        durable = self.list(kind, namespace) if namespace else [*records.values()]
        queued = {key: _record_after(event) for key, event in self._pending[kind].items()}
        if not queued:
            return durable
        unchanged = [record for record in durable if record.key not in queued]
        return unchanged + [r for r in queued.values() if r is not None and namespace in ("", r.key.namespace)]

    def list_at(self, kind: str, namespace: str, revision: int) -> Records:
        """Return the objects of a kind as they were at a revision, sorted. Raises Compacted."""
        changed: dict[Key, Record | None] = {}
        for event in self.events_since(kind, revision):
            changed.setdefault(event.record.key, event.previous)
        current = self.list(kind, namespace)
        if not changed:
            return current
        past = (record for record in changed.values() if record is not None and namespace in ("", record.key.namespace))
        # The records that did not change are sorted already and the others are few, so sorting is almost linear.
        return sorted((*(record for record in current if record.key not in changed), *past), key=_sort_key)

    def events_since(self, kind: str, revision: int) -> WatchEvents:
        """Return the events of a kind after a revision, oldest first. Raises Compacted, also for a future revision."""
        if revision < self._compacted or revision > self.revision:
            raise Compacted(revision, self._compacted if revision < self._compacted else self.revision)
        events: WatchEvents = []
        for event in reversed(self._history):
            if event.record.revision <= revision:
                break
            if event.record.key.kind == kind:
                events.append(event)
        events.reverse()
        return events

    def watch(self, kind: str, callback: Watch) -> Callable[[], None]:
        """Call `callback` for every later event of a kind, in order. Return a function that ends the watch."""
        watches = self._watches[kind]
        watches.add(callback)
        return lambda: watches.discard(callback)

    # --- writing ---------------------------------------------------------------------------------------------------

    async def write(self, *changes: Put | Delete) -> tuple[Any, ...]:
        """Make all changes or none. Return the stored objects when they are on disk.

        All but the commit happens before the first await. Without changes, wait until all queued writes are on disk.
        Raises Conflict. Raises NotReady if the disk fails.
        """
        if self._closing:
            raise NotReady("the store is closing; nothing was changed")
        self._check(changes)
        events = [self._queue(change) for change in changes]
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
        while len(self._history) > 1 and self._history[0].record.revision <= revision:
            self._drop_oldest()
        await self._compact_log()

    def _check(self, changes: Iterable[Put | Delete]) -> None:
        exists: dict[Key, bool] = {}
        for change in changes:
            key = key_of(change.object if isinstance(change, Put) else change.last_state)
            found = self.get_uncommitted(key)
            if key in exists:
                # A second change of the same object in one write is based on the first one.
                if change.expect == 0 and exists[key]:
                    raise Conflict(key, found)
            elif change.expect is not None and change.expect != (found.revision if found is not None else 0):
                raise Conflict(key, found)
            exists[key] = isinstance(change, Put)

    def _queue(self, change: Put | Delete) -> WatchEvent:
        self._last_assigned += 1
        item = with_revision(change.object if isinstance(change, Put) else change.last_state, self._last_assigned)
        previous = self.get_uncommitted(key_of(item))
        record = Record(key_of(item), self._last_assigned, msgspec.json.encode(item), type(item), item)
        put_type = "ADDED" if previous is None else "MODIFIED"
        event = WatchEvent(put_type if isinstance(change, Put) else "DELETED", record, previous)
        self._pending[record.key.kind][record.key] = event
        return event

    async def _commit_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while not (self._closing and not self._queued):
            await self._wake.wait()
            self._wake.clear()
            batch, self._queued = self._queued, []
            rows = [_log_row(event) for write in batch for event in write.events]
            try:
                if rows:
                    await loop.run_in_executor(self._thread, self._append, rows)
            except NotReady as error:
                self._abort(batch, error)
                continue
            for write in batch:
                self._commit_done(write)
            if self._dropped_bytes > self._limits.size_bytes // 10 or self._dropped_events > self._limits.events // 10:
                await self._compact_history()

    def _append(self, rows: Sequence[LogRow]) -> None:
        assert self._log is not None
        self._log.append(rows)

    def _commit_done(self, write: _QueuedWrite) -> None:
        for event in write.events:
            key = event.record.key
            if self._pending[key.kind].get(key) is event:
                del self._pending[key.kind][key]
            self._apply(event)
            for callback in tuple(self._watches[key.kind]):
                callback(event)
            if event.previous is not None:
                event.previous.drop_decoded()
        if not write.done.done():
            write.done.set_result(None)

    def _apply(self, event: WatchEvent) -> None:
        """Add one event to the state that readers see. Events come in order of revisions."""
        table = self._tables[event.record.key.kind]
        if event.type == "DELETED":
            table.drop(event.record.key)
        else:
            table.put(event.record)
        self.revision = event.record.revision
        if self.revision <= self._compacted:
            return
        # The newest event always stays, because its row in the log holds the newest revision.
        self._history.append(event)
        self._history_size += len(event.record.data)
        while len(self._history) > 1 and (
            len(self._history) > self._limits.events or self._history_size > self._limits.size_bytes
        ):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._history.popleft()
        self._history_size -= len(oldest.record.data)
        self._compacted = oldest.record.revision
        self._dropped_events += 1
        self._dropped_bytes += len(oldest.record.data)

    async def _compact_history(self) -> None:
        """Compact the log. This is not done after each event, because it costs a commit, during which writes wait."""
        self._dropped_events = self._dropped_bytes = 0
        try:
            await self._compact_log()
        except NotReady as error:
            log.warning("history not compacted", extra={"error": str(error)})

    async def _compact_log(self) -> None:
        assert self._log is not None
        compact = self._log.compact
        await asyncio.get_running_loop().run_in_executor(self._thread, compact, self._compacted)

    def _event(self, row: LogRow) -> WatchEvent:
        key = Key(row.kind, row.namespace, row.name)
        previous = self.get(key)
        record = Record(key, row.revision, row.data, self._types[row.kind])
        return WatchEvent("DELETED" if row.removed else "ADDED" if previous is None else "MODIFIED", record, previous)

    def _abort(self, batch: _Batch, error: NotReady) -> None:
        """Fail all queued writes, because those after the failed one may be based on it."""
        batch, self._queued = batch + self._queued, []
        for events in self._pending.values():
            events.clear()
        self._last_assigned = self.revision
        log.error("write failed", extra={"error": str(error), "writes": len(batch)})
        for write in batch:
            if not write.done.done():
                write.done.set_exception(NotReady(str(error)))


def _record_after(event: WatchEvent) -> Record | None:
    return None if event.type == "DELETED" else event.record


def _sort_key(record: Record) -> tuple[str, str]:
    return record.key.namespace, record.key.name


def _retrieve_exception(done: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved, so that asyncio logs nothing if the writer was cancelled."""
    if not done.cancelled():
        done.exception()


def _log_row(event: WatchEvent) -> LogRow:
    kind, namespace, name = event.record.key
    return LogRow(event.record.revision, kind, namespace, name, event.type == "DELETED", event.record.data)


def _read_all(revision_log: RevisionLog) -> tuple[int, list[LogRow]]:
    return revision_log.compacted(), list(revision_log.rows())

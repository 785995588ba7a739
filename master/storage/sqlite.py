"""Driver: objects in memory, an append-only log of revisions in SQLite (WAL, synchronous=FULL), and group commit.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    Watch,
    WatchEvent,
    key_of,
    with_revision,
)
from reconcile.errors import NotReady, Refused

FORMAT = 1
"""Number of the layout below, kept in the file as `user_version`."""

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
"""What was replaced since the last time: its cost is that of the revisions forgotten, not of all objects."""


class LogRow(NamedTuple):
    """`data` is the object as JSON; of a removed object its last state."""

    revision: int
    kind: str
    namespace: str
    name: str
    removed: bool
    data: bytes


class RevisionLog:
    """The open file. Raises NotReady when the disk refuses (what was asked for is then wholly undone)."""

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
        # One writer at a time, for as long as the master lives: a second master on the same file must not start.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.executescript(SCHEMA)
        if found != FORMAT:
            self._db.execute(f"PRAGMA user_version={FORMAT}")

    def compacted(self) -> int:
        """The newest revision whose history is gone; 0 when all of it is there."""
        revision: int = self._db.execute("SELECT revision FROM compaction").fetchone()[0]
        return revision

    def rows(self) -> Iterator[LogRow]:
        """All rows in order of their revision."""
        query = "SELECT revision, kind, namespace, name, removed, data FROM log ORDER BY revision"
        for revision, kind, namespace, name, removed, data in self._db.execute(query):
            yield LogRow(revision, kind, namespace, name, bool(removed), data)

    def append(self, rows: Iterable[LogRow]) -> None:
        """Write all rows in one transaction, and return when they are on disk."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._undo()
            raise NotReady(f"store {self._path} cannot be written: {error}; nothing was changed") from error

    def compact(self, revision: int) -> None:
        """Forget what was replaced or removed up to and including `revision`."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            done = self.compacted()
            self._db.execute(COMPACT_SQL, (done, revision))
            self._db.execute("DELETE FROM log WHERE revision > ? AND revision <= ? AND removed", (done, revision))
            self._db.execute("UPDATE compaction SET revision = ?", (revision,))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._undo()
            raise NotReady(f"store {self._path} cannot be compacted: {error}; nothing was changed") from error

    def _undo(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Give the file back."""
        self._db.close()


log = logging.getLogger(__name__)


class HistoryLimits(NamedTuple):
    """How much history stays: at most so many events and so many bytes of JSON."""

    events: int = 10_000
    size: int = 16 << 20


class ObjectTable:
    """The objects of one kind, sorted by namespace and name."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], Record] = {}
        self._order: list[tuple[str, str]] = []

    def put(self, record: Record) -> None:
        """Add or replace an object."""
        place = (record.key.namespace, record.key.name)
        if place not in self.records:
            bisect.insort(self._order, place)
        self.records[place] = record

    def drop(self, key: Key) -> None:
        """Remove an object, if it is there."""
        place = (key.namespace, key.name)
        if self.records.pop(place, None) is not None:
            del self._order[bisect.bisect_left(self._order, place)]

    def scan(self, namespace: str) -> list[Record]:
        """Return the objects of one namespace, or all, sorted."""
        if not namespace:
            return [self.records[place] for place in self._order]
        first = bisect.bisect_left(self._order, (namespace, ""))
        last = bisect.bisect_left(self._order, (namespace + "\0", ""))
        return [self.records[place] for place in self._order[first:last]]


class _QueuedWrite(NamedTuple):
    events: list[WatchEvent]
    done: asyncio.Future[None]


class SQLiteStorage:
    """A `Store`: open with `await JournaledStore.open(...)`, close with `await store.close()`."""

    def __init__(self, kinds: Iterable[type[Object]], keep: HistoryLimits) -> None:
        self._types: Mapping[str, type[Object]] = {kind.KIND: kind for kind in kinds}
        self._tables = {name: ObjectTable() for name in self._types}
        self._keep = keep
        self._history: deque[WatchEvent] = deque()
        self._history_size = 0
        self._compacted = 0
        self._forgotten = 0
        self._forgotten_size = 0
        self.revision = 0
        self._given = 0
        self._pending: dict[str, dict[Key, WatchEvent]] = {name: {} for name in self._types}
        """By kind: the newest write of each object that is on its way to disk."""
        self._staged: list[_QueuedWrite] = []
        self._wanted = asyncio.Event()
        self._watches: dict[str, set[Watch]] = {name: set() for name in self._types}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._journal: RevisionLog | None = None
        self._writer: asyncio.Task[None] | None = None
        self._closing = False

    @classmethod
    async def open(
        cls,
        path: Path,
        kinds: Iterable[type[Object]],
        keep: HistoryLimits = HistoryLimits(),  # noqa: B008
    ) -> SQLiteStorage:
        """Read the whole file into memory. Raises NotReady (file unreadable, in use) and Refused (other format)."""
        store = cls(kinds, keep)
        loop = asyncio.get_running_loop()
        try:
            store._journal = await loop.run_in_executor(store._thread, RevisionLog, path)
            store._compacted, rows = await loop.run_in_executor(store._thread, _read_all, store._journal)
        except BaseException:
            store._thread.shutdown()
            raise
        for row in rows:
            store._settle(store._event(row))
        store._given = store.revision
        store._writer = asyncio.create_task(store._write_out(), name="store")
        return store

    async def run(self) -> None:
        """Return when closed; raise what ended the writing, if it is a bug."""
        if self._writer is not None:
            await asyncio.shield(self._writer)

    async def close(self) -> None:
        """Finish the writes on their way, then give the file back."""
        self._closing = True
        self._wanted.set()
        if self._writer is not None:
            await self._writer
        if self._journal is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._journal.close)
        self._thread.shutdown()

    # --- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: Key) -> Record | None:
        """What is on disk."""
        return self._tables[key.kind].records.get((key.namespace, key.name))

    def latest(self, key: Key) -> Record | None:
        """What will be on disk when the writes on their way are; read this to decide a write."""
        ahead = self._pending[key.kind].get(key)
        return self.get(key) if ahead is None else _record_after(ahead)

    def scan(self, kind: str, namespace: str = "") -> list[Record]:
        """What is on disk, sorted by namespace and name; all namespaces if none is named."""
        return self._tables[kind].scan(namespace)

    def scan_latest(self, kind: str, namespace: str = "") -> list[Record]:
        """As `scan`, with the writes on their way; not sorted."""
        records = self._tables[kind].records
        found = self.scan(kind, namespace) if namespace else list(records.values())
        ahead = {key: _record_after(event) for key, event in self._pending[kind].items()}
        if not ahead:
            return found
        kept = [record for record in found if record.key not in ahead]
        return kept + [r for r in ahead.values() if r is not None and namespace in ("", r.key.namespace)]

    def scan_at(self, kind: str, namespace: str, revision: int) -> list[Record]:
        """The objects as they were at a revision, sorted. Raises Compacted."""
        then: dict[Key, Record | None] = {}
        for event in self.since(kind, revision):
            then.setdefault(event.record.key, event.previous)
        now = self.scan(kind, namespace)
        if not then:
            return now
        past = (record for record in then.values() if record is not None and namespace in ("", record.key.namespace))
        # Two runs, each in order already but for the few of the past: this sorts in little more than one look at each.
        return sorted((*(record for record in now if record.key not in then), *past), key=_sort_key)

    def since(self, kind: str, revision: int) -> list[WatchEvent]:
        """The events of a kind after a revision, oldest first. Raises Compacted, also for revisions not given yet."""
        if revision < self._compacted or revision > self.revision:
            raise Compacted(revision, self._compacted if revision < self._compacted else self.revision)
        found: list[WatchEvent] = []
        for event in reversed(self._history):
            if event.record.revision <= revision:
                break
            if event.record.key.kind == kind:
                found.append(event)
        found.reverse()
        return found

    def watch(self, kind: str, tell: Watch) -> Callable[[], None]:
        """Call `tell` for every event of a kind from now on, in order; the answer ends it."""
        watches = self._watches[kind]
        watches.add(tell)
        return lambda: watches.discard(tell)

    # --- writing ---------------------------------------------------------------------------------------------------

    async def write(self, *changes: Put | Delete) -> tuple[Any, ...]:
        """Do all changes or none; returns the objects as kept when they are on disk.

        Everything up to the disk happens before the first wait. Raises Conflict, and NotReady when the disk refuses.
        With no changes it waits until all earlier writes are on disk.
        """
        if self._closing:
            raise NotReady("the store is closing; nothing was changed")
        self._check(changes)
        events = [self._stage(change) for change in changes]
        if not events and not any(self._pending.values()):
            return ()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_retrieve_exception)
        self._staged.append(_QueuedWrite(events, done))
        self._wanted.set()
        await asyncio.shield(done)
        return tuple(event.record.object for event in events)

    async def compact(self, revision: int) -> None:
        """As the interface says."""
        while len(self._history) > 1 and self._history[0].record.revision <= revision:
            self._forget_oldest()
        await self._compact_journal()

    def _check(self, changes: Iterable[Put | Delete]) -> None:
        ahead: dict[Key, bool] = {}
        for change in changes:
            key = key_of(change.object if isinstance(change, Put) else change.last)
            found = self.latest(key)
            if key in ahead:
                # A second change of the same object in one write rests on the first one.
                if change.expect == 0 and ahead[key]:
                    raise Conflict(key, found)
            elif change.expect is not None and change.expect != (found.revision if found is not None else 0):
                raise Conflict(key, found)
            ahead[key] = isinstance(change, Put)

    def _stage(self, change: Put | Delete) -> WatchEvent:
        self._given += 1
        item = with_revision(change.object if isinstance(change, Put) else change.last, self._given)
        previous = self.latest(key_of(item))
        record = Record(key_of(item), self._given, msgspec.json.encode(item), type(item), item)
        kept = "ADDED" if previous is None else "MODIFIED"
        event = WatchEvent(kept if isinstance(change, Put) else "DELETED", record, previous)
        self._pending[record.key.kind][record.key] = event
        return event

    async def _write_out(self) -> None:
        loop = asyncio.get_running_loop()
        while not (self._closing and not self._staged):
            await self._wanted.wait()
            self._wanted.clear()
            batch, self._staged = self._staged, []
            rows = [_log_row(event) for staged in batch for event in staged.events]
            try:
                if rows:
                    await loop.run_in_executor(self._thread, self._append, rows)
            except NotReady as error:
                self._fail(batch, error)
                continue
            for staged in batch:
                self._acknowledge(staged)
            if self._forgotten_size > self._keep.size // 10 or self._forgotten > self._keep.events // 10:
                await self._forget_on_disk()

    def _append(self, rows: list[LogRow]) -> None:
        assert self._journal is not None
        self._journal.append(rows)

    def _acknowledge(self, staged: _QueuedWrite) -> None:
        for event in staged.events:
            key = event.record.key
            if self._pending[key.kind].get(key) is event:
                del self._pending[key.kind][key]
            self._settle(event)
            for tell in tuple(self._watches[key.kind]):
                tell(event)
            if event.previous is not None:
                event.previous.slim()
        if not staged.done.done():
            staged.done.set_result(None)

    def _settle(self, event: WatchEvent) -> None:
        """Make one event, in order of revisions, part of what readers see."""
        table = self._tables[event.record.key.kind]
        if event.type == "DELETED":
            table.drop(event.record.key)
        else:
            table.put(event.record)
        self.revision = event.record.revision
        if self.revision <= self._compacted:
            return
        # The newest event always stays: its row in the file is what remembers how far revisions have come.
        self._history.append(event)
        self._history_size += len(event.record.data)
        while len(self._history) > 1 and (
            len(self._history) > self._keep.events or self._history_size > self._keep.size
        ):
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = self._history.popleft()
        self._history_size -= len(oldest.record.data)
        self._compacted = oldest.record.revision
        self._forgotten += 1
        self._forgotten_size += len(oldest.record.data)

    async def _forget_on_disk(self) -> None:
        """Not after each event: it costs a commit, during which writes wait."""
        self._forgotten = self._forgotten_size = 0
        try:
            await self._compact_journal()
        except NotReady as error:
            log.warning("store keeps old history", extra={"error": str(error)})

    async def _compact_journal(self) -> None:
        assert self._journal is not None
        compact = self._journal.compact
        await asyncio.get_running_loop().run_in_executor(self._thread, compact, self._compacted)

    def _event(self, row: LogRow) -> WatchEvent:
        key = Key(row.kind, row.namespace, row.name)
        previous = self.get(key)
        record = Record(key, row.revision, row.data, self._types[row.kind])
        return WatchEvent("DELETED" if row.removed else "ADDED" if previous is None else "MODIFIED", record, previous)

    def _fail(self, batch: list[_QueuedWrite], error: NotReady) -> None:
        """Writes decided after the failed ones may rest on them, so they fail too."""
        batch, self._staged = batch + self._staged, []
        for ahead in self._pending.values():
            ahead.clear()
        self._given = self.revision
        log.error("store refused a write", extra={"error": str(error), "writes": len(batch)})
        for staged in batch:
            if not staged.done.done():
                staged.done.set_exception(NotReady(str(error)))


def _record_after(event: WatchEvent) -> Record | None:
    return None if event.type == "DELETED" else event.record


def _sort_key(record: Record) -> tuple[str, str]:
    return record.key.namespace, record.key.name


def _retrieve_exception(done: asyncio.Future[None]) -> None:
    """A failure whose writer has gone away is no news."""
    if not done.cancelled():
        done.exception()


def _log_row(event: WatchEvent) -> LogRow:
    kind, namespace, name = event.record.key
    return LogRow(event.record.revision, kind, namespace, name, event.type == "DELETED", event.record.data)


def _read_all(journal: RevisionLog) -> tuple[int, list[LogRow]]:
    return journal.compacted(), list(journal.rows())

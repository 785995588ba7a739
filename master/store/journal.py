"""Driver: the store's file, one append-only table of revisions in SQLite (WAL, synchronous=FULL).

A row is one revision of one object, or its removal. A transaction is on disk before `append` returns, so what the
store acknowledged survives SIGKILL and power loss. Every function must be called from one and the same thread; the
store owns that thread.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from reconcile.errors import NotReady, Refused

FORMAT = 1
"""Number of the layout below, kept in the file as `user_version`."""

LAYOUT = """
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


FORGET = """
DELETE FROM log WHERE revision IN (
    SELECT old.revision FROM log AS newer JOIN log AS old
    ON old.kind = newer.kind AND old.namespace = newer.namespace AND old.name = newer.name
        AND old.revision < newer.revision
    WHERE newer.revision > ?1 AND newer.revision <= ?2
)
"""
"""What was replaced since the last time: its cost is that of the revisions forgotten, not of all objects."""


class Row(NamedTuple):
    """`data` is the object as JSON; of a removed object its last state."""

    revision: int
    kind: str
    namespace: str
    name: str
    removed: bool
    data: bytes


class Journal:
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
        self._db.executescript(LAYOUT)
        if found != FORMAT:
            self._db.execute(f"PRAGMA user_version={FORMAT}")

    def compacted(self) -> int:
        """The newest revision whose history is gone; 0 when all of it is there."""
        revision: int = self._db.execute("SELECT revision FROM compaction").fetchone()[0]
        return revision

    def rows(self) -> Iterator[Row]:
        """All rows in order of their revision."""
        query = "SELECT revision, kind, namespace, name, removed, data FROM log ORDER BY revision"
        for revision, kind, namespace, name, removed, data in self._db.execute(query):
            yield Row(revision, kind, namespace, name, bool(removed), data)

    def append(self, rows: Iterable[Row]) -> None:
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
            self._db.execute(FORGET, (done, revision))
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

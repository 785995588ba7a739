"""The append-only log of revisions in a SQLite file (WAL, synchronous=FULL). Driver.

A row is one revision of one object, or its deletion. `RevisionLog.append` returns when its transaction is on disk, so
acknowledged writes survive SIGKILL and power loss. No other module knows SQLite.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

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

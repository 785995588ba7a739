"""The append-only log of revisions in a SQLite file (WAL, synchronous=FULL). Driver.

A row is one revision of one object, or its deletion. `RevisionLog.append` returns when its transaction is on disk, so
acknowledged writes survive SIGKILL and power loss. A transaction that was interrupted is not in the file when it is
opened again. No other module knows SQLite.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from master.storage import format_1
from reconcile.errors import NotReady, Refused

log = logging.getLogger(__name__)

FORMAT = 2
"""Version of the schema, stored in the file as `user_version`. Format 1 is migrated when the file is opened."""

SCHEMA = (
    """
    CREATE TABLE log (
        revision INTEGER PRIMARY KEY,
        api_group TEXT NOT NULL,
        resource TEXT NOT NULL,
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        removed INTEGER NOT NULL,
        data BLOB NOT NULL
    )
    """,
    "CREATE INDEX log_by_object ON log (api_group, resource, namespace, name, revision)",
    """
    CREATE TABLE IF NOT EXISTS compaction (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1), revision INTEGER NOT NULL
    )
    """,
    "INSERT OR IGNORE INTO compaction VALUES (1, 0)",
)

COMPACT_SQL = """
DELETE FROM log WHERE revision IN (
    SELECT old.revision FROM log AS newer JOIN log AS old
    ON old.api_group = newer.api_group AND old.resource = newer.resource
        AND old.namespace = newer.namespace AND old.name = newer.name AND old.revision < newer.revision
    WHERE newer.revision > ?1 AND newer.revision <= ?2
)
"""
"""Delete the states that were replaced since the last compaction. The cost depends on their number only."""


class LogRow(NamedTuple):
    """One row of the log. `data` is the object as JSON; for a deletion, its last state."""

    revision: int
    group: str
    resource: str
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
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                text = f"store {path} is in use by another process; one master at a time is accepted for a stateDir"
                raise NotReady(text) from error
            raise NotReady(f"store {path} cannot be opened: {error}") from error

    def _prepare(self) -> None:
        """Check the format, and create or migrate the tables, in one transaction. Raises Refused."""
        self._check_format()
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        # One process at a time, because a second master on the same file must not start.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.execute("BEGIN EXCLUSIVE")
        try:
            # Read again under the lock: another master may have migrated the file meanwhile.
            migrated = self._create_tables() if self._check_format() != FORMAT else 0
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        if migrated:
            log.info("store migrated", extra={"file": str(self._path), "to_format": FORMAT, "revisions": migrated})

    def _check_format(self) -> int:
        version: int = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, 1, FORMAT):
            raise Refused(
                f"store {self._path} has format {version}; "
                f"this master reads format {FORMAT} and migrates format 1; left unchanged"
            )
        return version

    def _create_tables(self) -> int:
        """Create the tables. Return the number of revisions that were migrated from format 1."""
        migrated = 0
        # A file without a version may have a table, too: a master of format 1 was killed when it created the file.
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'log'").fetchone() is None:
            for statement in SCHEMA:
                self._db.execute(statement)
        else:
            try:
                migrated = format_1.migrate(self._db, SCHEMA)
            except Refused as error:
                raise Refused(f"store {self._path} {error}") from error
        self._db.execute(f"PRAGMA user_version={FORMAT}")
        return migrated

    def size_bytes(self) -> int:
        """Return the size of the file and its write-ahead log on disk."""
        return sum(path.stat().st_size for path in (self._path, Path(f"{self._path}-wal")) if path.exists())

    def free_bytes(self) -> int:
        """Return the free space of the disk that has the file."""
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize

    def compacted(self) -> int:
        """Return the newest compacted revision; 0 if there was no compaction."""
        revision: int = self._db.execute("SELECT revision FROM compaction").fetchone()[0]
        return revision

    def rows(self) -> Iterator[LogRow]:
        """Yield all rows in order of revisions."""
        query = "SELECT revision, api_group, resource, namespace, name, removed, data FROM log ORDER BY revision"
        for revision, group, resource, namespace, name, removed, data in self._db.execute(query):
            yield LogRow(revision, group, resource, namespace, name, bool(removed), data)

    def append(self, log_rows: Iterable[LogRow]) -> None:
        """Write all rows in one transaction. Return when they are on disk."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", log_rows)
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

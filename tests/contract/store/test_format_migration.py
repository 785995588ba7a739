"""A store of format 1 is migrated when it is opened: completely, or not at all if the process is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from api.core.config import ConfigMap
from api.core.pod import Pod
from api.meta.types import Object
from master.allocators import ALLOCATOR_CURSORS, AllocatorCursor
from master.resources.group_resource import GroupResource
from master.resources.scheme import BY_KIND, STORED_TYPES, group_resource
from master.storage.interface import Compacted, Key
from master.storage.revision_log import RevisionLog
from master.storage.sqlite import SQLiteStorage
from reconcile.errors import Refused
from tests.testbed.apiserver.changes import put

FORMAT_1 = Path(__file__).with_name("format_1.sql").read_text()
TYPES: Mapping[GroupResource, type[Object]] = {**STORED_TYPES, ALLOCATOR_CURSORS: AllocatorCursor}
KILLS = int(os.environ.get("PODLANE_SOAK_KILLS", "8"))
MANY_REVISIONS = 5000


def _run_sql(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)


def _query(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def _format(path: Path) -> int:
    version: int = _query(path, "PRAGMA user_version")[0][0]
    return version


def _revisions(path: Path) -> list[tuple[Any, ...]]:
    """Return the columns that both formats have, of all rows."""
    return _query(path, "SELECT revision, namespace, name, removed, data FROM log ORDER BY revision")


def _schema(path: Path) -> list[Any]:
    return sorted("".join(sql.split()) for (sql,) in _query(path, "SELECT sql FROM sqlite_master WHERE sql NOT NULL"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Create a store of format 1 with an object of each kind."""
    path = tmp_path / "store.db"
    _run_sql(path, FORMAT_1)
    return path


def test_migration_keeps_all_revisions_under_group_and_resource(path: Path) -> None:
    before, kinds = _revisions(path), dict(_query(path, "SELECT revision, kind FROM log"))
    RevisionLog(path).close()
    assert _format(path) == 2
    assert _revisions(path) == before
    for revision, group, resource, data in _query(path, "SELECT revision, api_group, resource, data FROM log"):
        api_version = json.loads(data)["apiVersion"]
        if kinds[revision] == "Cursor":
            assert (group, resource) == ALLOCATOR_CURSORS
        else:
            assert group == api_version.rpartition("/")[0]
            assert (group, resource) == BY_KIND[kinds[revision]].group_resource


def test_migrated_store_has_the_schema_of_a_new_one(path: Path, tmp_path: Path) -> None:
    RevisionLog(path).close()
    RevisionLog(tmp_path / "new.db").close()
    assert _schema(path) == _schema(tmp_path / "new.db")


async def test_migrated_store_serves_objects_history_and_cursors(path: Path) -> None:
    for _ in range(2):
        storage = await SQLiteStorage.open(path, TYPES)
        pods = storage.list(group_resource(Pod), "red")
        assert [(pod.key.name, pod.revision) for pod in pods] == [("one", 8), ("web", 72)]
        assert pods[1].object.metadata.labels == {"step": "1"}
        changed = storage.get(Key(group_resource(ConfigMap), "red", "changed"))
        assert changed is not None
        assert changed.object.metadata.labels == {"step": "1"}
        events = storage.events_since(group_resource(Pod), 69)
        assert [(event.type, event.record.key.name) for event in events] == [
            ("ADDED", "web"),
            ("ADDED", "db"),
            ("MODIFIED", "web"),
            ("DELETED", "db"),
        ]
        with pytest.raises(Compacted):
            storage.events_since(group_resource(Pod), 3)
        cursor = storage.get(Key(ALLOCATOR_CURSORS, "", "vnids"))
        assert cursor is not None
        assert cursor.object.next == 17
        assert storage.revision == 73
        await storage.close()
    storage = await SQLiteStorage.open(path, TYPES)
    (stored,) = await storage.write(put(Pod(metadata=pods[1].object.metadata, spec=pods[1].object.spec), 72))
    assert stored.metadata.resource_version == "74"
    await storage.close()


def test_migration_killed_before_any_statement_leaves_format_1(path: Path) -> None:
    before, statement = _revisions(path), 0
    while True:
        command = [sys.executable, "-m", "tests.testbed.apiserver.store_opener", str(path), str(statement)]
        killed = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == -signal.SIGKILL
        assert _revisions(path) == before
        if not killed:
            break
        assert _format(path) == 1
        statement += 1
    assert _format(path) == 2
    assert statement > 8


def test_migration_killed_at_any_time_is_complete_or_has_not_happened(tmp_path: Path) -> None:
    path, content = tmp_path / "store.db", {}
    seconds = 0.2
    for _ in range(KILLS):
        if not path.exists() or _format(path) == 2:
            path.unlink(missing_ok=True)
            content = _write_many(path)
        command = [sys.executable, "-m", "tests.testbed.apiserver.store_opener", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(random.uniform(0, seconds))
            process.kill()
        assert {revision: data for revision, _, _, _, data in _revisions(path)} == content
    RevisionLog(path).close()
    assert _format(path) == 2
    assert {revision: data for revision, _, _, _, data in _revisions(path)} == content


def _write_many(path: Path) -> dict[int, bytes]:
    """Write a store of format 1 with many revisions. Return their content."""
    _run_sql(path, FORMAT_1)
    with closing(sqlite3.connect(path)) as db, db:
        rows = [(100 + number, "Pod", "red", f"p{number}", 0, b"x" * 1000) for number in range(MANY_REVISIONS)]
        db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)", rows)
    return {revision: data for revision, _, _, _, data in _revisions(path)}


def test_migration_rejects_an_unknown_kind_and_changes_nothing(path: Path) -> None:
    _run_sql(path, "INSERT INTO log VALUES (74, 'Gadget', 'red', 'g', 0, CAST('{}' AS BLOB))")
    before, schema = _revisions(path), _schema(path)
    with pytest.raises(Refused, match="has format 1 with objects of unknown kinds: Gadget; left unchanged"):
        RevisionLog(path)
    assert (_format(path), _revisions(path), _schema(path)) == (1, before, schema)


def test_store_whose_creation_in_format_1_was_interrupted_is_migrated(path: Path, tmp_path: Path) -> None:
    _run_sql(path, "DELETE FROM log; DROP TABLE compaction; DROP INDEX log_by_object; PRAGMA user_version=0")
    RevisionLog(path).close()
    RevisionLog(tmp_path / "new.db").close()
    assert _format(path) == 2
    assert _schema(path) == _schema(tmp_path / "new.db")

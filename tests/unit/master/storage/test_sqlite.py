"""The SQLite storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api.core.node import Namespace
from api.core.services import Service, ServiceStatus
from api.meta.types import ObjectMeta, StatusCondition
from master.resources.scheme import STORED_TYPES, group_resource
from master.storage.interface import Compacted, Key, Record
from master.storage.revision_log import RevisionLog
from master.storage.sqlite import SQLiteStorage
from master.storage.watch_cache import HistoryLimits
from reconcile.errors import NotReady, Refused
from tests.testbed.apiserver.changes import delete, put

NAMESPACES = group_resource(Namespace)


def ns(name: str, **labels: str) -> Namespace:
    return Namespace(metadata=ObjectMeta(name=name, labels=labels))


def key(name: str) -> Key:
    return Key(NAMESPACES, "", name)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    store = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    yield store
    await store.close()


async def reopened(path: Path, keep: HistoryLimits = HistoryLimits()) -> SQLiteStorage:  # noqa: B008
    return await SQLiteStorage.open(path / "store.db", STORED_TYPES, keep)


def names(records: list[Record]) -> list[str]:
    return [record.key.name for record in records]


async def test_compaction_removes_history_on_disk(tmp_path: Path) -> None:
    keep = HistoryLimits(events=10)
    store = await reopened(tmp_path, keep)
    await store.write(put(ns("old")), put(ns("gone")), delete(ns("gone")))
    for number in range(30):
        await store.write(put(ns("a", n=str(number))))
    await store.write()
    with pytest.raises(Compacted):
        store.events_since(NAMESPACES, 5)
    assert len(store.events_since(NAMESPACES, 23)) == 10
    await store.close()

    journal = RevisionLog(tmp_path / "store.db")
    rows = [(log_row.name, log_row.revision) for log_row in journal.rows()]
    assert journal.compacted() >= 22
    assert ("old", 1) in rows
    assert not [record for record in rows if record[0] == "gone"]
    assert len(rows) < 15
    journal.close()

    store = await reopened(tmp_path, keep)
    assert names(store.list(NAMESPACES)) == ["a", "old"]
    assert store.revision == 33
    with pytest.raises(Compacted) as expired:
        store.events_since(NAMESPACES, 5)
    assert str(expired.value).startswith("too old resource version: 5 (")
    await store.close()


async def test_revision_survives_restart_after_a_delete(tmp_path: Path) -> None:
    store = await reopened(tmp_path, HistoryLimits(events=1))
    for _ in range(5):
        await store.write(put(ns("a")))
        await store.write(delete(ns("a")))
    await store.close()
    store = await reopened(tmp_path, HistoryLimits(events=1))
    assert store.revision == 10
    await store.close()


async def test_disk_error_fails_pending_writes_only(store: SQLiteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.write(put(ns("a")))

    def refuse(_: object, __: object) -> None:
        raise NotReady("store: database or disk is full; nothing was changed")

    with monkeypatch.context() as patched:
        patched.setattr(RevisionLog, "append", refuse)
        first = asyncio.create_task(store.write(put(ns("a", x="1"))))
        second = asyncio.create_task(store.write(put(ns("b"))))
        answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(answer) for answer in answers] == [NotReady, NotReady]
    assert names(store.list_uncommitted(NAMESPACES)) == ["a"]
    latest = store.get_uncommitted(key("a"))
    assert latest is not None
    assert latest.object.metadata.labels == {}
    (stored,) = await store.write(put(ns("b"), expect=0))
    assert stored.metadata.resource_version == "2"


async def test_other_store_format_and_second_master_are_rejected(tmp_path: Path) -> None:
    store = await reopened(tmp_path)
    await store.write(put(ns("a")))
    await store.close()
    journal = RevisionLog(tmp_path / "store.db")
    journal._db.execute("PRAGMA user_version=99")
    journal.close()
    with pytest.raises(Refused, match="has format 99; this master reads format 2 and migrates format 1"):
        await reopened(tmp_path)


async def test_time_that_is_an_empty_text_is_null_after_reopening(tmp_path: Path) -> None:
    condition = StatusCondition(type="Ready", status="True", last_transition_time="")
    service = Service(metadata=ObjectMeta(name="web", namespace="shop"), status=ServiceStatus(conditions=(condition,)))
    store = await reopened(tmp_path)
    await store.write(put(service))
    await store.close()
    store = await reopened(tmp_path)
    (record,) = store.list(group_resource(Service))
    await store.close()
    assert b'"lastTransitionTime":null' in record.data
    assert record.object.status.conditions[0].last_transition_time is None

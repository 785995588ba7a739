from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api.kinds import KINDS
from api.objects import Namespace, Node, ObjectMeta
from master.journal import Journal
from master.records import Event, Expired, Key, Mismatch, Put, Record, Remove
from master.store import Keep, Store
from reconcile.errors import NotReady, Refused


def ns(name: str, **labels: str) -> Namespace:
    return Namespace(metadata=ObjectMeta(name=name, labels=labels))


def key(name: str) -> Key:
    return Key("Namespace", "", name)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path / "store.db", KINDS)
    yield store
    await store.close()


async def reopened(path: Path, keep: Keep = Keep()) -> Store:  # noqa: B008
    return await Store.open(path / "store.db", KINDS, keep)


def names(records: list[Record]) -> list[str]:
    return [record.key.name for record in records]


def told(events: list[Event]) -> list[tuple[str, str, int]]:
    return [(event.type, event.record.key.name, event.record.revision) for event in events]


async def test_a_write_gets_the_next_revision_and_is_read_back(store: Store) -> None:
    (one,) = await store.write(Put(ns("a", x="1")))
    (two,) = await store.write(Put(ns("b")))
    assert (one.metadata.resource_version, two.metadata.resource_version) == ("1", "2")
    record = store.get(key("a"))
    assert record is not None
    assert record.object == one
    assert b'"resourceVersion":"1"' in record.data
    assert store.revision == 2


async def test_a_list_is_sorted_and_knows_namespaces(store: Store) -> None:
    await store.write(*(Put(ns(name)) for name in "cab"))
    assert names(store.scan("Namespace")) == ["a", "b", "c"]
    assert names(store.scan("Node")) == []


async def test_compare_and_swap(store: Store) -> None:
    await store.write(Put(ns("a"), expect=0))
    with pytest.raises(Mismatch):
        await store.write(Put(ns("a"), expect=0))
    with pytest.raises(Mismatch):
        await store.write(Put(ns("a", x="1"), expect=7))
    await store.write(Put(ns("a", x="1"), expect=1))
    with pytest.raises(Mismatch):
        await store.write(Remove(ns("a"), expect=1))
    with pytest.raises(Mismatch):
        await store.write(Put(ns("b"), expect=3))
    await store.write(Remove(ns("a"), expect=2))
    assert store.get(key("a")) is None
    assert store.revision == 3


async def test_all_changes_of_a_write_or_none(store: Store) -> None:
    with pytest.raises(Mismatch):
        await store.write(Put(ns("a")), Put(ns("b"), expect=5))
    assert store.scan("Namespace") == []
    assert store.revision == 0
    await store.write(Put(ns("a")), Remove(ns("a")), Put(ns("a", x="2"), expect=0))
    assert store.revision == 3
    with pytest.raises(Mismatch):
        await store.write(Put(ns("c")), Put(ns("c"), expect=0))


async def test_readers_see_a_write_only_when_it_is_on_disk(store: Store) -> None:
    writing = asyncio.create_task(store.write(Put(ns("a"))))
    await asyncio.sleep(0)
    assert store.get(key("a")) is None
    assert store.revision == 0
    latest = store.latest(key("a"))
    assert latest is not None
    assert names(store.scan_latest("Namespace")) == ["a"]
    await store.write()  # Nothing of its own: waits for what is on its way.
    assert store.get(key("a")) is latest
    await writing


async def test_writers_that_read_the_latest_never_conflict(store: Store) -> None:
    await store.write(Put(ns("a", n="0")))

    async def count() -> None:
        record = store.latest(key("a"))
        assert record is not None
        number = int(record.object.metadata.labels["n"]) + 1
        await store.write(Put(ns("a", n=str(number)), expect=record.revision))

    await asyncio.gather(*(count() for _ in range(50)))
    record = store.get(key("a"))
    assert record is not None
    assert record.object.metadata.labels["n"] == "50"


async def test_watches_are_told_in_order_and_can_end(store: Store) -> None:
    events: list[Event] = []
    end = store.watch("Namespace", events.append)
    await store.write(Put(ns("a")))
    await store.write(Put(ns("a", x="1")), Put(Node(metadata=ObjectMeta(name="n"))))
    await store.write(Remove(ns("a", x="1")))
    assert told(events) == [("ADDED", "a", 1), ("MODIFIED", "a", 2), ("DELETED", "a", 4)]
    assert events[1].previous is events[0].record
    assert events[2].record.object.metadata.resource_version == "4"
    end()
    await store.write(Put(ns("b")))
    assert len(events) == 3


async def test_history_and_the_state_at_a_revision(store: Store) -> None:
    await store.write(Put(ns("a")), Put(ns("b")))
    await store.write(Put(ns("a", x="1")))
    await store.write(Remove(ns("b")), Put(ns("c")))
    assert told(store.since("Namespace", 2)) == [("MODIFIED", "a", 3), ("DELETED", "b", 4), ("ADDED", "c", 5)]
    assert names(store.scan_at("Namespace", "", 2)) == ["a", "b"]
    assert names(store.scan_at("Namespace", "", 4)) == ["a"]
    assert store.scan_at("Namespace", "", 2)[0].object.metadata.labels == {}
    assert store.scan_at("Namespace", "", 3)[0].object.metadata.labels == {"x": "1"}
    assert store.scan_at("Namespace", "", 0) == []


async def test_a_revision_that_was_not_given_yet_is_expired_too(store: Store) -> None:
    with pytest.raises(Expired):
        store.since("Namespace", 1)


async def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    store = await reopened(tmp_path)
    await store.write(Put(ns("a")), Put(ns("b")))
    await store.write(Put(ns("a", x="1")), Remove(ns("b")))
    before = [(record.key, record.revision, record.data) for record in store.scan("Namespace")]
    history = told(store.since("Namespace", 1))
    await store.close()
    store = await reopened(tmp_path)
    assert [(record.key, record.revision, record.data) for record in store.scan("Namespace")] == before
    assert told(store.since("Namespace", 1)) == history
    assert store.revision == 4
    (item,) = await store.write(Put(ns("c")))
    assert item.metadata.resource_version == "5"
    await store.close()


async def test_old_history_is_forgotten_on_disk_too(tmp_path: Path) -> None:
    keep = Keep(events=10)
    store = await reopened(tmp_path, keep)
    await store.write(Put(ns("old")), Put(ns("gone")), Remove(ns("gone")))
    for number in range(30):
        await store.write(Put(ns("a", n=str(number))))
    await store.write()
    with pytest.raises(Expired):
        store.since("Namespace", 5)
    assert len(store.since("Namespace", 23)) == 10
    await store.close()

    journal = Journal(tmp_path / "store.db")
    rows = [(row.name, row.revision) for row in journal.rows()]
    assert journal.compacted() >= 22
    assert ("old", 1) in rows
    assert not [row for row in rows if row[0] == "gone"]
    assert len(rows) < 15
    journal.close()

    store = await reopened(tmp_path, keep)
    assert names(store.scan("Namespace")) == ["a", "old"]
    assert store.revision == 33
    with pytest.raises(Expired) as expired:
        store.since("Namespace", 5)
    assert str(expired.value).startswith("too old resource version: 5 (")
    await store.close()


async def test_the_revision_is_remembered_even_if_the_last_write_removed(tmp_path: Path) -> None:
    store = await reopened(tmp_path, Keep(events=1))
    for _ in range(5):
        await store.write(Put(ns("a")))
        await store.write(Remove(ns("a")))
    await store.close()
    store = await reopened(tmp_path, Keep(events=1))
    assert store.revision == 10
    await store.close()


async def test_a_disk_that_refuses_fails_what_was_on_its_way_and_nothing_else(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.write(Put(ns("a")))

    def refuse(_: object, __: object) -> None:
        raise NotReady("store: database or disk is full; nothing was changed")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", refuse)
        first = asyncio.create_task(store.write(Put(ns("a", x="1"))))
        second = asyncio.create_task(store.write(Put(ns("b"))))
        answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(answer) for answer in answers] == [NotReady, NotReady]
    assert names(store.scan_latest("Namespace")) == ["a"]
    latest = store.latest(key("a"))
    assert latest is not None
    assert latest.object.metadata.labels == {}
    (item,) = await store.write(Put(ns("b"), expect=0))
    assert item.metadata.resource_version == "2"


async def test_another_format_is_refused_and_a_second_master_too(tmp_path: Path) -> None:
    store = await reopened(tmp_path)
    await store.write(Put(ns("a")))
    await store.close()
    journal = Journal(tmp_path / "store.db")
    journal._db.execute("PRAGMA user_version=99")
    journal.close()
    with pytest.raises(Refused, match="has format 99; this master reads format 1"):
        await reopened(tmp_path)


async def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    store = await reopened(tmp_path)
    writing = asyncio.create_task(store.write(Put(ns("a"))))
    await asyncio.sleep(0)
    await store.close()
    await writing
    with pytest.raises(NotReady):
        await store.write(Put(ns("b")))
    store = await reopened(tmp_path)
    assert names(store.scan("Namespace")) == ["a"]
    await store.close()

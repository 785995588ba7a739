"""The contract of every store: the same cases for each row of STORES."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.core.config import Secret
from api.core.node import Namespace, Node
from api.meta.types import Object, ObjectMeta
from master.resources.group_resource import GroupResource
from master.resources.scheme import STORED_TYPES, group_resource
from master.storage.interface import Compacted, Conflict, Delete, Key, Put, Record, Storage, WatchEvent
from master.storage.sqlite import SQLiteStorage
from reconcile.errors import NotReady
from tests.testbed.apiserver.changes import delete, put

NAMESPACES = group_resource(Namespace)
SECRETS = group_resource(Secret)
NODES = group_resource(Node)

Opener = Callable[[Path], Awaitable[Storage]]
"""Opens the store that is kept in a directory, the first time or again."""


async def _journaled(root: Path) -> Storage:
    return await SQLiteStorage.open(root / "store.db", STORED_TYPES)


STORES: dict[str, Opener] = {"journaled": _journaled}


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest) -> Opener:
    return STORES[request.param]


@pytest.fixture
async def store(opener: Opener, tmp_path: Path) -> AsyncIterator[Storage]:
    store = await opener(tmp_path)
    yield store
    await store.close()


def ns(name: str, **labels: str) -> Namespace:
    return Namespace(metadata=ObjectMeta(name=name, labels=labels))


def key(name: str) -> Key:
    return Key(NAMESPACES, "", name)


def names(records: list[Record]) -> list[str]:
    return [record.key.name for record in records]


def summaries(events: list[WatchEvent]) -> list[tuple[str, str, int]]:
    return [(event.type, event.record.key.name, event.record.revision) for event in events]


async def test_write_gets_the_next_revision_and_is_read_back(store: Storage) -> None:
    (stored,) = await store.write(put(ns("a", x="1")))
    (two,) = await store.write(put(ns("b")))
    assert (stored.metadata.resource_version, two.metadata.resource_version) == ("1", "2")
    record = store.get(key("a"))
    assert record is not None
    assert record.object == stored
    assert b'"resourceVersion":"1"' in record.data
    assert store.revision == 2


async def test_list_is_sorted_and_filters_by_namespace(store: Storage) -> None:
    await store.write(*(put(ns(name)) for name in "cab"))
    assert names(store.list(NAMESPACES)) == ["a", "b", "c"]
    assert names(store.list(NODES)) == []


async def test_write_with_an_outdated_revision_conflicts(store: Storage) -> None:
    await store.write(put(ns("a"), expect=0))
    with pytest.raises(Conflict):
        await store.write(put(ns("a"), expect=0))
    with pytest.raises(Conflict):
        await store.write(put(ns("a", x="1"), expect=7))
    await store.write(put(ns("a", x="1"), expect=1))
    with pytest.raises(Conflict):
        await store.write(delete(ns("a"), expect=1))
    with pytest.raises(Conflict):
        await store.write(put(ns("b"), expect=3))
    await store.write(delete(ns("a"), expect=2))
    assert store.get(key("a")) is None
    assert store.revision == 3


async def test_write_applies_all_changes_or_none(store: Storage) -> None:
    with pytest.raises(Conflict):
        await store.write(put(ns("a")), put(ns("b"), expect=5))
    assert store.list(NAMESPACES) == []
    assert store.revision == 0
    await store.write(put(ns("a")), delete(ns("a")), put(ns("a", x="2"), expect=0))
    assert store.revision == 3
    with pytest.raises(Conflict):
        await store.write(put(ns("c")), put(ns("c"), expect=0))


async def test_write_is_visible_only_when_durable(store: Storage) -> None:
    writing = asyncio.create_task(store.write(put(ns("a"))))
    await asyncio.sleep(0)
    assert store.get(key("a")) is None
    assert store.revision == 0
    latest = store.get_uncommitted(key("a"))
    assert latest is not None
    assert names(store.list_uncommitted(NAMESPACES)) == ["a"]
    await store.write()  # Nothing of its own: waits for what is on its way.
    assert store.get(key("a")) is latest
    await writing


async def test_writers_that_read_the_latest_revision_never_conflict(store: Storage) -> None:
    await store.write(put(ns("a", n="0")))

    async def count() -> None:
        record = store.get_uncommitted(key("a"))
        assert record is not None
        number = int(record.object.metadata.labels["n"]) + 1
        await store.write(put(ns("a", n=str(number)), expect=record.revision))

    await asyncio.gather(*(count() for _ in range(50)))
    record = store.get(key("a"))
    assert record is not None
    assert record.object.metadata.labels["n"] == "50"


async def test_watch_delivers_changes_in_order_and_can_be_closed(store: Storage) -> None:
    events: list[WatchEvent] = []
    end = store.watch(NAMESPACES, events.append)
    await store.write(put(ns("a")))
    await store.write(put(ns("a", x="1")), put(Node(metadata=ObjectMeta(name="n"))))
    await store.write(delete(ns("a", x="1")))
    assert summaries(events) == [("ADDED", "a", 1), ("MODIFIED", "a", 2), ("DELETED", "a", 4)]
    assert events[1].previous is events[0].record
    assert events[2].record.object.metadata.resource_version == "4"
    end()
    await store.write(put(ns("b")))
    assert len(events) == 3


async def test_an_exception_in_a_watch_stops_neither_other_watches_nor_writes(store: Storage) -> None:
    def fail(event: WatchEvent) -> None:
        raise ValueError(event.record.key)

    seen: list[str] = []
    for callback in (fail, lambda event: seen.append(event.record.key.name), fail):
        store.watch(NAMESPACES, callback)
    await store.write(put(ns("a")))
    await store.write(put(ns("b")))
    assert seen == names(store.list(NAMESPACES)) == ["a", "b"]


async def test_a_write_with_an_object_that_cannot_be_encoded_changes_nothing(store: Storage) -> None:
    with pytest.raises(UnicodeEncodeError):
        await store.write(put(ns("a")), put(ns("b", half="\ud800")))
    assert (store.get_uncommitted(key("a")), store.revision) == (None, 0)
    await store.write(put(ns("a")))
    assert names(store.list(NAMESPACES)) == ["a"]


async def test_history_and_past_state_are_read_by_revision(store: Storage) -> None:
    await store.write(put(ns("a")), put(ns("b")))
    await store.write(put(ns("a", x="1")))
    await store.write(delete(ns("b")), put(ns("c")))
    assert summaries(store.events_since(NAMESPACES, 2)) == [
        ("MODIFIED", "a", 3),
        ("DELETED", "b", 4),
        ("ADDED", "c", 5),
    ]
    assert names(store.list_at(NAMESPACES, "", 2)) == ["a", "b"]
    assert names(store.list_at(NAMESPACES, "", 4)) == ["a"]
    assert store.list_at(NAMESPACES, "", 2)[0].object.metadata.labels == {}
    assert store.list_at(NAMESPACES, "", 3)[0].object.metadata.labels == {"x": "1"}
    assert store.list_at(NAMESPACES, "", 0) == []


async def test_future_revision_is_reported_as_expired(store: Storage) -> None:
    with pytest.raises(Compacted):
        store.events_since(NAMESPACES, 1)


async def test_reopened_store_has_every_object(opener: Opener, tmp_path: Path) -> None:
    store = await opener(tmp_path)
    await store.write(put(ns("a")), put(ns("b")))
    await store.write(put(ns("a", x="1")), delete(ns("b")))
    before = [(record.key, record.revision, record.data) for record in store.list(NAMESPACES)]
    history = summaries(store.events_since(NAMESPACES, 1))
    await store.close()
    store = await opener(tmp_path)
    assert [(record.key, record.revision, record.data) for record in store.list(NAMESPACES)] == before
    assert summaries(store.events_since(NAMESPACES, 1)) == history
    assert store.revision == 4
    (stored,) = await store.write(put(ns("c")))
    assert stored.metadata.resource_version == "5"
    await store.close()


async def test_closed_store_rejects_writes(opener: Opener, tmp_path: Path) -> None:
    store = await opener(tmp_path)
    writing = asyncio.create_task(store.write(put(ns("a"))))
    await asyncio.sleep(0)
    await store.close()
    await writing
    with pytest.raises(NotReady):
        await store.write(put(ns("b")))
    await store.run()
    store = await opener(tmp_path)
    assert names(store.list(NAMESPACES)) == ["a"]
    await store.close()


async def test_compacted_history_is_gone_for_good(opener: Opener, tmp_path: Path) -> None:
    store = await opener(tmp_path)
    await store.write(put(ns("old")), put(ns("gone")), delete(ns("gone")))
    for number in range(5):
        await store.write(put(ns("a", n=str(number))))
    await store.compact(6)
    for _ in range(2):
        assert summaries(store.events_since(NAMESPACES, 6)) == [("MODIFIED", "a", 7), ("MODIFIED", "a", 8)]
        assert names(store.list_at(NAMESPACES, "", 6)) == ["a", "old"]
        with pytest.raises(Compacted) as expired:
            store.events_since(NAMESPACES, 5)
        assert str(expired.value) == "too old resource version: 5 (6)"
        with pytest.raises(Compacted):
            store.list_at(NAMESPACES, "", 3)
        await store.close()
        store = await opener(tmp_path)
    await store.close()


async def test_revision_counter_survives_full_compaction(opener: Opener, tmp_path: Path) -> None:
    store = await opener(tmp_path)
    await store.write(put(ns("a")))
    await store.write(delete(ns("a")))
    await store.compact(2)
    await store.compact(100)
    await store.close()
    store = await opener(tmp_path)
    assert store.revision == 2
    assert names(store.list(NAMESPACES)) == []
    (stored,) = await store.write(put(ns("a"), expect=0))
    assert stored.metadata.resource_version == "3"
    await store.close()


class ForeignNamespace(Object, frozen=True):
    """A kind with the name of a built-in kind, in another group; the store has no type for its resource."""

    API_VERSION = "example.com/v1"
    KIND = "Namespace"
    PLURAL = "namespaces"

    size: int = 0


FOREIGN_NAMESPACES = GroupResource("example.com", "namespaces")


async def test_kinds_of_one_name_in_two_groups_are_stored_apart(opener: Opener, tmp_path: Path) -> None:
    store = await opener(tmp_path)
    foreign, events = ForeignNamespace(metadata=ObjectMeta(name="a"), size=3), list[WatchEvent]()
    store.watch(NAMESPACES, events.append)
    await store.write(put(ns("a"), expect=0), Put(Key.of(FOREIGN_NAMESPACES, foreign), foreign, expect=0))
    assert summaries(events) == [("ADDED", "a", 1)]
    for _ in range(2):
        (record,) = store.list(FOREIGN_NAMESPACES)
        assert (record.key, record.revision) == (Key(FOREIGN_NAMESPACES, "", "a"), 2)
        assert b'"apiVersion":"example.com/v1","kind":"Namespace"' in record.data
        assert b'"size":3' in record.data
        assert record.object.metadata.resource_version == "2"
        assert [entry.revision for entry in store.list(NAMESPACES)] == [1]
        assert summaries(store.events_since(FOREIGN_NAMESPACES, 0)) == [("ADDED", "a", 2)]
        await store.close()
        store = await opener(tmp_path)
    await store.close()


# --- against a model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """A write that labels an object, or deletes it if the label is empty. `right` is True if its expectation is."""

    key: tuple[str, str]
    label: str
    right: bool


@dataclass(frozen=True, slots=True)
class Compact:
    """Everything but so many of the newest revisions."""

    left: int


@dataclass(frozen=True, slots=True)
class Reopen:
    """Close, and open again."""


STEPS = st.lists(
    st.one_of(
        st.lists(
            st.builds(
                Write,
                st.tuples(st.sampled_from(["one", "two"]), st.sampled_from("abc")),
                st.sampled_from(["", "x", "y"]),
                st.sampled_from([True, True, True, False]),
            ),
            min_size=1,
            max_size=3,
            unique_by=lambda write: write.key,
        ),
        st.builds(Compact, st.integers(0, 6)),
        st.just(Reopen()),
    ),
    max_size=12,
)
State = dict[tuple[str, str], tuple[int, str]]
"""By place: revision and label."""


class Model:
    """The states after each revision, and the events that lead from one to the next."""

    def __init__(self) -> None:
        self.states: list[State] = [{}]
        self.events: list[tuple[str, str, int]] = []
        self.compacted = 0

    def changes(self, writes: list[Write]) -> tuple[list[Put | Delete], bool]:
        """Return the changes for the store, and whether it must accept them. Missing objects are not deleted."""
        before = self.states[-1]
        requested = [write for write in writes if write.label or write.key in before]
        accepted = all(write.right for write in requested)
        changes: list[Put | Delete] = []
        for write in requested:
            namespace, name = write.key
            secret = Secret(metadata=ObjectMeta(name=name, namespace=namespace, labels={"l": write.label}))
            expect = before.get(write.key, (0, ""))[0] + (0 if write.right else 1)
            changes.append(put(secret, expect) if write.label else delete(secret, expect))
            if accepted:
                self._take(write, write.key in before)
        return changes, accepted

    def _take(self, write: Write, there: bool) -> None:
        revision, after = len(self.events) + 1, dict(self.states[-1])
        kind = "DELETED" if not write.label else "MODIFIED" if there else "ADDED"
        self.events.append((kind, write.key[1], revision))
        after.pop(write.key, None)
        if write.label:
            after[write.key] = (revision, write.label)
        self.states.append(after)

    def compact(self, left: int) -> int:
        """Compact the model. The newest event stays always."""
        revision = max(0, len(self.events) - left)
        self.compacted = max(self.compacted, min(revision, len(self.events) - 1), 0)
        return revision

    def check(self, store: Storage) -> None:
        """Compare every revision with the store, by lists and by events."""
        assert store.revision == len(self.events)
        for revision in range(len(self.events) + 2):
            if revision < self.compacted or revision > len(self.events):
                with pytest.raises(Compacted):
                    store.events_since(SECRETS, revision)
                with pytest.raises(Compacted):
                    store.list_at(SECRETS, "", revision)
                continue
            assert summaries(store.events_since(SECRETS, revision)) == self.events[revision:]
            for namespace in ("", "one"):
                actual = [
                    ((record.key.namespace, record.key.name), (record.revision, record.object.metadata.labels["l"]))
                    for record in store.list_at(SECRETS, namespace, revision)
                ]
                assert actual == [
                    entry for entry in sorted(self.states[revision].items()) if namespace in ("", entry[0][0])
                ]


async def _compare(opener: Opener, root: Path, steps: list[list[Write] | Compact | Reopen]) -> None:
    store, model = await opener(root), Model()
    watched: list[WatchEvent] = []
    store.watch(SECRETS, watched.append)
    for step in steps:
        if isinstance(step, Compact):
            await store.compact(model.compact(step.left))
        elif isinstance(step, Reopen):
            await store.close()
            store = await opener(root)
            store.watch(SECRETS, watched.append)
        else:
            changes, accepted = model.changes(step)
            try:
                await store.write(*changes)
            except Conflict:
                assert not accepted
            else:
                assert accepted
        model.check(store)
    assert summaries(watched) == model.events
    await store.close()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_store_agrees_with_the_model(
    opener: Opener, tmp_path_factory: pytest.TempPathFactory, steps: list[list[Write] | Compact | Reopen]
) -> None:
    asyncio.run(_compare(opener, tmp_path_factory.mktemp("model"), steps))

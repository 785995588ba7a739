"""The watch cache, fed without a database."""

from __future__ import annotations

import pytest

from master.resources.group_resource import GroupResource
from master.storage.interface import Compacted, Key, Record, WatchEvent
from master.storage.watch_cache import HistoryLimits, WatchCache
from tests.unit.master.examples import namespace

WIDGETS, GADGETS = GroupResource("example.com", "widgets"), GroupResource("", "gadgets")


class Feed:
    """A backend that adds events with the next revision to a cache."""

    def __init__(self, limits: HistoryLimits = HistoryLimits(), compacted: int = 0) -> None:  # noqa: B008
        self.cache = WatchCache(limits, compacted)
        self._revision = 0

    def put(self, name: str, resource: GroupResource = WIDGETS, at: str = "red", data: bytes = b"{}") -> None:
        previous = self.cache.get(Key(resource, at, name))
        self._add("ADDED" if previous is None else "MODIFIED", Key(resource, at, name), data)

    def delete(self, name: str, resource: GroupResource = WIDGETS, at: str = "red") -> None:
        self._add("DELETED", Key(resource, at, name), b"{}")

    def _add(self, kind: str, key: Key, data: bytes) -> None:
        self._revision += 1
        record = Record(key, self._revision, data, type(namespace("x")))
        self.cache.add(WatchEvent(kind, record, self.cache.get(key)))


def names(records: list[Record]) -> list[tuple[str, str]]:
    return [(record.key.namespace, record.key.name) for record in records]


def lines(events: list[WatchEvent]) -> list[str]:
    return [f"{event.record.revision} {event.type} {event.record.key.name}" for event in events]


def test_lists_are_sorted_by_namespace_and_name_and_hold_one_resource() -> None:
    feed = Feed()
    feed.put("b", at="red")
    feed.put("a", at="red")
    feed.put("z", at="blue")
    feed.put("a", GADGETS)
    assert names(feed.cache.list(WIDGETS)) == [("blue", "z"), ("red", "a"), ("red", "b")]
    assert names(feed.cache.list(WIDGETS, "red")) == [("red", "a"), ("red", "b")]
    assert sorted(names(feed.cache.list_unsorted(WIDGETS))) == [("blue", "z"), ("red", "a"), ("red", "b")]
    assert feed.cache.list(GroupResource("apps", "widgets")) == []


def test_past_state_and_events_follow_from_the_history() -> None:
    feed = Feed()
    feed.put("a")
    feed.put("b")
    feed.put("other", GADGETS)
    feed.delete("a")
    feed.put("b")
    assert names(feed.cache.list_at(WIDGETS, "", 3)) == [("red", "a"), ("red", "b")]
    assert names(feed.cache.list_at(WIDGETS, "", 4)) == [("red", "b")]
    assert names(feed.cache.list_at(WIDGETS, "blue", 2)) == []
    assert lines(feed.cache.events_since(WIDGETS, 2)) == ["4 DELETED a", "5 MODIFIED b"]
    with pytest.raises(Compacted, match=r"too old resource version: 6 \(5\)"):
        feed.cache.events_since(WIDGETS, 6)


def test_watch_gets_the_events_of_its_resource_until_it_ends() -> None:
    feed = Feed()
    events: list[WatchEvent] = []
    feed.put("before")
    end = feed.cache.watch(WIDGETS, events.append)
    feed.put("a")
    feed.put("other", GADGETS)
    feed.delete("a")
    end()
    feed.put("after")
    assert lines(events) == ["2 ADDED a", "4 DELETED a"]
    assert events[1].previous is events[0].record


def test_history_is_limited_by_number_and_size_and_keeps_the_newest_event() -> None:
    feed = Feed(HistoryLimits(events=3, size_bytes=100))
    for number in range(5):
        feed.put(f"w{number}")
    assert feed.cache.compacted == 2
    assert lines(feed.cache.events_since(WIDGETS, 2)) == ["3 ADDED w2", "4 ADDED w3", "5 ADDED w4"]
    feed.put("large", data=b"x" * 200)
    assert feed.cache.compacted == 5
    assert lines(feed.cache.events_since(WIDGETS, 5)) == ["6 ADDED large"]
    feed.cache.drop_history(6)
    assert lines(feed.cache.events_since(WIDGETS, 5)) == ["6 ADDED large"]
    with pytest.raises(Compacted, match=r"too old resource version: 4 \(5\)"):
        feed.cache.list_at(WIDGETS, "", 4)


def test_compaction_is_due_after_a_tenth_of_the_history_was_dropped() -> None:
    feed = Feed(HistoryLimits(events=20))
    for number in range(22):
        feed.put(f"w{number}")
    assert not feed.cache.take_compaction_due()
    feed.put("more")
    assert feed.cache.take_compaction_due()
    assert not feed.cache.take_compaction_due()


def test_events_up_to_the_compacted_revision_are_no_history() -> None:
    feed = Feed(compacted=2)
    for name in "abc":
        feed.put(name)
    assert lines(feed.cache.events_since(WIDGETS, 2)) == ["3 ADDED c"]
    assert names(feed.cache.list(WIDGETS)) == [("red", "a"), ("red", "b"), ("red", "c")]
    with pytest.raises(Compacted):
        feed.cache.events_since(WIDGETS, 1)

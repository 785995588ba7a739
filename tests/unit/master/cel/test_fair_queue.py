"""Whose question the CEL worker answers next."""

from __future__ import annotations

from collections.abc import Mapping

from master.cel.fair_queue import MAX_KNOWN, FairQueue


def order(costs: Mapping[str, float], *waiting: str) -> str:
    """Return the sources in the order of their turns; each item of a source takes the same time."""
    queue: FairQueue[str] = FairQueue()
    for source in waiting:
        queue.put(source, source)
    taken: list[str] = []
    while (item := queue.take()) is not None:
        taken.append(item)
        queue.charge(item, costs[item])
    return "".join(taken)


def test_items_of_one_source_keep_their_order() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(3):
        queue.put("a", number)
    assert [queue.take() for _ in range(4)] == [0, 1, 2, None]


def test_sources_take_turns_by_the_time_that_they_took() -> None:
    assert order({"a": 1, "b": 1}, *"aaabb") == "ababa"
    assert order({"a": 3, "b": 1}, *"aaabbbb") == "abbbaba"


def test_who_comes_late_neither_waits_for_all_nor_has_saved_up() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(9):
        queue.put("a", "a")
    for _ in range(5):
        queue.take()
        queue.charge("a", 1.0)
    queue.put("b", "b")
    queue.put("b", "b")
    taken = []
    for _ in range(4):
        taken.append(queue.take())
        queue.charge(str(taken[-1]), 1.0)
    assert taken in (["b", "a", "b", "a"], ["a", "b", "a", "b"])


def test_the_time_of_few_sources_is_kept() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.put("waits", "waits")
    queue.put("waits", "waits")
    for number in range(3 * MAX_KNOWN):
        queue.put(str(number), "x")
        queue.take()
        queue.charge(str(number), 0.001)
    assert len(queue._times) <= MAX_KNOWN + 2

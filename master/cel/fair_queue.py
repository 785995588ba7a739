"""The order in which waiting questions are answered: the source that has taken the least time comes first. Pure.

This is start-time fair queueing. A source that asks again and again waits for those that ask rarely, whose questions
wait only for the one that is being answered. How many questions a source has waiting does not matter.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_KNOWN = 1000
"""Sources whose time is known at most, apart from those that wait. With one more, that of all others is forgotten."""


class FairQueue(Generic[T]):
    """Waiting items by source. `charge` says how long the item took that was taken last."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}
        self._times: dict[str, float] = {}
        """The time that each source has taken, on a clock that is `_now` for the item that was taken last."""
        self._now = 0.0

    def put(self, source: str, item: T) -> None:
        """Let an item wait."""
        self._waiting.setdefault(source, deque()).append(item)
        self._begin(source)

    def take(self) -> T | None:
        """Return the item whose turn it is, and remove it; None if nothing waits."""
        if not self._waiting:
            # Nobody has waited for anybody, so nothing is owed.
            self._times.clear()
            return None
        source = min(self._waiting, key=self._times.__getitem__)
        items = self._waiting[source]
        item = items.popleft()
        if not items:
            del self._waiting[source]
        self._now = self._times[source]
        return item

    def charge(self, source: str, seconds: float) -> None:
        """Count what an item of a source took."""
        self._begin(source)
        self._times[source] += seconds
        if len(self._times) > MAX_KNOWN + len(self._waiting):
            self._times = {name: self._times[name] for name in self._waiting}

    def _begin(self, source: str) -> None:
        """Let a source begin now, unless it has taken time already. Time without questions is not saved up."""
        self._times[source] = max(self._times.get(source, 0.0), self._now)

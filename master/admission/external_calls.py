"""Calls that leave the process while a write is decided, such as those of webhooks. Pure.

Code that decides a write does not wait. A plugin that needs an answer asks `ExternalResults.results_of`, which raises
CallsPending if a result is missing. The write is then left undecided; a driver makes the calls, outside of every
transaction, and the write is decided again on the newest state, with the results. A call whose question has changed
meanwhile is a new call. So no lock is held while a call lasts, and what is written is what was asked about.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

MAX_ROUNDS = 256
"""Rounds of calls of one write. Each round has at least one new call; mutating webhooks and mutations of policies take
one round each.
"""


@dataclass(frozen=True, slots=True)
class ExternalCall:
    """The base of questions. A question is a hashable value that says all that the answer depends on."""


class CallsPending(Exception):
    """A write cannot be decided before these calls have results."""

    def __init__(self, calls: tuple[ExternalCall, ...]) -> None:
        super().__init__(f"{len(calls)} external calls have no results yet")
        self.calls = calls


class ExternalResults:
    """The results of the external calls of one write."""

    def __init__(self) -> None:
        self._results: dict[ExternalCall, Any] = {}
        self._derived: dict[Hashable, Any] = {}

    def __bool__(self) -> bool:
        """Return whether there is any result."""
        return bool(self._results)

    def results_of(self, calls: Sequence[ExternalCall]) -> tuple[Any, ...]:
        """Return the results of calls. Raises CallsPending with all that have none."""
        if missing := tuple(dict.fromkeys(call for call in calls if call not in self._results)):
            raise CallsPending(missing)
        return tuple(self._results[call] for call in calls)

    def derived(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` makes of results. It is made once for a write, although the write is decided again for
        each round of calls. `key` says all that it depends on.
        """
        if key not in self._derived:
            self._derived[key] = make()
        value: T = self._derived[key]
        return value

    def put(self, calls: Sequence[ExternalCall], results: Sequence[Any]) -> None:
        """Keep the results of calls."""
        self._results.update(zip(calls, results, strict=True))


@dataclass(slots=True)
class PendingWrite:
    """What stays the same while one write is decided again: results of external calls, and what is drawn at random.

    The questions about an object name its uid, its generated name and its times. Were they drawn again for each
    decision, each decision would ask new questions.
    """

    external: ExternalResults = field(default_factory=ExternalResults)
    deadline: float | None = None
    """When calls end, by the clock of the event loop; None without a limit."""
    _now: datetime.datetime | None = None
    _uids: list[str] = field(default_factory=list)
    _letters: list[str] = field(default_factory=list)
    _next_uid: int = 0
    _next_letters: int = 0

    def restart(self) -> None:
        """Begin another decision: what was drawn is drawn again in the same order."""
        self._next_uid = self._next_letters = 0

    def now(self, clock: Callable[[], datetime.datetime]) -> datetime.datetime:
        """Return the time of the first decision."""
        if self._now is None:
            self._now = clock()
        return self._now

    def uid(self, draw: Callable[[], str]) -> str:
        """Return the next uid."""
        if self._next_uid == len(self._uids):
            self._uids.append(draw())
        self._next_uid += 1
        return self._uids[self._next_uid - 1]

    def letters(self, draw: Callable[[], str]) -> str:
        """Return the next letters for a generated name."""
        if self._next_letters == len(self._letters):
            self._letters.append(draw())
        self._next_letters += 1
        return self._letters[self._next_letters - 1]

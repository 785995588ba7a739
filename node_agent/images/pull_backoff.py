"""Limits of image pulls, and back-off after failed pulls. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from reconcile.backoff import Backoff

PULL_BACKOFF = Backoff(10.0, 300.0)
BACKOFF_RESET = timedelta(seconds=2 * PULL_BACKOFF.maximum)
"""An image that nobody asked for during this time begins with the first delay again."""


@dataclass(frozen=True, slots=True)
class PullLimits:
    """Of all pods of the node: pulls at once, pulls begun in a second (0: no limit) and how many of those at once.

    A pull of which nothing was heard for `patience` seconds is given up.
    """

    max_parallel: int = 1
    per_second: float = 5.0
    burst: int = 10
    progress_seconds: float = 60.0


DEFAULT_LIMITS = PullLimits()


@dataclass(frozen=True, slots=True)
class PullResult:
    """How long a pull took, without the wait for its turn, and the size of the image in bytes."""

    seconds: float
    size: int


@dataclass(frozen=True, slots=True)
class PullFailure:
    """The last failure to pull an image, the number `count` in a row: its time, the wait after it, its message, and
    the reason of the container's state.
    """

    at: datetime
    delay: timedelta
    words: str
    reason: str = "ErrImagePull"
    count: int = 1

    @property
    def due(self) -> datetime:
        """When it may be tried again."""
        return self.at + self.delay

    def holds(self, now: datetime) -> bool:
        """Whether the image is still waited for; a failure that lies ahead of us (the clock was set back) is over."""
        return self.at <= now < self.due


def next_failure(before: PullFailure | None, now: datetime, words: str, reason: str) -> PullFailure:
    """Return the failure after `before`. Its wait is twice as long, unless `before` is older than BACKOFF_RESET."""
    count = 1 if before is None or now - before.at > BACKOFF_RESET else before.count + 1
    return PullFailure(now, timedelta(seconds=PULL_BACKOFF.delay(count)), words, reason, count)

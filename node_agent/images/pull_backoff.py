"""Rate limit of pulls and back-off after failed pulls. Pure.

Source: facts/node.md 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

FIRST_DELAY, LAST_DELAY = timedelta(seconds=10), timedelta(seconds=300)
BACKOFF_RESET = 2 * LAST_DELAY
"""An image that nobody asked for during this time begins with the first delay again."""


@dataclass(frozen=True, slots=True)
class PullLimits:
    """Of all pods of the node: pulls at once, pulls begun in a second (0: no limit) and how many of those at once.

    A pull of which nothing was heard for `patience` seconds is given up.
    """

    at_once: int = 1
    per_second: float = 5.0
    burst: int = 10
    patience: float = 60.0


DEFAULT_LIMITS = PullLimits()


@dataclass(frozen=True, slots=True)
class PullResult:
    """How long a pull took, without the wait for its turn, and the size of the image in bytes."""

    seconds: float
    size: int


@dataclass(frozen=True, slots=True)
class PullRateLimit:
    """How many pulls may begin at once, as of a moment in seconds; less than none when some are waiting already."""

    left: float
    at: float


def reserve_pull(limits: PullLimits, before: PullRateLimit | None, now: float) -> tuple[PullRateLimit, float]:
    """One pull more: what is left, and in how many seconds it may begin."""
    if not limits.per_second:
        return PullRateLimit(limits.burst, now), 0.0
    known = before or PullRateLimit(limits.burst, now)
    left = min(known.left + (now - known.at) * limits.per_second, limits.burst) - 1
    return PullRateLimit(left, now), max(-left / limits.per_second, 0.0)


@dataclass(frozen=True, slots=True)
class PullFailure:
    """The last failure to fetch an image: when, what is waited from then on, why, and the reason of the state."""

    at: datetime
    delay: timedelta
    words: str
    reason: str = "ErrImagePull"

    @property
    def due(self) -> datetime:
        """When it may be tried again."""
        return self.at + self.delay

    def holds(self, now: datetime) -> bool:
        """Whether the image is still waited for; a failure that lies ahead of us (the clock was set back) is over."""
        return self.at <= now < self.due


def next_failure(before: PullFailure | None, now: datetime, words: str, reason: str) -> PullFailure:
    """One failure more; each waits twice as long as the one before."""
    if before is None or now - before.at > BACKOFF_RESET:
        return PullFailure(now, FIRST_DELAY, words, reason)
    return PullFailure(now, min(before.delay * 2, LAST_DELAY), words, reason)

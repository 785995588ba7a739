"""How hard registries are asked: pulls at once, pulls that begin in a second, the wait after a failure. Pure.

Source: facts/node.md 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

FIRST_DELAY, LAST_DELAY = timedelta(seconds=10), timedelta(seconds=300)
FORGOTTEN = 2 * LAST_DELAY
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
class Pulled:
    """How long a pull took, without the wait for its turn, and the size of the image in bytes."""

    seconds: float
    size: int


@dataclass(frozen=True, slots=True)
class Turns:
    """How many pulls may begin at once, as of a moment in seconds; less than none when some are waiting already."""

    left: float
    at: float


def take_turn(limits: PullLimits, before: Turns | None, now: float) -> tuple[Turns, float]:
    """One pull more: what is left, and in how many seconds it may begin."""
    if not limits.per_second:
        return Turns(limits.burst, now), 0.0
    known = before or Turns(limits.burst, now)
    left = min(known.left + (now - known.at) * limits.per_second, limits.burst) - 1
    return Turns(left, now), max(-left / limits.per_second, 0.0)


@dataclass(frozen=True, slots=True)
class Failure:
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


def failed_again(before: Failure | None, now: datetime, words: str, reason: str) -> Failure:
    """One failure more; each waits twice as long as the one before."""
    if before is None or now - before.at > FORGOTTEN:
        return Failure(now, FIRST_DELAY, words, reason)
    return Failure(now, min(before.delay * 2, LAST_DELAY), words, reason)

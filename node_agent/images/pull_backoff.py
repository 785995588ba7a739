"""Limits of image pulls, and back-off after failed pulls. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from reconcile.backoff import Backoff

PULL_BACKOFF = Backoff(10.0, 300.0)

BACKOFF_RESET = timedelta(seconds=2 * PULL_BACKOFF.maximum)
"""Time without a failed pull of an image after which its back-off starts from the beginning."""


@dataclass(frozen=True, slots=True)
class PullLimits:
    """Limits of all image pulls of the node.

    `max_parallel` is the number of pulls at a time, `per_second` the rate at which pulls start (0: no limit), `burst`
    how many may start at once. A pull without progress for `progress_seconds` is cancelled. `local_registries` are the
    registries at addresses of the node itself that are asked (`node_agent/images/local_registries.py`).
    """

    max_parallel: int = 1
    per_second: float = 5.0
    burst: int = 10
    progress_seconds: float = 60.0
    local_registries: tuple[str, ...] = ()


DEFAULT_LIMITS = PullLimits()


@dataclass(frozen=True, slots=True)
class PullResult:
    """The seconds that a pull took, without the wait for the limits, and the size of the image in bytes."""

    seconds: float
    size: int


@dataclass(frozen=True, slots=True)
class PullFailure:
    """The last failed pull of an image.

    `delay` is the back-off after it, `reason` the reason of the container's state, `count` the number of failures in a
    row.
    """

    failed_at: datetime
    delay: timedelta
    message: str
    reason: str = "ErrImagePull"
    count: int = 1

    @property
    def retry_at(self) -> datetime:
        """The time when the image may be pulled again."""
        return self.failed_at + self.delay

    def is_active(self, now: datetime) -> bool:
        """Return whether the image is in back-off. A failure in the future is ignored: the clock was set back."""
        return self.failed_at <= now < self.retry_at


def next_failure(previous: PullFailure | None, now: datetime, message: str, reason: str) -> PullFailure:
    """Return the failure after `previous`. Its delay is doubled, unless `previous` is older than BACKOFF_RESET."""
    count = 1 if previous is None or now - previous.failed_at > BACKOFF_RESET else previous.count + 1
    return PullFailure(now, timedelta(seconds=PULL_BACKOFF.delay(count)), message, reason, count)

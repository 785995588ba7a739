"""Time that only goes on, for what is counted from a moment: nobody gets more or less of it when a clock is set."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


def wall() -> datetime:
    """What the host's clock shows; for times that others are told, or have told us."""
    return datetime.now(UTC)


class EvenClock:
    """Shows what the host's clock would show if nobody had set it since this one was made."""

    def __init__(self, clock: Callable[[], datetime] = wall, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._epoch = clock() - timedelta(seconds=seconds())

    def __call__(self) -> datetime:
        """The time now."""
        return self._epoch + timedelta(seconds=self._seconds())


steady = EvenClock()
"""Since the start of the agent."""

"""Wall clock, a clock that never jumps, and a timer for the earliest of several times. Driver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


def wall_clock() -> datetime:
    """Return the time of the host's clock, for times that are exchanged with other programs."""
    return datetime.now(UTC)


class SteadyClock:
    """A clock that starts at the time of the host's clock and is not affected when that is set."""

    def __init__(
        self, clock: Callable[[], datetime] = wall_clock, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._epoch = clock() - timedelta(seconds=seconds())

    def __call__(self) -> datetime:
        """Return the time now."""
        return self._epoch + timedelta(seconds=self._seconds())


steady_clock = SteadyClock()
"""The steady clock of the agent. It starts with the process."""


class WakeTimer:
    """A timer for the earliest of several times. It calls `wake` once, and then has no time until the next `at`."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None

    def at(self, moment: datetime | None, now: datetime) -> None:
        """Wake at this time, or earlier if an earlier time is set. `now` is by the same clock. None is ignored."""
        if moment is None:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + max((moment - now).total_seconds(), 0.0)
        if self._timer is None or self._timer.when() > when:
            self.clear()
            self._timer = loop.call_at(when, self._fire)

    def clear(self) -> None:
        """Remove all times."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._wake()

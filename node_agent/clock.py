"""Wall clock, a clock that never jumps, and a timer for the nearest of several moments. Driver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


def wall_clock() -> datetime:
    """What the host's clock shows; for times that others are told, or have told us."""
    return datetime.now(UTC)


class SteadyClock:
    """Shows what the host's clock would show if nobody had set it since this one was made."""

    def __init__(
        self, clock: Callable[[], datetime] = wall_clock, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._epoch = clock() - timedelta(seconds=seconds())

    def __call__(self) -> datetime:
        """The time now."""
        return self._epoch + timedelta(seconds=self._seconds())


steady_clock = SteadyClock()
"""Since the start of the agent."""


class WakeTimer:
    """Rings once, at the nearest of the times asked for since it last rang or was cleared."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def at(self, moment: datetime | None, now: datetime) -> None:
        """Ring at this time at the latest, `now` being what the same clock shows; None asks for nothing."""
        if moment is None:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + max((moment - now).total_seconds(), 0.0)
        if self._timer is None or self._timer.when() > when:
            self.clear()
            self._timer = loop.call_at(when, self._fire)

    def clear(self) -> None:
        """Forget every time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._ring()

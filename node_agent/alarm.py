"""One timer for many wishes to be woken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime


class Alarm:
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

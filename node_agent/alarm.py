"""One moment at which something is to be done without any event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime


class Alarm:
    """Calls `ring` at the nearest of the moments that it was set to since it last rang."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, moment: datetime | None) -> None:
        """Ring at this moment too; None calls everything off."""
        if moment is None:
            self._call_off()
            return
        delay = max((moment - datetime.now(UTC)).total_seconds(), 0.0)
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() > loop.time() + delay:
            self._call_off()
            self._timer = loop.call_later(delay, self._fire)

    def _call_off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._ring()

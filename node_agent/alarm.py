"""Asks for a pass at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime


class Alarm:
    """Calls `ring` once, at the nearest of the moments that were asked for since it was last put off."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def at(self, moment: datetime | None) -> None:
        """Ask for a moment; None puts it off."""
        if moment is None:
            self._stop()
            return
        delay = max((moment - datetime.now(UTC)).total_seconds(), 0.0)
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() > loop.time() + delay:
            self._stop()
            self._timer = loop.call_later(delay, self._fire)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._ring()

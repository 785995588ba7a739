"""The nearest time counts; nothing rings after it was cleared."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from node_agent.clock import WakeTimer
from tests.unit.node_agent.make import NOW


async def test_the_nearest_time_rings_once() -> None:
    rung: asyncio.Queue[None] = asyncio.Queue()
    alarm, now = WakeTimer(lambda: rung.put_nowait(None)), NOW
    alarm.at(now + timedelta(days=1), now)
    alarm.at(None, now)
    alarm.at(now, now)
    alarm.at(now + timedelta(days=1), now)
    async with asyncio.timeout(20):
        await rung.get()
    assert rung.empty()
    alarm.at(now, now)
    async with asyncio.timeout(20):
        await rung.get()


async def test_a_time_that_was_cleared_does_not_ring() -> None:
    rung: asyncio.Queue[str] = asyncio.Queue()
    cleared, other = WakeTimer(lambda: rung.put_nowait("cleared")), WakeTimer(lambda: rung.put_nowait("other"))
    cleared.at(NOW, NOW)
    cleared.clear()
    other.at(NOW, NOW)
    async with asyncio.timeout(20):
        assert await rung.get() == "other"
    assert rung.empty()

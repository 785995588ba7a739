"""The steady clock and the wake timer."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from node_agent.clock import SteadyClock, WakeTimer
from tests.unit.node_agent.examples import NOW


@pytest.mark.parametrize("step", [timedelta(hours=3), timedelta(hours=-3), timedelta(0)])
def test_steady_clock_ignores_clock_changes(step: timedelta) -> None:
    seconds, wall_time = [100.0], [NOW]
    steady = SteadyClock(lambda: wall_time[0], lambda: seconds[0])
    assert steady() == NOW
    seconds[0] += 7
    wall_time[0] += timedelta(seconds=7) + step
    assert steady() == NOW + timedelta(seconds=7)


async def test_alarm_rings_once_at_the_nearest_time() -> None:
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


async def test_cleared_alarm_does_not_ring() -> None:
    rung: asyncio.Queue[str] = asyncio.Queue()
    cleared, other = WakeTimer(lambda: rung.put_nowait("cleared")), WakeTimer(lambda: rung.put_nowait("other"))
    cleared.at(NOW, NOW)
    cleared.clear()
    other.at(NOW, NOW)
    async with asyncio.timeout(20):
        assert await rung.get() == "other"
    assert rung.empty()

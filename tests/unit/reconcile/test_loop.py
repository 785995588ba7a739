"""The reconcile loop and the containment of bugs."""

from __future__ import annotations

import asyncio
import logging

import pytest

from reconcile.errors import Gone, NotReady
from reconcile.loop import MAX_PAUSE_SECONDS, Loop, LoopTiming, pause_after, retry_delay, retry_unexpected_errors


class Passes:
    """Counts passes and plays failures."""

    def __init__(self, *failures: Exception | None) -> None:
        self.count = 0
        self._failures = list(failures)
        self.reached = asyncio.Event()
        self.wanted = 0

    async def __call__(self) -> None:
        self.count += 1
        if self.count >= self.wanted:
            self.reached.set()
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure

    async def until(self, count: int) -> None:
        self.wanted = count
        self.reached.clear()
        if self.count < count:
            async with asyncio.timeout(5):
                await self.reached.wait()


async def test_loop_runs_first_pass_at_once_and_next_on_an_event() -> None:
    passes = Passes()
    loop = Loop("test", passes, LoopTiming(resync=1000))
    task = asyncio.create_task(loop.run())
    await passes.until(1)
    for expected in (2, 3):
        loop.wake()
        loop.wake()
        await passes.until(expected)
    task.cancel()
    assert passes.count == 3


def test_pause_follows_from_the_length_of_a_pass() -> None:
    timing = LoopTiming(pause_factor=3.0)
    assert pause_after(0.004, timing) == pytest.approx(0.012)
    assert pause_after(5.0, timing) == MAX_PAUSE_SECONDS
    assert pause_after(5.0, LoopTiming()) == 0.0


async def test_events_during_a_pause_lead_to_one_pass() -> None:
    passes = Passes()
    loop = Loop("test", passes, LoopTiming(resync=1000, pause_factor=1.0))
    task = asyncio.create_task(loop.run())
    await passes.until(1)
    for _ in range(100):
        loop.wake()
    await passes.until(2)
    loop.wake()
    await passes.until(3)
    task.cancel()
    assert passes.count == 3


async def test_loop_retries_sooner_after_a_driver_error() -> None:
    passes = Passes(NotReady("away"), NotReady("away"))
    loop = Loop("test", passes, LoopTiming(resync=1000, backoff_base=0.001))
    task = asyncio.create_task(loop.run())
    await passes.until(3)
    task.cancel()
    assert loop.failures in {0, 2}


async def test_loop_ends_on_an_unexpected_error() -> None:
    loop = Loop("test", Passes(ZeroDivisionError()), LoopTiming())
    with pytest.raises(ZeroDivisionError):
        await loop.run()


def test_back_off_doubles_up_to_its_maximum() -> None:
    pace = LoopTiming(backoff_base=0.1, backoff_max=1.0)
    assert [retry_delay(n, pace) for n in (1, 2, 3, 4, 5, 500)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


async def test_contained_bug_is_logged_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    async def wrong() -> None:
        raise ValueError("nobody foresaw this")

    async def gone() -> None:
        raise Gone("Docker: no such container")

    with caplog.at_level(logging.ERROR), pytest.raises(NotReady, match="ValueError: nobody foresaw this"):
        await retry_unexpected_errors("red/web", wrong)()
    assert "Traceback" in caplog.text
    with pytest.raises(Gone):
        await retry_unexpected_errors("red/web", gone)()


async def test_the_traceback_of_an_error_that_recurs_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    outcomes = iter((ValueError("a"), ValueError("a"), ValueError("b"), None, ValueError("b")))

    async def run_pass() -> None:
        if (error := next(outcomes)) is not None:
            raise error

    retried = retry_unexpected_errors("red/web", run_pass)
    for count in (1, 1, 2):
        with pytest.raises(NotReady):
            await retried()
        assert caplog.text.count("Traceback") == count
    await retried()
    with pytest.raises(NotReady):
        await retried()
    assert caplog.text.count("Traceback") == 3

"""The only code that waits: bring the world to what is desired, again and again."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from reconcile.errors import DriverError, NotReady

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """All times in seconds.

    `resync`: longest time between two passes; `settle`: how long a burst of events may gather before a pass;
    `first_retry` and `last_retry`: wait after a failed pass, doubled each time it fails again.
    """

    resync: float = 30.0
    settle: float = 0.0
    first_retry: float = 0.1
    last_retry: float = 10.0


def retry_delay(failures: int, pace: Pace) -> float:
    """Seconds to wait after the given number of failed passes in a row (1 or more)."""
    doublings = min(failures - 1, 30)
    return min(pace.first_retry * float(2**doublings), pace.last_retry)


class Loop:
    """Runs one pass at a time; an event only shortens the wait.

    A pass keeps nothing for the next one, so the first pass after a crash is the same as any other. A driver's error
    ends the pass and brings the next one sooner; every other exception is our own bug and ends the daemon.
    """

    def __init__(self, name: str, one_pass: Callable[[], Awaitable[None]], pace: Pace) -> None:
        self._name = name
        self._one_pass = one_pass
        self._pace = pace
        self._trigger = asyncio.Event()
        self.failures = 0
        self._passed_at = time.monotonic()

    @property
    def silence(self) -> float:
        """Seconds since the end of the last pass, good or bad; much more than `resync` when one hangs."""
        return time.monotonic() - self._passed_at

    def wake(self) -> None:
        """Ask for a pass now. Cheap; any number of calls before the pass begins make one pass."""
        self._trigger.set()

    async def run(self) -> None:
        """Run passes until cancelled; the first one begins at once."""
        while True:
            wait = await self._attempt()
            self._passed_at = time.monotonic()
            try:
                # Not wait_for: in Python 3.11 it may swallow a cancellation that comes together with the event.
                async with asyncio.timeout(wait):
                    await self._trigger.wait()
            except TimeoutError:
                continue
            if self._pace.settle:
                await asyncio.sleep(self._pace.settle)

    async def _attempt(self) -> float:
        self._trigger.clear()
        try:
            await self._one_pass()
        except DriverError as error:
            self.failures += 1
            delay = retry_delay(self.failures, self._pace)
            log.warning("pass failed", extra={"loop": self._name, "error": str(error), "retry_in": f"{delay:.1f}s"})
            return delay
        self.failures = 0
        return self._pace.resync


Pass = Callable[[], Awaitable[None]]


def containing_bugs(what: str, work: Pass) -> Pass:
    """The same work; an exception that is none of a driver's is logged in full, and the work tried again later."""

    @functools.wraps(work)
    async def careful() -> None:
        try:
            await work()
        except DriverError:
            raise
        except Exception as error:
            log.exception("a bug", extra={"at": what})
            raise NotReady(f"{what}: {type(error).__name__}: {error}; the log says more") from error

    return careful

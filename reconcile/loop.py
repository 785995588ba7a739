"""The reconcile loop: runs a pass at each resync, earlier after a wake-up, and again after a failure with back-off."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from reconcile.backoff import Backoff
from reconcile.errors import DriverError, NotReady

log = logging.getLogger(__name__)

Pass = Callable[[], Awaitable[None]]
"""A function that brings the actual state closer to the desired state once."""


@dataclass(frozen=True, slots=True)
class LoopTiming:
    """Timing of a loop, in seconds.

    `resync`: maximum time between two passes. `debounce`: time that a burst of events may gather before a pass.
    `pause_factor`: an event after a pass waits this many times as long as the pass took, at most MAX_PAUSE_SECONDS. So
    events without end take a bounded share of the processor, and an event after a quiet time waits for nothing.
    `backoff_base`, `backoff_max`: wait after a failed pass, doubled after each further failure.
    """

    resync: float = 30.0
    debounce: float = 0.0
    pause_factor: float = 0.0
    backoff_base: float = 0.1
    backoff_max: float = 10.0


MAX_PAUSE_SECONDS = 1.0
"""kube-proxy's default of minSyncPeriod."""


def pause_after(seconds: float, timing: LoopTiming) -> float:
    """Return the seconds between a pass that took `seconds` and the next one, while events wait."""
    return min(seconds * timing.pause_factor, MAX_PAUSE_SECONDS)


def retry_delay(failures: int, timing: LoopTiming) -> float:
    """Return the seconds to wait after the given number of consecutive failed passes."""
    return Backoff(timing.backoff_base, timing.backoff_max).delay(failures)


class Loop:
    """Loop that runs one pass at a time. An event only shortens the wait.

    A pass reads the actual state, so the first pass after a crash is the same as any other. docs/ownership.md says
    what a crash can leave over. A driver error ends the pass and schedules a retry. Any other exception is a bug and
    ends the daemon.

    `trigger` is set to wake the loop. A part that is built before the loop gets the trigger to wake it.
    `resync` returns the maximum time in seconds from a successful pass to the next one; by default that of `timing`.
    """

    def __init__(
        self,
        name: str,
        run_pass: Pass,
        timing: LoopTiming,
        trigger: asyncio.Event | None = None,
        resync: Callable[[], float] | None = None,
    ) -> None:
        self._name = name
        self._run_pass = run_pass
        self._timing = timing
        self._trigger = trigger or asyncio.Event()
        self._resync = resync or (lambda: timing.resync)
        self.failures = 0
        self.total_failures = 0
        self.requested_passes = 0
        """How often a pass was requested. Requests before the pass begins count as one."""
        self._passed_at = time.monotonic()

    @property
    def seconds_since_last_pass(self) -> float:
        """Seconds since the end of the last pass, successful or not. Much more than `resync` if a pass hangs."""
        return time.monotonic() - self._passed_at

    def wake(self) -> None:
        """Request a pass now. Any number of calls before the pass begins lead to one pass."""
        if not self._trigger.is_set():
            self.requested_passes += 1
            self._trigger.set()

    @property
    def is_requested(self) -> bool:
        """Whether a pass is requested that has not begun."""
        return self._trigger.is_set()

    async def run(self) -> None:
        """Run passes until cancelled. The first pass begins at once."""
        while True:
            begin = time.monotonic()
            wait = await self._attempt()
            self._passed_at = time.monotonic()
            next_at = self._passed_at + pause_after(self._passed_at - begin, self._timing)
            try:
                # Not wait_for: in Python 3.11 it may swallow a cancellation that comes together with the event.
                async with asyncio.timeout(wait):
                    await self._trigger.wait()
            except TimeoutError:
                continue
            pause = max(self._timing.debounce, next_at - time.monotonic())
            if pause > 0:
                await asyncio.sleep(pause)

    async def _attempt(self) -> float:
        self._trigger.clear()
        try:
            await self._run_pass()
        except DriverError as error:
            self.failures += 1
            self.total_failures += 1
            delay = retry_delay(self.failures, self._timing)
            log.warning("pass failed", extra={"loop": self._name, "error": str(error), "retry_in": f"{delay:.1f}s"})
            return delay
        self.failures = 0
        return self._resync()


def retry_unexpected_errors(component: str, run_pass: Pass) -> Pass:
    """Wrap a pass so that an unexpected exception is retried as NotReady. The traceback of an exception that recurs is
    logged once.
    """
    logged = ""

    @functools.wraps(run_pass)
    async def retried_on_error() -> None:
        nonlocal logged
        try:
            await run_pass()
        except DriverError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if text != logged:
                log.exception("unexpected error; will retry", extra={"component": component})
            logged = text
            raise NotReady(f"{component}: {text}; see the log") from error
        logged = ""

    return retried_on_error

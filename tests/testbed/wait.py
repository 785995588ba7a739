"""Waits for a condition."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


PATIENCE = float(os.environ.get("PODLANE_PATIENCE", "1"))
DEADLINE_SECONDS = 60.0 * PATIENCE

CALL_SECONDS = 2 * DEADLINE_SECONDS
"""What one program may take: a test that waits for ever names no cause."""

MAX_PAUSE_SECONDS = 0.2


def wait_until(holds: Callable[[], T], what: str, seconds: float = DEADLINE_SECONDS, pause: float = 0.02) -> T:
    """Call `holds` until its result is true, and return the result. It rests between two calls. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while True:
        begin = time.monotonic()
        if result := holds():
            return result
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        rest(begin, pause)


def rest(begin: float, pause: float) -> None:
    """Sleep `pause` seconds, or as long as the call that began at `begin` took, up to MAX_PAUSE_SECONDS.

    So calls that take long leave half of a processor to other processes.
    """
    time.sleep(max(pause, min(time.monotonic() - begin, MAX_PAUSE_SECONDS)))

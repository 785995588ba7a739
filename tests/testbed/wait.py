"""Waits for a condition."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


DEADLINE_SECONDS = 60.0 * float(os.environ.get("PODLANE_PATIENCE", "1"))

MAX_PAUSE_SECONDS = 0.2


def wait_until(holds: Callable[[], T], what: str, seconds: float = DEADLINE_SECONDS, pause: float = 0.02) -> T:
    """Call `holds` until its result is true, and return the result. Raises TimeoutError.

    It sleeps `pause` seconds between two calls, or as long as the call took, up to MAX_PAUSE_SECONDS. So calls that
    take long leave half of a processor to other processes.
    """
    deadline = time.monotonic() + seconds
    while True:
        begin = time.monotonic()
        if result := holds():
            return result
        end = time.monotonic()
        if end > deadline:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(max(pause, min(end - begin, MAX_PAUSE_SECONDS)))

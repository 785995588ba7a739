"""Waits for a condition."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


DEADLINE_SECONDS = 60.0 * float(os.environ.get("PODLANE_PATIENCE", "1"))


def wait_until(holds: Callable[[], T], what: str, seconds: float = DEADLINE_SECONDS, pause: float = 0.02) -> T:
    """Look again and again until something is true, and return it. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not (actual := holds()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(pause)
    return actual

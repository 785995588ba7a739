"""Bounds the logs of a lab: a log that is too long is moved to FILE.1, and its processes write on."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

MAX_BYTES = 10 << 20
"""Size at which a log is rotated. With the previous one, a process has twice as much."""

CHECK_SECONDS = 5.0


async def keep_bounded(logs: Sequence[Path], max_bytes: int = MAX_BYTES, seconds: float = CHECK_SECONDS) -> None:
    """Rotate logs until cancelled."""
    while True:
        await asyncio.sleep(seconds)
        for log in logs:
            await asyncio.to_thread(rotate, log, max_bytes)


def rotate(log: Path, max_bytes: int) -> bool:
    """Move the text of a log to FILE.1 if it is longer than `max_bytes`. Return True if it was.

    The writers keep the file open, so it is copied and emptied. They must append (O_APPEND), or the file would get a
    hole. Lost are what they write between the two, all but the end of a longer text, and the text if there is no space.
    """
    try:
        size = log.stat().st_size
        if size <= max_bytes:
            return False
        previous = log.with_name(f"{log.name}.1")
        with log.open("rb") as text, contextlib.suppress(OSError):
            text.seek(size - max_bytes)
            previous.unlink(missing_ok=True)  # its space may be what the copy needs
            previous.write_bytes(text.read(max_bytes))
        os.truncate(log, 0)
    except OSError:
        return False  # the log does not exist yet, or the lab is being removed
    return True

"""Memory that a burst has needed goes back to the machine: the C library keeps it otherwise."""

from __future__ import annotations

import asyncio
import ctypes

SECONDS = 30.0


async def give_back() -> None:
    """Until cancelled. Where the C library is another than glibc, nothing is done."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(SECONDS)
        await asyncio.to_thread(trim, 0)

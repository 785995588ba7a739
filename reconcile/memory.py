"""Memory of bursts: what one makes is not searched meanwhile, and what it has needed goes back to the machine."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
from collections.abc import Iterator

SECONDS = 30.0


async def give_back() -> None:
    """Until cancelled: the C library keeps it otherwise. Where the C library is another than glibc, nothing is done."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(SECONDS)
        await asyncio.to_thread(trim, 0)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """While very many values are made that stay: searching them for cycles again and again would double the work."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
